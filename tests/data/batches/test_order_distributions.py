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
        np.random.default_rng(seed).random((rows, 1 + length))
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
        examples.build(text, text.tokenizer, config, where, name="train", step=step, rows=ROWS)
        for step, where in enumerate(located(config))
    ]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_number_of_unknown_positions_is_uniform_from_one_to_all(distribution):
    T, rows = 8, 40_000
    unknown = drawn(rows, T, distribution) >= 0
    counts = np.bincount(unknown.sum(axis=1), minlength=T + 1)
    assert counts[0] == 0
    assert abs(counts[1:] / rows - 1 / T).max() < 0.01
    # Any position as often as any other: (T + 1) / 2 of T on average.
    assert abs(unknown.mean(axis=0) - (T + 1) / (2 * T)).max() < 0.01
    # A target that sees k tokens is as frequent as k + 1.
    seen = (T - unknown.sum(axis=1, keepdims=True) + drawn(rows, T, distribution))[unknown]
    assert (
        abs(
            np.bincount(seen, minlength=T) / len(seen) - np.arange(1, T + 1) / (T * (T + 1) / 2)
        ).max()
        < 0.01
    )
    fewest, most = np.zeros((1, T + 1)), np.full((1, T + 1), np.nextafter(1, 0))
    fewest[:, 1:] = most[:, 1:] = np.linspace(0, 0.9, T)
    ranks = orders.DISTRIBUTIONS[distribution].ranks
    assert (ranks(fewest) >= 0).sum() == 1 and (ranks(most) >= 0).all()


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
    for where, batch in zip(located(plain), built(plain, text), strict=True):
        for row in range(len(ROWS)):
            cursor, direction = where.cursor_B[row], where.direction_B[row]
            at = (cursor + direction * np.arange(32)) % text.tokens
            assert (batch.tokens[row] == text.text[at]).all() and batch.direction[row] == direction
            unknown = np.flatnonzero(batch.rank[row] >= 0)
            used = batch.target_weights[row] == 1
            assert batch.target_positions[row][used].tolist() == unknown.tolist()
            assert batch.target_tokens[row][used].tolist() == batch.tokens[row][unknown].tolist()
            assert (
                not batch.target_weights[row][~used].any()
                and not batch.target_positions[row][~used].any()
            )
        assert not batch.segments.any() and not batch.label_weight.any()
        assert {1, -1} == set(batch.direction)
    sizes = {int(n) for batch in built(plain, text) for n in batch.target_weights.sum(axis=1)}
    assert len(sizes) > 15, "rows have different numbers of unknown positions"


def test_a_row_depends_on_seed_name_step_and_row_alone():
    text, plain = tiny.words(), config()
    where = located(plain)[1]

    def rank(rows, name="train", step=1, seed=1):
        changed = plain.changed(seeds={"data": seed})
        return examples.build(
            text, text.tokenizer, changed, where.take(rows), name=name, step=step, rows=rows
        ).rank

    together = rank(ROWS)
    np.testing.assert_array_equal(together[[6, 2]], rank(np.array([6, 2])))
    assert len(np.unique(together, axis=0)) == len(ROWS)
    for other in (rank(ROWS, name="heldout"), rank(ROWS, step=2), rank(ROWS, seed=2)):
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
    text, where = tiny.words(), located(config)[step]
    changed = tiny.Words()
    kept = np.zeros(text.tokens, bool)
    for row in range(len(ROWS)):
        # All that the row has read since its memory was empty.
        first = where.cursor_B[row] - where.direction_B[row] * step * config.data.reuse_len
        kept[
            (first + where.direction_B[row] * np.arange((step + 1) * config.data.reuse_len))
            % text.tokens
        ] = True
    changed.text = np.where(kept, text.text, 9 + (text.text - 8) % (tiny.VOCAB - 9)).astype(
        np.int32
    )
    assert 0 < kept.mean() < 1 and (changed.text != text.text)[~kept].all()
    empty, after = _program(config.data.reuse_len)
    found, memories = set(), []
    pairs = list(zip(built(config, text), built(config, changed), strict=True))[: step + 1]
    if any((a != b).any() for a, b in zip(*map(jax.tree.leaves, pairs[-1]), strict=True)):
        found.add("batch")
    for batches in zip(*pairs, strict=True):
        memory: Memory = empty
        for batch in batches:
            memory = after(memory, batch)
        memories.append(np.asarray(memory.hidden_LBMD))
    return found | ({"memory"} if (memories[0] != memories[1]).any() else set())


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
            "must leave out piece_spans, static_targets with data.factorization_order=uniform",
        ),
    ],
)
def test_what_does_not_fit_an_order_distribution_is_refused_in_one_line(changes, message):
    with pytest.raises(BadInput, match=message) as raised:
        tiny.config(**changes)
    assert "conflicts" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_distribution_needs_no_more_text_than_a_segment_and_is_frozen():
    class Short(tiny.Words):
        def __init__(self, tokens):
            super().__init__()
            self.tokens = tokens

    examples.check_length(Short(32), config(), "the heldout split")
    with pytest.raises(BadInput, match="the heldout split has 31 tokens, but a segment needs 32"):
        examples.check_length(Short(31), config(), "the heldout split")
    saved = configs.flat(tiny.config())
    assert (
        configs.changed_keys(config(), saved, configs.FROZEN)[0]
        == "data.factorization_order: 'spans' -> 'uniform'"
    )
