"""How far back a model looks: the paper's rule on losses whose answer is known, and losses of exact contexts."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.config import MeshConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.train import effective_context, sliding
from xlnet_jax.train import state as states
from xlnet_jax.train.recipe import make_recipe

LENGTHS = effective_context.doubling(130)


def looks_back(reach_N):
    """Losses of a model that uses `reach` tokens before each target, and no more."""
    return 4 / np.minimum(np.array(LENGTHS)[:, None], reach_N)


def lengths_of(*models):
    found = effective_context.described(LENGTHS, np.stack(models))
    return [{share: each["effective_context"] for share, each in model["share"].items()} for model in found]


def test_the_length_is_where_a_longer_context_stops_to_help():
    """Catches: the gain of a pair under the wrong length, the share of the easiest tokens, each its own baseline."""
    assert LENGTHS == [1, 2, 4, 8, 16, 32, 64, 128]
    near, far = np.full(100, 4), np.full(100, 16)
    assert lengths_of(looks_back(far)) == [{"0.1": 16, "0.5": 16, "1": 16}]
    # The better model is the baseline of both, but neither takes from the other.
    assert [model["1"] for model in lengths_of(looks_back(near), looks_back(far))] == [4, 16]
    assert effective_context.effective(np.full(7, 0.5), LENGTHS) == 128
    # A tenth of the tokens stays hard until 64 tokens back; of all tokens it is a gain of 0.995 %, too little.
    hard = looks_back(far)
    hard[:, :10] = np.where(np.array(LENGTHS)[:, None] < 64, 8 - np.arange(8)[:, None] / 10, 1)
    (lengths,) = lengths_of(hard)
    assert lengths["0.1"] == 64 and lengths["1"] == 16
    f_C2 = effective_context.hardest_losses(hard[None], 0.1)[0]
    assert f_C2[4].tolist() == pytest.approx([7.6, 7.5]) and f_C2[5].tolist() == pytest.approx([7.5, 1])


@pytest.mark.slow
def test_losses_are_of_exactly_so_many_tokens_before_the_target(x64):
    """Catches: a context that is one token off, rows past the end that count, a batch in another order."""
    config = tiny.config(
        model={"memory_len": 4, "compute_dtype": "float64"},
        data={"objective": "clm", "segment_len": 4, "reuse_len": 4, "num_predict": 4},
        evaluation={"batch_size": 8},
    )
    recipe = make_recipe(config)
    params = nn.meta.unbox(states.init_params(recipe))
    words = tiny.Words(100, seed=5)
    windows_NX = effective_context.windows(tiny.mixture(words), 9, 11)
    starts = np.arange(11) * 92 // 11
    np.testing.assert_array_equal(windows_NX, words.text[starts[:, None] + np.arange(9)])
    with pytest.raises(BadInput, match="has 100 tokens, but a window needs 101"):
        effective_context.windows(tiny.mixture(words), 101, 11)
    alone = jax.jit(functools.partial(sliding.window_nll, recipe.model, slots=1))
    expected = alone(params, windows_NX[:, -4:])[:, 0]
    mesh = meshes.make_mesh(MeshConfig(), jax.devices()[:4])
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
        found = effective_context.losses(recipe, mesh, placed, windows_NX, (3,))
    np.testing.assert_allclose(found, expected[None], rtol=1e-12)
