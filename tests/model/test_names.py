"""Our parameter tree under the original's names: counts of the released models, and the way there and back."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.batch import Batch
from xlnet_jax.config import ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.model import names
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.train.loss import LanguageModel

SMALL = dict(vocab_size=11, layers=3, d_model=8, heads=2, head_dim=4, d_ff=12, memory_len=0, compute_dtype="float32")


def shapes_of(model: ModelConfig) -> dict:
    zeros, one = jnp.zeros((1, 4), jnp.int32), jnp.zeros(1, jnp.int32)
    batch = Batch(zeros, zeros, zeros, one + 1, one > 0, zeros[:, :2], zeros[:, :2], zeros[:, :2] * 1.0, one, one, one)
    key = jax.random.key(0)
    init = lambda: LanguageModel(XLNet(model)).init(key, batch)  # noqa: E731
    return nn.unbox(jax.eval_shape(init))


def random_params(model: ModelConfig) -> dict:
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: generator.normal(size=leaf.shape).astype(np.float32), shapes_of(model))


def test_shared_layers_have_no_name_there():
    with pytest.raises(BadInput, match="share_layers=True: the original's checkpoints have parameters of each layer"):
        names.official(random_params(ModelConfig(**SMALL, share_layers=True)))


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        (ModelConfig(), 319, 360_300_800),
        (ModelConfig(layers=12, d_model=768, heads=12, d_ff=3072), 163, 116_750_336),
    ],
    ids=["large", "base"],
)
def test_counts_are_those_of_the_released_models(model, tensors, parameters):
    official = jax.eval_shape(names.official, shapes_of(model))
    assert len(official) == tensors
    assert sum(math.prod(leaf.shape) for leaf in official.values()) == parameters


def test_names_and_shapes():
    official = names.official(random_params(ModelConfig(**SMALL)))
    expected = {
        "model/transformer/r_w_bias": (3, 2, 4),
        "model/transformer/seg_embed": (3, 2, 2, 4),
        "model/transformer/mask_emb/mask_emb": (1, 1, 8),
        "model/transformer/layer_2/rel_attn/o/kernel": (8, 2, 4),
        "model/transformer/layer_0/ff/layer_1/kernel": (8, 12),
        "model/transformer/layer_1/ff/LayerNorm/gamma": (8,),
        "model/lm_loss/bias": (11,),
    }
    assert {name: official[name].shape for name in expected} == expected


@pytest.mark.parametrize("untie_biases", [True, False])
def test_there_and_back(untie_biases):
    model = ModelConfig(**SMALL, untie_biases=untie_biases)
    params = random_params(model)
    official = names.official(params)
    assert official["model/transformer/r_s_bias"].ndim == (3 if untie_biases else 2)
    back = names.from_official(official | {"global_step": np.int64(7)}, shapes_of(model))
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_every_variable_has_its_own_values():
    """A name table with two equal right-hand sides would pass the round trip of its own half."""
    official = names.official(random_params(ModelConfig(**SMALL)))
    assert len({array.tobytes() for array in official.values()}) == len(official)


def test_layers_come_in_order():
    params = random_params(ModelConfig(**SMALL))
    official = names.official(jax.tree.map(jnp.asarray, params))
    for layer in range(3):
        np.testing.assert_array_equal(
            official[f"model/transformer/layer_{layer}/rel_attn/k/kernel"], params["layers"]["attention"]["key"][layer]
        )


def test_missing_and_misshapen_tensors_are_named():
    model = ModelConfig(**SMALL)
    official = names.official(random_params(model))
    missing = dict(official)
    del missing["model/transformer/layer_1/ff/layer_2/bias"]
    with pytest.raises(BadInput, match="layer_1/ff/layer_2/bias is missing"):
        names.from_official(missing, shapes_of(model))
    with pytest.raises(BadInput, match=r"r_r_bias has shape \(3, 2, 4\)"):
        names.from_official(official, shapes_of(ModelConfig(**SMALL, untie_biases=False)))
