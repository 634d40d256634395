"""Laws of the unknown positions, and text that no row may see: that of a later step."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.batch import Memory
from xlnet_jax.data.batches import examples, orders
from xlnet_jax.data.batches.stream import ShuffledBlocks, Stream, extend_plan
from xlnet_jax.errors import BadInput
from xlnet_jax.train.recipe import make_recipe

DISTRIBUTIONS = ("uniform", "left_within")
WHOLE = {"segment_len": 32, "reuse_len": 32, "num_predict": 32}
STEPS = 4
ROWS = np.arange(8)


def config(distribution="uniform", **data):
    return tiny.config(data={"factorization_order": distribution, **WHOLE, **data})


def drawn(rows, length, distribution, seed=0):
    return orders.DISTRIBUTIONS[distribution].ranks(
        np.random.default_rng(seed).random((rows, 1 + length)), length
    )


def located(config):
    """The windows of every step of the first blocks, some of them reversed."""
    data = config.data
    stream = Stream(
        (ShuffledBlocks(tiny.words().tokens, data.reuse_len, data.windows_per_block, 1),),
        data.bidirectional,
    )
    plan = extend_plan((), 0, len(ROWS), data.windows_per_block)
    return [stream.locate(step, ROWS, plan) for step in range(STEPS)]


def built(config, text):
    return [
        examples.build(
            examples.ExampleBuilder(text, text.tokenizer, config, where, "train", step, ROWS)
        )
        for step, where in enumerate(located(config))
    ]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_number_of_unknown_positions_is_uniform_from_one_to_all(distribution):
    T, rows = 8, 40_000
    ranks = drawn(rows, T, distribution)
    unknown = ranks >= 0
    size = unknown.sum(axis=1, keepdims=True)
    shares = np.bincount(size[:, 0], minlength=T + 1) / rows
    np.testing.assert_allclose(shares, [0] + [1 / T] * T, atol=0.01)
    assert shares[0] == 0
    # Any position as often as any other: (T + 1) / 2 of T on average.
    np.testing.assert_allclose(unknown.mean(axis=0), (T + 1) / (2 * T), atol=0.01)
    # A target that sees k tokens is as frequent as k + 1.
    seen = (T - size + ranks)[unknown]
    expected = np.arange(1, T + 1) / (T * (T + 1) / 2)
    np.testing.assert_allclose(np.bincount(seen, minlength=T) / len(seen), expected, atol=0.01)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_smallest_and_the_largest_draw_give_one_unknown_position_and_all(distribution):
    fewest = np.append(0, np.linspace(0, 0.9, 8))[None]
    most = np.append(np.nextafter(1, 0), fewest[0, 1:])[None]
    ranks = orders.DISTRIBUTIONS[distribution].ranks
    assert (ranks(fewest, 8) >= 0).sum() == 1 and (ranks(most, 8) >= 0).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_known_positions_have_rank_minus_one_and_the_others_consecutive_ones(distribution):
    for rank in drawn(200, 12, distribution):
        assert sorted(rank[rank >= 0]) == list(range((rank >= 0).sum()))
        assert set(rank[rank < 0]) <= {-1}
        assert distribution == "uniform" or (np.diff(rank[rank >= 0]) == 1).all()


def test_every_set_is_as_frequent_as_any_other_of_its_size_and_every_order():
    seen: dict = {}
    for rank in drawn(60_000, 4, "uniform"):
        order = tuple(np.argsort(rank)[(rank < 0).sum() :])
        seen[order] = seen.get(order, 0) + 1
    for size in range(1, 5):
        every = list(itertools.permutations(range(4), size))
        shares = np.array([seen[order] for order in every]) / (60_000 / 4)
        assert abs(shares * len(every) - 1).max() < 0.2, size


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_batch_is_one_window_and_predicts_what_is_unknown(distribution):
    text, plain = tiny.words(), config(distribution)
    sizes = set()
    for where, batch in zip(located(plain), built(plain, text), strict=True):
        for row in range(len(ROWS)):
            at = where.cursor_B[row] + where.direction_B[row] * np.arange(32)
            assert (batch.tokens[row] == text.text[at % text.tokens]).all()
            unknown = np.flatnonzero(batch.rank[row] >= 0)
            sizes.add(len(unknown))
            slots = np.pad(unknown, (0, 32 - len(unknown)))
            used = np.arange(32) < len(unknown)
            np.testing.assert_array_equal(batch.target_positions[row], slots)
            np.testing.assert_array_equal(batch.target_weights[row], used)
            tokens = batch.target_tokens[row][used]
            np.testing.assert_array_equal(tokens, batch.tokens[row][unknown])
        assert (batch.direction == where.direction_B).all() and {1, -1} == set(batch.direction)
        assert not batch.segments.any() and not batch.label_weight.any()
    assert len(sizes) > 15, "rows have different numbers of unknown positions"


def test_a_row_depends_on_seed_name_step_and_row_alone():
    text, where = tiny.words(), located(config())[1]

    def rank(rows=ROWS, name="train", step=1, seed=1):
        changed = config().changed(seeds={"data": seed})
        windows = where.take(rows)
        builder = examples.ExampleBuilder(text, text.tokenizer, changed, windows, name, step, rows)
        return examples.build(builder).rank

    together = rank()
    np.testing.assert_array_equal(together[[6, 2]], rank(np.array([6, 2])))
    assert len(np.unique(together, axis=0)) == len(ROWS)
    for other in (rank(name="heldout"), rank(step=2), rank(seed=2)):
        assert not (other == together).all(axis=1).any()


@functools.cache
def _program(reuse_len):
    changed = config().changed(data={"reuse_len": reuse_len})
    recipe, params = make_recipe(changed), tiny.params(changed)

    @jax.jit
    def after(memory, batch):
        return recipe.model.transformer.apply({"params": params}, batch, memory).memory

    return recipe.empty_memory(len(ROWS)), after


def seen_ahead(config, step):
    """What of `step` and its memory changes with the text after the windows of that step: `batch`,
    `memory`.
    """
    text, where, R = tiny.words(), located(config)[step], config.data.reuse_len
    changed = tiny.Words()
    kept = np.zeros(text.tokens, bool)
    for cursor, direction in zip(where.cursor_B, where.direction_B, strict=True):
        # All that the row has read since its memory was empty.
        read = cursor + direction * np.arange(-step * R, R)
        kept[read % text.tokens] = True
    other = 9 + (text.text - 8) % (tiny.VOCAB - 9)
    changed.text = np.where(kept, text.text, other).astype(np.int32)
    assert 0 < kept.mean() < 1 and (changed.text != text.text)[~kept].all()
    empty, after = _program(R)
    memories: list[Memory] = [empty, empty]
    pairs = list(zip(built(config, text), built(config, changed), strict=True))[: step + 1]
    for batches in pairs:
        memories = [after(memory, batch) for memory, batch in zip(memories, batches, strict=True)]
    found = {"batch": pairs[-1], "memory": [memory.hidden_LBMD for memory in memories]}
    return {
        name
        for name, both in found.items()
        if any((a != b).any() for a, b in zip(*map(jax.tree.leaves, both), strict=True))
    }


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_nothing_that_enters_the_memory_has_seen_text_of_a_later_step(distribution):
    for step in range(STEPS):
        assert not seen_ahead(config(distribution), step)


def test_what_looks_ahead_is_found():
    # Ranked as a whole, but only the first half is fresh: it has seen the second, which is text of
    # the next step.
    half = config().changed(data={"reuse_len": 16})
    assert seen_ahead(half, 1) == {"batch", "memory"}
    # XLNet's example looks ahead as well, but with ranks that keep it out of the memory.
    assert seen_ahead(dataclasses.replace(half, data=tiny.config().data), 1) == {"batch"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"factorization_order": "uniform", **WHOLE, "reuse_len": 16}},
            "data.reuse_len=16 must be data.segment_len = 32 with data.factorization_order=uniform",
        ),
        (
            {"data": {"factorization_order": "left_within", **WHOLE, "num_predict": 6}},
            "data.num_predict=6 must be data.segment_len = 32 with",
        ),
        (
            {"data": {"factorization_order": "uniform", **WHOLE, "objective": "clm"}},
            "data.factorization_order=uniform is for pretraining with data.objective=plm",
        ),
        (
            {"data": {"factorization_order": "uniform"}, "finetune": {"task": "classification"}},
            "data.factorization_order=uniform is for pretraining with data.objective=plm",
        ),
        (
            {
                "data": {"factorization_order": "uniform", **WHOLE},
                "compat": {"switches": "piece_spans,static_targets"},
            },
            "must leave out piece_spans, static_targets with .*data.factorization_order=uniform",
        ),
    ],
)
def test_what_does_not_fit_an_order_distribution_is_refused_in_one_line(changes, message):
    with pytest.raises(BadInput, match=message) as raised:
        tiny.config(**changes)
    assert "conflicts" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_distribution_needs_no_more_text_than_a_segment_and_is_frozen():
    text = tiny.Words(32)
    examples.check_length(text, config(), "the heldout split")
    text.tokens = 31
    with pytest.raises(BadInput, match="the heldout split has 31 tokens, but a segment needs 32"):
        examples.check_length(text, config(), "the heldout split")
    saved = configs.flat(tiny.config())
    (changed, *_) = configs.changed_keys(config(), saved, configs.FROZEN)
    assert changed == "data.factorization_order: 'spans' -> 'uniform'"
