"""The models against an independent implementation, recorded: streams, attention, memory, loss and
every gradient.

`replay.py` says what is compared and how, `generate.py` made the recordings; of Transformer-XL
`xl_replay.py` and `xl_generate.py`, of the other families `families.py` and `families_generate.py`.
"""

import itertools

import jax
import numpy as np
import pytest
import tiny
from attention_cases import GATHERED
from oracle import families, replay, xl_replay
from oracle.replay import CASES

from xlnet_jax.kernels import fused, tpu


@pytest.fixture(scope="module")
def weights():
    return replay.load(replay.WEIGHTS)


PLAIN = itertools.product(CASES, replay.TOLERANCES, tiny.ATTENTION)
FUSED = itertools.product(CASES, ["float32"], ["fused"])
"""The kernel computes in no wider dtype. Catches a model that feeds it otherwise than `xla`."""
RECORDED = [
    pytest.param(
        name,
        dtype,
        attention,
        id=f"{name}-{dtype}-{attention}",
        marks=()
        if dtype == "float64" or (name == "plain" and attention != "fused")
        else pytest.mark.slow,
    )
    for name, dtype, attention in (*PLAIN, *FUSED)
]


@pytest.mark.parametrize(("name", "dtype", "attention"), RECORDED)
def test_equals_the_recording(name, dtype, attention, weights, monkeypatch):
    # Heads of 4 padded to 128, not to 32, are fewer and compile in half of the time.
    monkeypatch.setattr(tpu, "HEAD_DIMS", (128,))
    monkeypatch.setitem(fused.KERNELS, "cpu", GATHERED)
    case, recorded = CASES[name], replay.load(name)
    with jax.enable_x64(dtype == "float64"):
        found = replay.run(case, weights, recorded, dtype, attention)
    assert found["logits"].dtype == found["content"].dtype == dtype
    assert not replay.too_large(replay.errors(case, weights, recorded, found), dtype)


XL = [
    pytest.param(name, marks=[] if name in ("pre_norm", "div_4") else pytest.mark.slow)
    for name in xl_replay.CASES
]


@pytest.mark.parametrize("name", XL)
def test_transformer_xl_equals_the_recording(name, x64):
    case, recorded = xl_replay.CASES[name], xl_replay.load(name)
    found = xl_replay.run(case, recorded)
    assert found["hidden"].dtype == found["log_probability"].dtype == np.float64
    assert not replay.too_large(xl_replay.errors(case, recorded, found), "float64")


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_family_equals_the_recording(family, x64):
    """One configuration of each, of which `peers/test_live_families.py` draws more: logits, losses,
    gradients.
    """
    config, recorded = families.draw(family, 0), families.load()[family]
    fed = families.draw_inputs(config, 0)
    found = families.run(config, families.draw_weights(config, 0), fed)
    found["logits"] = np.asarray(found["logits"])[fed["real"][:, 0]]
    shortened = families.shortened(found)
    assert shortened.keys() == recorded.keys()
    for name, numbers in recorded.items():
        np.testing.assert_allclose(shortened[name], numbers, rtol=1e-8, atol=1e-9, err_msg=name)
