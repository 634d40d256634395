"""A left-to-right model: no parameters for segments and queries, and equal attention lengths."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import Batch, Memory, forward_text
from xlnet_jax.config import ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.model import positions
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import example_batch

B, T, M = 2, 6, 4
CONFIG = ModelConfig(
    vocab_size=30,
    layers=2,
    d_model=8,
    heads=2,
    head_dim=4,
    d_ff=16,
    memory_len=M,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.5,
    compute_dtype="float64",
    activation="relu",
)
CLM = {"objective": "clm", "segment_len": T, "reuse_len": T, "num_predict": T}


def make_batch() -> Batch:
    tokens = np.random.default_rng(0).integers(9, 30, (B, T + 1)).astype(np.int32)
    order = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    return dataclasses.replace(
        example_batch(tiny.config(data=CLM), B),
        tokens=tokens[:, :-1],
        target_tokens=tokens[:, 1:],
        rank=order,
        target_positions=order,
        target_weights=np.ones((B, T), np.float32),
        direction=np.array([1, -1], np.int32),
        continues=np.ones(B, bool),
    )


def make_memory(layers: int = 2) -> Memory:
    hidden = np.random.default_rng(1).standard_normal((layers, B, M, 8))
    return Memory(jnp.asarray(hidden), jnp.asarray([M, 2]))


def make_model(objective: str = "clm", **changes) -> LanguageModel:
    return LanguageModel(
        XLNet(dataclasses.replace(CONFIG, **changes), None, objective=OBJECTIVES[objective])
    )


def make_params(model: LanguageModel) -> dict:
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: nn.meta.unbox(model.init(jax.random.key(0), make_batch())))
    return jax.tree.map(lambda x: jnp.asarray(0.5 * rng.standard_normal(x.shape)), shapes)


@pytest.mark.parametrize("biases_per_layer", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_model_without_segments_is_the_one_with_a_single_segment(biases_per_layer, x64):
    """Catches a segment term that is left in, and a parameter more or less than the three that have
    no effect.
    """
    full, plain = (make_model(name, biases_per_layer=biases_per_layer) for name in ("mlm", "clm"))
    params, batch, memory = make_params(full), make_batch(), make_memory()
    left = {
        k: dict(v) if isinstance(v, dict) else v for k, v in params.items() if k != "mask_embedding"
    }
    left["layers"]["attention"] = {
        k: v for k, v in left["layers"]["attention"].items() if not k.startswith("segment_")
    }
    left.get("biases", {}).pop("segment_bias", None)
    assert jax.tree.structure(make_params(plain)) == jax.tree.structure(left)
    run = jax.jit(
        lambda params, left: (
            full.row_losses(params, batch, memory),
            plain.row_losses(left, batch, memory),
        )
    )
    theirs, ours = run(params, left)
    np.testing.assert_allclose(ours.sums["tokens"][0], theirs.sums["tokens"][0], rtol=1e-12)
    np.testing.assert_allclose(
        ours.memory.hidden_LBMD, theirs.memory.hidden_LBMD, rtol=1e-11, atol=1e-12
    )


def test_with_same_length_each_query_sees_the_memory_len_newest_positions(x64):
    model = make_model(layers=1, same_length=True).transformer
    params, batch, memory = make_params(LanguageModel(model)), make_batch(), make_memory(1)

    def vectors(h_BMD, table):
        given = params | {"word_embedding": table}
        new = Memory(h_BMD[None], memory.valid_B)
        return model.apply({"params": given}, batch, new).hidden_BTD[0]  # type: ignore[union-attr]

    d_memory, d_table = jax.jit(jax.jacrev(vectors, argnums=(0, 1)))(
        memory.hidden_LBMD[0], params["word_embedding"]
    )
    of_slots = np.abs(d_memory[:, :, 0]).max(axis=(1, 3))
    for query, token in enumerate(batch.tokens[0]):
        keys = np.arange(M + T)
        seen = (keys <= M + query) & (keys > query)
        assert seen.sum() == M
        np.testing.assert_array_equal(of_slots[query] > 0, seen[:M])
        moved = np.abs(d_table[query]).max(axis=(0, 2)) > 0
        assert set(np.flatnonzero(moved)) == set(batch.tokens[0][np.flatnonzero(seen[M:])]) | {
            token
        }


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_text_in_two_segments_is_the_text_in_one(norm, x64):
    """A memory that holds the whole past is the past: it is normed as its text is, once."""
    model = make_model(norm=norm, memory_len=T).transformer
    params = make_params(LanguageModel(model))
    tokens = np.random.default_rng(2).integers(9, 30, (B, 2 * T)).astype(np.int32)

    @jax.jit
    def run(tokens_BT, memory):
        rank_BT = np.broadcast_to(np.arange(tokens_BT.shape[1], dtype=np.int32), tokens_BT.shape)
        batch = forward_text(
            tokens_BT, rank_BT, np.zeros_like(rank_BT), np.zeros((B, 1), np.int32), continues=True
        )
        out = model.apply({"params": params}, batch, memory)
        return out.hidden_BTD, out.memory  # type: ignore[union-attr]

    first_BTD, memory = run(tokens[:, :T], empty_memory(model.config, B))
    second_BTD, _ = run(tokens[:, T:], memory)
    whole_BTD, _ = run(tokens, empty_memory(model.config, B))
    np.testing.assert_allclose(
        jnp.concatenate([first_BTD, second_BTD], axis=1), whole_BTD, rtol=1e-9, atol=1e-12
    )
    alone_BTD, _ = run(tokens[:, T:], empty_memory(model.config, B))
    assert np.abs(alone_BTD - second_BTD).max() > 0.01, "the memory has no effect"


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            {"memory_len": 0, "same_length": True},
            CLM,
            "model.same_length=True needs a memory: .* model.memory_len=0",
        ),
        ({"same_length": True}, {}, "model.same_length=True needs data.objective=clm"),
        ({"norm": "Pre"}, {}, "model.norm='Pre' is not one of post, pre"),
        (
            {"architecture": "transformer_xl"},
            {},
            "objective=plm is not for model.architecture=transformer_xl",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(model, data, message):
    with pytest.raises(BadInput, match=message):
        tiny.config(model=model, data=data)


def test_sinusoids_at_the_input_are_those_of_the_paper(x64):
    """sin and cos in turns, of pairs with the wave lengths 2 pi and 200 pi; the fault: halves, or
    cosine first.
    """
    wanted = [
        [0, 1, 0, 1],
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337],
    ]
    found_BTD = positions.absolute_sinusoids(jnp.array([[0, 1, 3]]), 4, jnp.dtype("float64"))
    np.testing.assert_allclose(found_BTD[0], wanted, atol=1e-9)
