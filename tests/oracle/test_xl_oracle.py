"""Transformer-XL against an independent implementation, recorded: hidden states, memory, losses and every gradient.

`xl_replay.py` says what is compared and how, `xl_generate.py` made the recordings.
"""

import numpy as np
import pytest
from oracle import replay, xl_replay
from oracle.xl_replay import CASES


@pytest.mark.parametrize("name", [pytest.param(x, marks=[] if x == "div_4" else pytest.mark.slow) for x in CASES])
def test_equals_the_recording(name, x64):
    recorded = xl_replay.load(name)
    found = xl_replay.run(CASES[name], recorded)
    assert found["hidden"].dtype == found["log_probability"].dtype == np.float64
    assert not replay.too_large(xl_replay.errors(CASES[name], recorded, found), "float64")
