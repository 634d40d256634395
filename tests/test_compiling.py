"""The tests really compile without optimisation, unless they are told not to."""

import os

import compiling
import pytest


@pytest.mark.production
def test_this_session_has_them_or_production_has_none():
    given = "--xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    assert given != compiling.PRODUCTION
