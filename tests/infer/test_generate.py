"""Generation with a cache, against the model without one: segment by segment, with the memory of training."""

import dataclasses
import re

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import NEVER, Batch
from xlnet_jax.data.tokenizer import EOD
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import generate
from xlnet_jax.infer.generate import Generator
from xlnet_jax.infer.sampling import Sampling
from xlnet_jax.model.transformer import empty_memory

T = 20
LENGTHS = (1, 3, 16, 20, 21, 47)
"""Of the prompts: one token, parts, a full segment, one more, several segments."""


def config(**model):
    base = tiny.config(data={"objective": "clm", "segment_len": T, "reuse_len": T, "num_predict": T})
    return base.changed(model=model)


def generator(config, batch_size=16, stop=None, mesh=None):
    """Of random parameters, large enough that the next token depends on all that is seen."""
    model = generate.left_to_right(config, "run")
    boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), segment([9], T)))
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: (0.4 * random.standard_normal(x.shape)).astype(np.float32), nn.meta.unbox(boxed))
    if mesh is not None:
        params = jax.device_put(params, meshes.shardings(boxed, mesh))
    return Generator(model, params, T, stop, batch_size)


def segment(ids, length):
    """One part of one text, padded; every position is a target."""
    place, zero = np.arange(length, dtype=np.int32)[None], np.zeros(1, np.int32)
    tokens = np.zeros((1, length), np.int32)
    tokens[0, : len(ids)] = ids
    rank = np.where(place < len(ids), place, NEVER).astype(np.int32)
    weights = np.ones(place.shape, np.float32)
    return Batch(tokens, 0 * tokens, rank, zero + 1, zero == 0, place, tokens, weights, zero, zero, 0.0 * zero)


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
        memory, logits_TV = run(made.params, segment(part, T), memory)
        found.append(np.asarray(logits_TV)[: len(part)])
    return np.concatenate(found)


def prompts(lengths=LENGTHS, seed=1):
    random = np.random.default_rng(seed)
    return [random.integers(9, tiny.VOCAB, length).tolist() for length in lengths]


MODELS = {
    "memory shorter than a segment": {"memory_len": 7},
    "longer, same length, pre-norm": pytest.param(
        {"memory_len": 33, "same_length": True, "norm": "pre", "scale_embedding": True}, marks=pytest.mark.slow
    ),
    "as long, biases of each layer": pytest.param({"memory_len": T, "biases_per_layer": True}, marks=pytest.mark.slow),
    "same length, shorter": pytest.param({"memory_len": 7, "same_length": True}, marks=pytest.mark.slow),
    "adaptive softmax": pytest.param({"memory_len": 7, "cutoffs": "50,120", "div_val": 2}, marks=pytest.mark.slow),
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
        (_, tokens_BC), texts = generate._write(
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


@pytest.fixture(scope="module")
def made():
    return generator(config(memory_len=7))


def test_same_seed_same_tokens_in_any_company(made):
    """Catches: a draw that depends on the row, the batch or the other prompts, and a row that reads another one."""
    first = made(prompts(), 30, Sampling(seed=3))
    assert made(prompts(), 30, Sampling(seed=3)) == first != made(prompts(), 30, Sampling(seed=4))
    assert {len(ids) for ids in first} == {30} and len(set(map(tuple, first))) == len(first)
    small = dataclasses.replace(made, batch_size=4)
    assert small(prompts(), 30, Sampling(seed=3)) == first
    others = prompts(seed=2)
    others[2] = prompts()[2]
    assert made(others, 30, Sampling(seed=3))[2] == first[2]
    # Equal prompts are different draws.
    assert len(set(map(tuple, made([[9, 10]] * 5, 8)))) == 5


def test_greedy_is_the_most_probable_token(made):
    new = made(prompts(), 24, Sampling(temperature=0))
    logits_SV = uncached(made, prompts()[3] + new[3])[LENGTHS[3] - 1 : -1]
    assert new[3] == logits_SV.argmax(axis=1).tolist()
    assert made(prompts(), 24, Sampling(top_k=1)) == made(prompts(), 24, Sampling(top_p=1e-6)) == new


def test_one_program_per_bucket(made):
    """Prompts of any length, any number of tokens and any temperature: two programs read, one writes.

    Catches: a shape or a type that depends on the prompts or on the sampling.
    """
    programs = generate._read, generate._write
    before = [program._cache_size() for program in programs]
    small = dataclasses.replace(made, batch_size=2)
    for length in (1, 2, 15, 16, 17, 19, 20, 21, 40, 57, 90):
        small(
            prompts([length] * (2 + length % 2)),
            1 + length % 19,
            Sampling(temperature=0 if length % 2 else 0.5, seed=length),
        )
    assert [program._cache_size() - count for program, count in zip(programs, before, strict=True)] == [2, 1]


def test_a_text_ends_with_its_stop_and_the_listener_hears_all(made):
    """Catches: a text that goes on after its end, or ends with another one, and tokens that are heard twice."""
    free = made(prompts(), 40, Sampling(temperature=0))
    stop = free[1][5]
    expected = [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in free]
    assert len(set(map(len, expected))) > 1
    heard, ends = [[] for _ in free], []

    def listen(number, new, ended):
        assert number not in ends
        heard[number] += new
        ends.extend([number] * ended)

    stopped = dataclasses.replace(made, stop=stop)(prompts(), 40, Sampling(temperature=0), listen)
    assert stopped == expected == heard and sorted(ends) == list(range(len(free)))


def test_an_empty_prompt_is_the_start_of_a_document(made):
    empty, given = made([[], [EOD], *prompts()[2:]], 9, Sampling(temperature=0))[:2]
    assert empty == given


@pytest.mark.slow
def test_sharded_equals_one_device(made):
    """Rows over `data`, heads and vocabulary over `tensor`: the same draws. Six prompts in eight rows."""
    settings = tiny.config(mesh={"data": 2, "tensor": 2}).mesh
    mesh = meshes.make_mesh(settings, jax.devices()[:4])
    greedy, drawn = Sampling(temperature=0), Sampling(top_k=9, seed=1)
    one = [made(prompts(), 25, sampling) for sampling in (greedy, drawn)]
    with jax.set_mesh(mesh):
        split = generator(config(memory_len=7), mesh=mesh)
        texts = split._read(prompts(), 0, 8)
        read, texts = generate._write(split.model, False, split.params, texts, greedy.arrays(), np.int32(9), None)
        assert all(x.is_fully_replicated for x in read) and not texts.place_B.is_fully_replicated
        k_LBHKE = texts.cache.layers.k_BHKE
        assert k_LBHKE.sharding.shard_shape(k_LBHKE.shape)[1:3] == (4, 1)
        assert [split(prompts(), 25, sampling) for sampling in (greedy, drawn)] == one


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 3), "no prompt; give at least one"),
        (([[9], [9, tiny.VOCAB]], 3), f"prompt 2: id {tiny.VOCAB} is outside of the vocabulary of {tiny.VOCAB}"),
        (([[-1]], 3), "prompt 1: id -1 is outside"),
        (([[9]], 0), "tokens=0 must be at least 1"),
        (([[9]], 3, Sampling(temperature=-0.1)), "temperature=-0.1 must be 0 "),
        (([[9]], 3, Sampling(temperature=float("nan"))), "temperature=nan must be 0 "),
        (([[9]], 3, Sampling(top_k=-1)), "top_k=-1 must be 0 "),
        (([[9]], 3, Sampling(top_k=2**31)), "top_k=2147483648 must be 0 "),
        (([[9]], 3, Sampling(top_p=0.0)), "top_p=0.0 must be above 0 and at most 1"),
        (([[9]], 3, Sampling(top_p=1.1)), "top_p=1.1 must be above 0 and at most 1"),
        (([[9]], 3, Sampling(seed=-1)), "seed=-1 must be from 0 to"),
    ],
)
def test_bad_input(made, arguments, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        made(*arguments)


def test_a_model_that_sees_both_sides_is_refused():
    with pytest.raises(BadInput, match="run was trained with data.objective=plm, and only a left-to-right model"):
        generate.left_to_right(tiny.config(), "run")
