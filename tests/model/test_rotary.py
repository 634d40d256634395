"""Rotary positions, windows and gated layers: both streams and the memory against a computation
position by position, and who depends on whom, by gradients. All in float64.
"""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import GATHERED

from xlnet_jax.batch import NEVER, Memory, forward_text
from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels import fused, tpu
from xlnet_jax.members import MEMBERS
from xlnet_jax.model.transformer import XLNet

B, T, R, P, M, V = 3, 9, 6, 4, 5, 31
SIZES = {
    "vocab_size": V,
    "d_model": 6,
    "heads": 2,
    "head_dim": 4,
    "d_ff": 5,
    "memory_len": M,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "unroll": "off",
}
# The layers after the last global one are fewer than a period, and all periods are odd.
CASES = {
    "windows": {"layers": 5, "window": 4, "global_every": 3, "theta": 90.0, "theta_local": 7.0},
    "wide": {"layers": 4, "window": 11, "global_every": 2, "theta": 3.0, "theta_local": 400.0},
    "global": {"layers": 2, "window": 0, "theta": 50.0, "theta_local": 2.0},
}


@functools.cache
def made(case, attention, dtype="float64"):
    """Configuration, parameters, and the compiled model: (batch, memory) to (content, query,
    memory).
    """
    usual = MEMBERS["modern"].usual(T)["model"]
    here = {"attention": attention, "compute_dtype": dtype}
    config = ModelConfig(**{**usual, **SIZES, **CASES[case], **here})
    model, rng = XLNet(config, R), np.random.default_rng(0)
    batch, memory = drawn(config, 0)
    shapes = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), batch, memory)["params"])
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.6 * rng.standard_normal(x.shape), shapes
    )

    @jax.jit
    def run(table, batch, memory):
        out = model.apply({"params": {**params, "word_embedding": table}}, batch, memory)
        return out.hidden_BTD, out.target_vectors_BPD, out.memory

    return config, params, run


def drawn(config, seed):
    """Rows with padding in front, both directions, and any number of valid slots of memory."""
    rng = np.random.default_rng(seed)
    tokens, rank = rng.integers(0, V, (B, T)), np.full((B, T), -1)
    at = np.sort([rng.choice(np.arange(2, T), P, replace=False) for _ in range(B)])
    np.put_along_axis(rank, at, np.argsort(rng.random((B, P))), axis=1)
    rank[0, : rng.integers(0, 3)] = NEVER
    batch = forward_text(*(x.astype(np.int32) for x in (tokens, rank, 0 * tokens, at)))
    batch = dataclasses.replace(
        batch,
        direction=rng.permutation([1, -1, -1]).astype(np.int32),
        continues=rng.random(B) < 0.8,
        target_weights=np.ones((B, P), np.float32),
    )
    hidden = rng.standard_normal((config.layers, B, M, config.d_model))
    return batch, Memory(jnp.asarray(hidden), jnp.asarray(rng.integers(0, M + 1, B), jnp.int32))


def normed(x, scale, epsilon):
    centred = x - sum(x) / len(x)
    return centred / math.sqrt(sum(centred**2) / len(x) + epsilon) * scale


def turned(x_HE, place, theta):
    """The pair (m, E / 2 + m) turned by the angle place theta^(-2m / E)."""
    half, found_HE = x_HE.shape[1] // 2, np.empty_like(x_HE)
    for m in range(half):
        angle = place * theta ** (-m / half)
        x, y = x_HE[:, m], x_HE[:, half + m]
        found_HE[:, m] = x * math.cos(angle) - y * math.sin(angle)
        found_HE[:, half + m] = x * math.sin(angle) + y * math.cos(angle)
    return found_HE


def is_global(config, layer):
    return config.window == 0 or layer % config.global_every == 0


def in_window(config, layer, one, other):
    return is_global(config, layer) or abs(one - other) <= config.window // 2


def seen(config, batch, valid, row, layer):
    """The slots of memory and text, -M to T - 1, that each position of the content stream sees, and
    each target.
    """
    rank = batch.rank[row]
    first = -int(valid[row] * batch.continues[row])

    def of(place, highest):
        keys = [*range(first, 0), *(key for key in range(T) if rank[key] <= highest)]
        keys = [key for key in keys if key < 0 or rank[key] != NEVER]
        return [key for key in keys if in_window(config, layer, place, key)]

    content = [of(place, rank[place]) for place in range(T)]
    return content, [of(place, rank[place] - 1) for place in batch.target_positions[row]]


def layer_by_hand(config, params, layer, streams, of_memory, direction, visible):
    """Both streams after a layer; `of_memory` are the M vectors before it."""
    own = jax.tree.map(lambda x: np.asarray(x)[layer], params["layers"])
    attention, feed_forward = own["attention"], own["feed_forward"]
    theta = config.theta if is_global(config, layer) else config.theta_local

    def first_normed(x):
        scale = attention["norm"]["scale"]
        return x if layer == 0 else normed(x, scale, config.layer_norm_epsilon)

    def heads(name, x):
        return np.einsum("d,dhe->he", x, attention[name])

    keys, values = {}, {}
    for slot in range(-M, T):
        y = first_normed(of_memory[slot + M] if slot < 0 else streams[0][slot][1])
        keys[slot] = turned(heads("key", y), direction * slot, theta)
        values[slot] = heads("value", y)

    def after(place, x, slots):
        q_HE = turned(heads("query", first_normed(x)), direction * place, theta)
        found_HE = np.zeros_like(q_HE)
        for head in range(config.heads):
            score = {slot: q_HE[head] @ keys[slot][head] / config.head_dim**0.5 for slot in slots}
            weight = {slot: math.exp(each - max(score.values())) for slot, each in score.items()}
            for slot in slots:
                found_HE[head] += weight[slot] / sum(weight.values()) * values[slot][head]
        x = x + np.einsum("he,dhe->d", found_HE, attention["output"])
        y = normed(x, feed_forward["norm"]["scale"], config.layer_norm_epsilon)
        inner = y @ feed_forward["inner"]["kernel"]
        active = np.array([0.5 * z * (1 + math.erf(z / math.sqrt(2))) for z in inner])
        gated = active * (y @ feed_forward["gate"]["kernel"])
        return x + gated @ feed_forward["outer"]["kernel"]

    return [
        [(place, after(place, x, slots)) for (place, x), slots in zip(stream, sees, strict=True)]
        for stream, sees in zip(streams, visible, strict=True)
    ]


def by_hand(config, params, batch, memory, row):
    """Content, query and memory of a row after the last layer, from the formulas."""
    epsilon, valid = config.layer_norm_epsilon, np.asarray(memory.valid_B)
    words = np.asarray(params["word_embedding"])[batch.tokens[row]]
    scale = params["embedding_norm"]["scale"]
    streams = [
        [(place, normed(x, scale, epsilon)) for place, x in enumerate(words)],
        [(place, params["mask_embedding"]) for place in batch.target_positions[row]],
    ]
    kept = []
    for layer in range(config.layers):
        filled = np.arange(M) >= M - valid[row] * batch.continues[row]
        of_memory = np.asarray(memory.hidden_LBMD)[layer, row] * filled[:, None]
        kept.append([*of_memory, *(x for _, x in streams[0][:R])][-M:])
        visible = seen(config, batch, valid, row, layer)
        direction = int(batch.direction[row])
        streams = layer_by_hand(config, params, layer, streams, of_memory, direction, visible)
    scale = params["final_norm"]["scale"]
    return *([normed(x, scale, epsilon) for _, x in stream] for stream in streams), kept


@pytest.mark.parametrize(
    ("case", "attention"),
    [("windows", "xla"), ("wide", "cpu"), pytest.param("global", "xla", marks=pytest.mark.slow)],
)
def test_both_streams_and_the_memory_are_those_of_the_formulas(case, attention, x64):
    """Two segments, of which the second reads the memory of the first."""
    config, params, run = made(case, attention)
    for seed in range(4):
        batch, memory = drawn(config, seed)
        for _ in range(2):
            content, query, after = run(params["word_embedding"], batch, memory)
            for row in range(B):
                expected = by_hand(config, params, batch, memory, row)
                found = content[row], query[row], after.hidden_LBMD[:, row]
                for x, y in zip(found, expected, strict=True):
                    np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)
            memory, (batch, _) = after, drawn(config, seed + 100)


@pytest.mark.slow
def test_the_kernel_computes_both_streams_and_their_gradient(monkeypatch):
    """In float32, with a window in some layers, beside `xla`."""
    monkeypatch.setitem(fused.KERNELS, "cpu", GATHERED)
    monkeypatch.setattr(tpu, "HEAD_DIMS", (128,))
    found = []
    for attention in ("xla", "fused"):
        config, params, run = made("windows", attention, "float32")

        def projected(table, batch, memory, run=run):
            content, query, _ = run(table, batch, memory)
            return jnp.sin(content).sum() + jnp.sin(query).sum(), (content, query)

        both = jax.jit(jax.value_and_grad(projected, has_aux=True))
        found.append(both(np.float32(params["word_embedding"]), *drawn(config, 1)))
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * np.abs(y).max())


def reached(config, batch, memory, row):
    """What content and targets depend on: content [T, T] and targets [P, T] on tokens; targets on
    each slot of the memory of each layer, [P, L, M]. By steps from layer to layer.
    """
    valid = np.asarray(memory.valid_B)
    text_TK, of_targets_PK = np.eye(T, dtype=bool), np.zeros((P, T), bool)
    memory_TLM = np.zeros((T, config.layers, M), bool)
    memory_PLM = np.zeros((P, config.layers, M), bool)
    for layer in range(config.layers):
        before = text_TK.copy(), memory_TLM.copy()
        visible = seen(config, batch, valid, row, layer)
        for slots, text, of_memory in zip(
            visible, (text_TK, of_targets_PK), (memory_TLM, memory_PLM), strict=True
        ):
            for number, keys in enumerate(slots):
                for key in keys:
                    if key < 0:
                        of_memory[number, layer, M + key] = True
                    else:
                        text[number] |= before[0][key]
                        of_memory[number] |= before[1][key]
    return text_TK, of_targets_PK, memory_PLM


def test_nothing_depends_on_what_it_does_not_see(x64):
    """A target on itself, a later rank, or a key outside of the window, in the text or in the
    memory: its gradient is exactly 0. All other gradients are not 0.
    """
    config, params, run = made("windows", "xla")
    compared = 0
    for seed in range(3):
        batch, memory = drawn(config, seed)
        rng = np.random.default_rng(seed)
        tokens = np.stack([rng.permutation(V)[:T] for _ in range(B)]).astype(np.int32)
        batch = dataclasses.replace(batch, tokens=tokens)
        jacobian = of_table(run, config)(params["word_embedding"], batch, memory)
        for row in range(B):
            of_tokens, of_memory = (
                [np.abs(x[row]).max(axis=-1) != 0 for x in each] for each in jacobian
            )
            expected = reached(config, batch, memory, row)
            for found, wanted in zip(of_tokens, expected[:2], strict=True):
                np.testing.assert_array_equal(found[:, tokens[row]], wanted)
            np.testing.assert_array_equal(of_memory[1][:, :, row], expected[2])
            rank, at = batch.rank[row], batch.target_positions[row]
            assert not expected[1][rank[at][:, None] <= rank[None]].any()
            compared += int((~expected[2]).sum())
    assert compared > 50, "every slot of the memory is seen"


@functools.cache
def of_table(run, config):
    """The derivatives of a projection of each vector, by the table and by the memory."""
    direction = jnp.asarray(np.random.default_rng(9).standard_normal(config.d_model))

    def projected(table, hidden, batch, valid):
        content, query, _ = run(table, batch, Memory(hidden, valid))
        return content @ direction, query @ direction

    both = jax.jit(jax.jacrev(projected, argnums=(0, 1)))

    def compute(table, batch, memory):
        found = both(table, memory.hidden_LBMD, batch, memory.valid_B)
        return list(zip(*jax.device_get(found), strict=True))

    return compute
