"""The models against an independent implementation, recorded: streams, attention, memory, loss and
every gradient.

`replay.py` says what is compared and how, `generate.py` made the recordings; of Transformer-XL
`xl_replay.py` and `xl_generate.py`, of the other families `families.py` and `families_generate.py`.
The run ends with a table of errors.
"""

import itertools

import jax
import numpy as np
import pytest
import tiny
from attention_cases import GATHERED
from oracle import families, replay, xl_replay
from oracle.replay import CASES

from xlnet_jax.batch import NEVER
from xlnet_jax.kernels import fused, tpu


@pytest.fixture(scope="module")
def weights():
    return replay.load(replay.WEIGHTS)


RECORDED = [
    pytest.param(
        name,
        dtype,
        attention,
        id=f"{name}-{dtype}-{attention}",
        marks=() if dtype == "float64" or name == "plain" else pytest.mark.slow,
    )
    for name, dtype, attention in itertools.product(CASES, replay.TOLERANCES, tiny.ATTENTION)
]


@pytest.mark.parametrize(("name", "dtype", "attention"), RECORDED)
def test_equals_the_recording(name, dtype, attention, weights, record_property):
    case, recorded = CASES[name], replay.load(name)
    with jax.enable_x64(dtype == "float64"):
        found = replay.run(case, weights, recorded, dtype, attention)
    assert found["logits"].dtype == found["content"].dtype == dtype
    errors = replay.errors(case, weights, recorded, found)
    record_property(
        "oracle",
        {"case": name, "dtype": dtype, "implementation": attention} | replay.summary(errors),
    )
    assert not replay.too_large(errors, dtype)


XL = [pytest.param(x, marks=[] if x == "div_4" else pytest.mark.slow) for x in xl_replay.CASES]


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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_fused_kernel_in_float32_equals_the_recording(
    name, weights, monkeypatch, record_property
):
    """Catches a model that feeds the kernel otherwise than `xla`: shared tables, directions,
    memory, gradients.
    """
    # Heads of 4 padded to 128, not to 32, are fewer and compile in half of the time.
    monkeypatch.setattr(tpu, "HEAD_DIMS", (128,))
    monkeypatch.setitem(fused.KERNELS, "cpu", GATHERED)
    case, recorded = CASES[name], replay.load(name)
    errors = replay.errors(
        case, weights, recorded, replay.run(case, weights, recorded, "float32", "fused")
    )
    record_property(
        "oracle",
        {"case": name, "dtype": "float32", "implementation": "fused"} | replay.summary(errors),
    )
    assert "content" in errors and not {
        array: error for array, error in errors.items() if not error <= 2e-5
    }


def test_no_gradient_reaches_back_through_the_memory(weights, x64):
    """The loss of the last segment as a function of all three still has the gradient of the last
    alone.
    """
    case, recorded = CASES["plain"], replay.load("plain")
    found = replay.run(case, weights, recorded, "float64")
    chained = replay.chained_gradient(case, weights, recorded)
    assert chained.keys() <= found.keys()
    assert not replay.too_large(replay.errors(case, weights, recorded, found | chained), "float64")


@pytest.mark.parametrize("name", CASES)
def test_one_direction_rank_or_segment_moves_the_logits(name, weights, x64):
    """Otherwise the comparison could not tell a wrong one."""
    case, recorded = CASES[name], replay.load(name)
    batch = replay.batch_of(case, recorded, replay.SEGMENTS - 1)
    logits = replay.run(case, weights, recorded, "float64")["logits"]
    used = batch.target_weights > 0
    ranked = [
        i for i in np.flatnonzero(batch.rank[0] < NEVER) if i not in batch.target_positions[0]
    ]
    seen = min(ranked or [0], key=lambda i: batch.rank[0, i])

    def flipped(field, index, value):
        array = getattr(batch, field).copy()
        assert array[index] != value
        array[index] = value
        moved = replay.run(case, weights, recorded, "float64", **{field: array})["logits"]
        return np.abs(moved - logits)[used].max()

    assert flipped("direction", 0, -batch.direction[0]) > 1e-3
    if ranked:  # not of a single token, which sees itself whatever its rank
        assert flipped("rank", (0, seen), batch.rank[0][batch.rank[0] < NEVER].max() + 1) > 1e-3
    assert flipped("segments", (0, seen), 1 - min(batch.segments[0, seen], 1)) > 1e-3
