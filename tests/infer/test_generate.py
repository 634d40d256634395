"""Generation with a cache, against the model without one: segment by segment, with the memory of training."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import NEVER, Batch
from xlnet_jax.infer import generate
from xlnet_jax.infer.generate import Generator
from xlnet_jax.infer.sampling import Sampling
from xlnet_jax.model.transformer import empty_memory

T = 20
LENGTHS = (1, 3, 16, 20, 21, 47)
"""Of the prompts: one token, parts, a full segment, one more, several segments."""


def config(**model):
    base = tiny.config(data={"objective": "clm", "segment_len": T, "reuse_len": T, "num_predict": T})
    return dataclasses.replace(base, model=dataclasses.replace(base.model, **model))


def generator(config, batch_size=16, stop=None):
    """Of random parameters, large enough that the next token depends on all that is seen."""
    model = generate.left_to_right(config, "run")
    boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), segment([9], T)[0]))
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: (0.4 * random.standard_normal(x.shape)).astype(np.float32), nn.meta.unbox(boxed))
    return Generator(model, params, T, stop, batch_size)


def segment(ids, length):
    """One part of one text, padded; every position is a target."""
    place, zero = np.arange(length, dtype=np.int32)[None], np.zeros(1, np.int32)
    tokens = np.zeros((1, length), np.int32)
    tokens[0, : len(ids)] = ids
    rank = np.where(place < len(ids), place, NEVER).astype(np.int32)
    weights = np.ones(place.shape, np.float32)
    return Batch(tokens, 0 * tokens, rank, zero + 1, zero == 0, place, tokens, weights, zero, zero, 0.0 * zero), rank


def uncached(made, ids):
    """Logits after every token of a text, [n, V]: the model as in training, without a cache."""
    model = made.model

    @jax.jit
    def run(params, batch, memory):
        out = model.transformer.apply({"params": params}, batch, memory, deterministic=True)
        return out.memory, model.logits(params, out.target_vectors_BPD)[0]

    memory, found = empty_memory(model.transformer.config, 1), []
    for start in range(0, len(ids), T):
        part = ids[start : start + T]
        memory, logits_TV = run(made.params, segment(part, T)[0], memory)
        found.append(np.asarray(logits_TV)[: len(part)])
    return np.concatenate(found)


def prompts(lengths=LENGTHS, seed=1):
    random = np.random.default_rng(seed)
    return [random.integers(9, tiny.VOCAB, length).tolist() for length in lengths]


MODELS = {
    "memory shorter than a segment": {"memory_len": 7},
    "longer, same length, pre-norm": {"memory_len": 33, "same_length": True, "norm": "pre", "scale_embedding": True},
    "as long, biases of each layer": pytest.param({"memory_len": T, "untie_biases": True}, marks=pytest.mark.slow),
    "same length, shorter": pytest.param({"memory_len": 7, "same_length": True}, marks=pytest.mark.slow),
    "none": pytest.param({"memory_len": 0}, marks=pytest.mark.slow),
    "distances clamped, layers shared": pytest.param(
        {"memory_len": 9, "clamp_len": 6, "share_layers": True}, marks=pytest.mark.slow
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_cached_equals_uncached(model, x64):
    """The logits after every new token, over three ends of segments; rows are at different places of theirs.

    Catches: a memory that rolls a slot too far or too late, keys of a token at a wrong distance, a row that sees the
    padding, the slots of an earlier segment, or another row.
    """
    made, steps = generator(config(compute_dtype="float64", **model)), 2 * T + 5
    texts = made._read(prompts(), 0, len(LENGTHS))
    logits, new = [np.asarray(texts.logits_BV)], []
    for _ in range(steps):
        texts, tokens_BC = generate._write(
            made.model, False, made.params, texts, Sampling(temperature=0.7), np.int32(1), None
        )
        logits.append(np.asarray(texts.logits_BV))
        new.append(tokens_BC[:, 0])
    assert logits[0].dtype == np.float64
    for row, ids in enumerate(prompts()):
        text = ids + [int(tokens_B[row]) for tokens_B in new]
        expected_SV = uncached(made, text)[len(ids) - 1 :]
        np.testing.assert_allclose(np.stack([each[row] for each in logits]), expected_SV, rtol=0, atol=1e-12)
    # The memory matters, so the comparison means something.
    if model != {"memory_len": 0}:
        alone_V = uncached(made, text[(len(text) - 1) // T * T :])[-1]
        assert np.abs(alone_V - expected_SV[-1]).max() > 1e-3
