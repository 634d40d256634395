"""The cloud of the launch tests."""

import pathlib

import pytest
from launch_cloud import Cloud


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)
