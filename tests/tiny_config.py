"""The tiny configuration as a config file, for tests that start the program."""

import dataclasses
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import tiny
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(dataclasses.asdict(tiny.config())).lock()
