"""Transformer-XL against an independent implementation, recorded: hidden states, memory, losses and every gradient.

`xl_replay.py` says what is compared and how, `xl_generate.py` made the recordings.
"""

import os

import numpy as np
import pytest
from oracle import xl_replay
from oracle.xl_replay import CASES

QUICK = {"same_length", "div_4"}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in CASES])
def test_equals_the_recording(name, x64):
    recorded = xl_replay.load(name)
    found = xl_replay.run(CASES[name], recorded)
    assert found["hidden"].dtype == found["log_probability"].dtype == np.float64
    assert not xl_replay.too_large(xl_replay.errors(CASES[name], recorded, found))


def test_recordings_are_complete_and_small():
    assert {*os.listdir(xl_replay.FOLDER)} == {f"{name}.npz" for name in CASES}
    assert sum(os.path.getsize(xl_replay.path(name)) for name in CASES) < 400_000
