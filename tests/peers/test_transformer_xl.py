"""Transformer-XL against Hugging Face `transformers` itself, on models and texts that nobody chose.

The recordings of `tests/oracle/xl` are the same comparison on chosen cases. Needs torch and
transformers 4, the last version with this model; without them this file is skipped.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
if not hasattr(pytest.importorskip("transformers"), "TransfoXLLMHeadModel"):
    pytest.skip("transformers 5 has no Transformer-XL", allow_module_level=True)

from oracle import replay, xl_generate, xl_replay
from oracle.xl_replay import CASES, SMALL

CLUSTERS = st.sampled_from(
    [
        {},
        {"cutoffs": "4"},
        {"cutoffs": "5,6,20"},
        {"cutoffs": "9,15", "d_embed": 12},
        {"cutoffs": "9,15", "d_embed": 18, "div_val": 3},
    ]
)
MODELS = st.builds(
    lambda clusters, **changes: dataclasses.replace(SMALL, **changes | clusters),
    CLUSTERS,
    layers=st.integers(1, 3),
    memory_len=st.integers(1, 20),
    clamp_len=st.sampled_from([-1, 3]),
    same_length=st.booleans(),
    norm=st.sampled_from(["post", "pre"]),
    biases_per_layer=st.booleans(),
    tie_projections=st.sampled_from(["all", "rest", "none"]),
)


@pytest.mark.parametrize("name", CASES)
def test_the_recordings_are_what_it_computes(name):
    live, recorded = xl_generate.recorded(name), xl_replay.load(name)
    assert live.keys() == recorded.keys()
    for key, array in live.items():
        np.testing.assert_allclose(array, recorded[key], rtol=1e-9, atol=1e-12, err_msg=key)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(MODELS, st.integers(0, 1000))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_any_model_is_the_same_there(x64, model, seed):
    theirs = xl_generate.record(model, xl_generate.draw(str(seed), model))
    assert not replay.too_large(
        xl_replay.errors(model, theirs, xl_replay.run(model, theirs)), "float64"
    )
