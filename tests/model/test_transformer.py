"""The model: who depends on whom (by gradients, in float64), its memory, shared layers, remat."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels import xla
from xlnet_jax.model import attention
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.train.loss import LanguageModel, mean_loss

B, T, R, P, M = 2, 12, 6, 4, 5
CONFIG = ModelConfig(
    vocab_size=60,
    layers=2,
    d_model=16,
    heads=2,
    head_dim=8,
    d_ff=24,
    memory_len=M,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.5,
    compute_dtype="float64",
)
MODEL = LanguageModel(XLNet(CONFIG, R))


def make_batch() -> Batch:
    """Every position of a row has a token of its own, so that a gradient tells positions apart."""
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(np.arange(9, 60))[:T] for _ in range(B)]).astype(np.int32)
    target = np.zeros((B, T), bool)
    for row in range(B):
        target[row, rng.choice(R, 2, replace=False)] = True
        target[row, R + rng.choice(T - R - 1, 2, replace=False)] = True
    order = np.concatenate([rng.random((B, n)).argsort(axis=1) for n in (R, T - R)], axis=1)
    rank = np.where(target, order, -1)
    rank[:, -1] = order[:, -1]  # a CLS: in the order, but no target
    rank[:, R:] += R + 1
    at = np.stack([np.flatnonzero(row) for row in target]).astype(np.int32)
    return Batch(
        tokens=tokens,
        segments=np.repeat([0, 1, 2], [R + 3, T - R - 4, 1])[None].repeat(B, 0).astype(np.int32),
        rank=rank.astype(np.int32),
        direction=np.array([1, -1], np.int32),
        continues=np.ones(B, bool),
        target_positions=at,
        target_tokens=np.take_along_axis(tokens, at, 1),
        target_weights=np.ones((B, P), np.float32),
        summary_position=np.full(B, T - 1, np.int32),
        label=np.zeros(B, np.int32),
        label_weight=np.zeros(B, np.float32),
    )


def make_memory(valid=(M, 3), slots=M) -> Memory:
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal((CONFIG.layers, B, slots, CONFIG.d_model))
    return Memory(jnp.asarray(hidden, CONFIG.compute_dtype), jnp.asarray(valid, jnp.int32))


@functools.cache
def make_params(config=CONFIG):
    """Parameters none of which sits at a value that hides its term, as biases of 0 and scales of 1
    would.
    """
    model = LanguageModel(XLNet(config, R))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), make_batch()))
    rng = np.random.default_rng(0)

    def draw(path, x):
        around = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(around + 0.4 * rng.standard_normal(x.shape), config.compute_dtype)

    return jax.tree_util.tree_map_with_path(draw, nn.meta.unbox(shapes))


@jax.jit
def run(params, batch, memory):
    return XLNet(CONFIG, R).apply({"params": params}, batch, memory)


def dependence(batch, of):
    """|d sum(projection of of(output)) / d embedding of position j|: [n, T] for row 0, n vectors of
    `of`.
    """
    params, memory = make_params(), make_memory()
    direction = jax.random.normal(jax.random.key(9), (CONFIG.d_model,), jnp.float64)

    def projected(table):
        return of(run({**params, "word_embedding": table}, batch, memory)) @ direction

    jacobian = jax.jit(jax.jacrev(projected))(params["word_embedding"])
    return np.abs(jacobian[:, batch.tokens[0]]).max(axis=-1)


def test_a_target_depends_on_exactly_the_lower_ranks(x64):
    batch = make_batch()
    moved = dependence(batch, lambda out: out.target_vectors_BPD[0])
    rank = batch.rank[0]
    for slot, position in enumerate(batch.target_positions[0]):
        lower = rank < rank[position]
        assert (moved[slot][~lower] == 0).all(), "a target sees itself or a later rank"
        assert (moved[slot][lower] > 1e-8).all(), "a target does not see an earlier rank"


def test_a_content_position_depends_on_exactly_its_own_and_lower_ranks(x64):
    batch = make_batch()
    moved = dependence(batch, lambda out: out.hidden_BTD[0])
    rank = batch.rank[0]
    for position in range(T):
        lower = rank <= rank[position]
        assert (moved[position][~lower] == 0).all()
        assert (moved[position][lower] > 1e-8).all()


def test_without_valid_slots_the_memory_is_as_if_there_were_none(x64):
    params, batch, memory = make_params(), make_batch(), make_memory(valid=(0, 0))
    none = empty_memory(dataclasses.replace(CONFIG, memory_len=0), B)
    without = run(params, batch, none)
    with_empty = run(params, batch, memory)
    np.testing.assert_allclose(with_empty.hidden_BTD, without.hidden_BTD, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        with_empty.target_vectors_BPD, without.target_vectors_BPD, rtol=0, atol=1e-12
    )
    filled = run(params, batch, make_memory(valid=(M, M)))
    assert np.abs(filled.hidden_BTD - without.hidden_BTD).max() > 1e-3, (
        "the memory has no effect at all"
    )


def test_memory_is_the_newest_layer_inputs_right_aligned(x64):
    params, batch, memory = make_params(), make_batch(), make_memory(valid=(2, 9), slots=9)
    found = run(params, batch, memory).memory
    embedded = params["word_embedding"][batch.tokens]
    joined = jnp.concatenate([memory.hidden_LBMD[0], embedded[:, :R]], axis=1)
    assert np.asarray(found.valid_B).tolist() == [2 + R, 9]
    for row, filled in enumerate((2 + R, 9)):
        np.testing.assert_array_equal(found.hidden_LBMD[0, row, -filled:], joined[row, -filled:])


def test_a_row_that_does_not_continue_leaves_no_more_than_its_own_text(x64):
    """Its memory is hidden, and stays so: or text of another document would become visible one step
    later. The memory is longer than the reuse window.
    """
    params, memory = make_params(), make_memory(valid=(9, 9), slots=9)
    other = Memory(memory.hidden_LBMD.at[:, 1].add(1.0), memory.valid_B)
    jump = dataclasses.replace(make_batch(), continues=np.array([True, False]))
    on = dataclasses.replace(jump, continues=np.ones(B, bool))
    once = run(params, jump, memory)
    assert np.asarray(once.memory.valid_B).tolist() == [9, R]
    then, changed = (run(params, on, run(params, jump, each).memory) for each in (memory, other))
    np.testing.assert_array_equal(then.hidden_BTD, changed.hidden_BTD)
    moved = run(params, on, run(params, on, other).memory)
    assert np.abs(moved.hidden_BTD[1] - then.hidden_BTD[1]).max() > 1e-3, (
        "the memory has no effect at all"
    )


def test_a_nan_in_slots_that_nobody_may_see_reaches_nobody(x64):
    params = make_params()
    batch = dataclasses.replace(make_batch(), continues=np.array([True, False]))
    clean = make_memory(valid=(3, M))
    poisoned = Memory(
        clean.hidden_LBMD.at[:, 1].set(jnp.nan).at[:, 0, : M - 3].set(jnp.nan), clean.valid_B
    )

    def loss(p, memory):
        out = run(p, batch, memory)
        return jnp.sum(out.target_vectors_BPD) + jnp.sum(out.hidden_BTD), out

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    expected, found = gradient(params, clean), gradient(params, poisoned)
    assert np.isfinite(expected[0][0])
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_gradient_flows_into_the_memory_it_hands_on(x64):
    params, batch, memory = make_params(), make_batch(), make_memory()
    grads = jax.jit(jax.grad(lambda p: jnp.sum(run(p, batch, memory).memory.hidden_LBMD ** 2)))(
        params
    )
    assert all(not np.any(g) for g in jax.tree.leaves(grads))


def test_shared_layers_equal_separate_ones_that_are_copies(x64):
    config = dataclasses.replace(CONFIG, share_layers=True)
    model, shared = LanguageModel(XLNet(config, R)), make_params(config)
    stacked = {
        **shared,
        "layers": jax.tree.map(lambda x: jnp.stack([x] * CONFIG.layers), shared["layers"]),
    }
    batch, memory = make_batch(), make_memory()

    def gradient(model):
        return jax.jit(
            jax.value_and_grad(lambda p: mean_loss(p, model, batch, memory), has_aux=True)
        )

    (loss, aux), grads = gradient(model)(shared)
    (expected, expected_aux), separate = gradient(MODEL)(stacked)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(
        aux.memory.hidden_LBMD, expected_aux.memory.hidden_LBMD, rtol=0, atol=1e-12
    )
    assert all(
        np.abs(x[0] - x[1]).max() > 0 for x in jax.tree.leaves(separate["layers"]["attention"])
    )
    summed = separate | {"layers": jax.tree.map(lambda x: x.sum(axis=0), separate["layers"])}
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(summed), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("remat", "unroll", "rngs", "expected"),
    [
        ("none", "on", ("dropout",), True),
        ("none", "on", (), False),
        ("none", "off", ("dropout",), False),
        ("dots", "on", ("dropout",), False),
    ],
)
def test_a_kernel_keeps_probabilities_in_training_without_loop_and_remat(
    remat, unroll, rngs, expected, monkeypatch
):
    """Elsewhere they would be written for nothing, copied into a stack, or kept against the
    configuration.
    """
    asked = []

    def attend(a):
        asked.append(a.save)
        return xla.attend(a)

    monkeypatch.setitem(attention.IMPLEMENTATIONS, "xla", attend)
    config = dataclasses.replace(
        CONFIG, compute_dtype="float32", attention="xla", remat=remat, unroll=unroll
    )
    model, batch, params = XLNet(config, R), make_batch(), make_params(config)
    keys = dict.fromkeys(rngs, jax.random.key(0))
    asked.clear()
    jax.eval_shape(
        lambda p: model.apply({"params": p}, batch, empty_memory(config, B), rngs=keys),
        params,
    )
    assert set(asked) == {expected}


@pytest.mark.parametrize(("remat", "unroll"), [("dots", "off"), ("full", "off"), ("full", "on")])
def test_remat_changes_memory_and_nothing_else(remat, unroll):
    """Without a loop the compiler would find what is computed twice, and keep it. (That for a CPU
    does so anyway.)
    """
    config = dataclasses.replace(CONFIG, compute_dtype="float32", layers=4, unroll=unroll)
    params, batch = make_params(config), make_batch()

    def compiled(policy):
        model = XLNet(dataclasses.replace(config, remat=policy), R)

        def loss(p):
            out = model.apply({"params": p}, batch, empty_memory(config, B))
            return jnp.sum(MODEL.nll(p, out.target_vectors_BPD, batch.target_tokens))

        traced = jax.jit(jax.grad(loss)).trace(params)
        return "prevent_cse=True" in str(traced.jaxpr), traced.lower().compile()

    (_, plain), (prevented, saving) = compiled("none"), compiled(remat)
    assert prevented == (unroll == "on")
    assert saving.memory_analysis().temp_size_in_bytes != plain.memory_analysis().temp_size_in_bytes
    for a, b in zip(jax.tree.leaves(plain(params)), jax.tree.leaves(saving(params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
