"""The block formula: draws by counter, tiling, directions, plans, and the cycle of several
corpora.
"""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlnet_jax.data.batches.cycle import ONE, RESOLUTION, Cycle, from_weights
from xlnet_jax.data.batches.stream import (
    PlanEntry,
    ShuffledBlocks,
    SinglePass,
    Stream,
    extend_plan,
)
from xlnet_jax.errors import BadInput

W, R = 4, 8
STREAM = Stream((ShuffledBlocks(1000, R, W, seed=3),), bidirectional=True)
BLOCKS = STREAM.corpora[0].blocks


def positions(where) -> np.ndarray:
    """Every token position of the reuse windows of `where`, in reading order: [B, R]."""
    return where.cursor_B[:, None] + where.direction_B[:, None] * np.arange(R)


@pytest.mark.parametrize("left", [1, 31, 127])
def test_every_epoch_leaves_out_another_part_whatever_is_left_of_stretches(left):
    """Also where the length of a stretch is a multiple of the number of offsets."""
    blocks = ShuffledBlocks(512 + left, 8, 4, seed=3, shuffle_len=128)
    _, block_E, first_E = blocks.locate(np.arange(600) * blocks.blocks)
    offset_E = first_E - block_E * blocks.block_len
    assert offset_E[0] == 0 and set(offset_E) == set(range(left + 1))


def test_text_shorter_than_a_stretch_is_one_line():
    short = Stream((ShuffledBlocks(100, 8, 4, seed=3, shuffle_len=128),), bidirectional=True)
    with pytest.raises(
        BadInput, match="it has 100 tokens for training, fewer than data.shuffle_len=128"
    ):
        short.check(1, ["it"])


def test_blocks_come_in_another_order_in_every_epoch():
    rows = np.arange(BLOCKS)
    first, second = (
        STREAM.locate(0, rows, (PlanEntry(0, e * BLOCKS, BLOCKS),)).block_B for e in (0, 1)
    )
    assert (first != rows).any() and (first != second).any()
    assert sorted(first) == sorted(second) == rows.tolist()


def test_windows_of_a_block_follow_each_other_in_reading_order():
    plan = extend_plan((), 0, 6, W)
    steps = [STREAM.locate(step, np.arange(6), plan) for step in range(3 * W)]
    for step, (before, where) in enumerate(itertools.pairwise(steps), 1):
        assert (where.continues_B == (step % W > 0)).all()
        if step % W:
            np.testing.assert_array_equal(where.cursor_B, before.cursor_B + before.direction_B * R)
            np.testing.assert_array_equal(where.direction_B, before.direction_B)


def test_a_block_is_read_the_other_way_round_in_the_next_epoch():
    rows = np.arange(BLOCKS)
    directions = []
    for epoch in range(2):
        where = STREAM.locate(0, rows, (PlanEntry(0, epoch * BLOCKS, BLOCKS),))
        directions.append(where.direction_B[np.argsort(where.block_B)])
    np.testing.assert_array_equal(directions[0], -directions[1])
    assert set(directions[0]) == {1, -1}
    forward = dataclasses.replace(STREAM, bidirectional=False)
    assert (forward.locate(0, rows, extend_plan((), 0, BLOCKS, W)).direction_B == 1).all()


def test_a_plan_loses_nothing_at_a_multiple_of_w_and_at_most_the_rest_of_a_block_elsewhere():
    plan = extend_plan((), 0, 4, W)
    assert STREAM.epochs(0, plan) == [0] and STREAM.epochs(W * BLOCKS, plan) == pytest.approx([4])
    assert extend_plan(plan, 12, 4, W) is plan
    assert extend_plan(plan, 2 * W, 6, W)[-1] == PlanEntry(2 * W, 8, 6)
    inside = extend_plan(plan, 2 * W + 1, 6, W)
    assert inside[-1] == PlanEntry(2 * W + 1, 12, 6), "the four blocks begun are left"
    assert not STREAM.locate(2 * W + 1, np.arange(6), inside).continues_B.any()
    before, after = (STREAM.locate(2 * W, np.arange(4), each) for each in (plan, inside))
    np.testing.assert_array_equal(before.cursor_B, after.cursor_B)


def test_a_corpus_smaller_than_one_batch_of_blocks_is_refused():
    STREAM.check(BLOCKS, ["the train split"])
    said = "train split has 1,000 tokens for training: 31 blocks of 32, too few for train.batch"
    with pytest.raises(BadInput, match=said):
        STREAM.check(BLOCKS + 1, ["the train split"])


def test_a_single_pass_reads_every_token_whatever_the_batch_size():
    single = SinglePass.of_blocks((205,), R, W)
    read = {}
    for B in (3, 7):
        seen = set()
        for group in range(-(-len(single.rows_S3) // B)):
            for window in range(W):
                where = single.locate(group * B + np.arange(B), window)
                seen.update((positions(where)[where.exists_B] % 205).ravel().tolist())
        read[B] = seen
    assert read[3] == read[7] == set(range(205))


@pytest.mark.parametrize("share", [1, 2, 3, 25])
def test_a_share_of_a_single_pass_is_spread_evenly_over_whole_blocks(share):
    """The fault: the first blocks of the split, which are the first documents."""
    tokens = (50 * R * W, 3 * R * W - 1)
    whole, some = (
        SinglePass.of_blocks(tokens, R, W, limit).rows_S3.tolist() for limit in (0, share * W)
    )
    first = [window // W for corpus, window, _ in some if corpus == 0]
    assert len(first) == share and abs(np.mean(first) - 24.5) <= 1
    assert set(np.diff(first)) <= {50 // share, -(-50 // share)}
    assert len(some) - share == min(share, 3)
    assert all(row in whole for row in some)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 200))
def test_every_corpus_gets_its_blocks_in_order_and_its_share(counts, start):
    cycle = Cycle(tuple(counts))
    corpus, own = cycle.deal(np.arange(start, start + 3 * cycle.length))
    for number, count in enumerate(counts):
        # No block is skipped, and none is there twice.
        assert (np.diff(own[corpus == number]) == 1).all()
        assert (corpus == number).sum() == 3 * count
    from_the_start, _ = cycle.deal(np.arange(4 * cycle.length))
    for number, share in enumerate(cycle.shares):
        had = np.cumsum(from_the_start == number)
        assert np.abs(had - share * np.arange(1, len(had) + 1)).max() < 2


def test_a_number_is_found_without_counting_up_to_it():
    cycle = Cycle((3, 1))
    corpus, own = cycle.deal(np.array([0, 1, 2, 3, 4 * 10**15 + 2]))
    assert corpus.tolist() == [0, 0, 1, 0, 1] and own.tolist() == [0, 1, 0, 2, 10**15]


def test_weights_become_the_shortest_cycle_that_meets_them():
    assert from_weights([7]) == ONE
    assert from_weights([3, 1]) == Cycle((3, 1))
    assert from_weights([0.5, 0.25, 0.25]) == Cycle((2, 1, 1))
    third = from_weights([1, 1, 1])
    assert third.length == RESOLUTION and max(third.counts) - min(third.counts) == 1
    assert from_weights([1, 1e-9]).counts == (RESOLUTION - 1, 1), "none is left out"
    odd = from_weights([19.54, 2.85, 4.7, 1.6, 4.2])
    np.testing.assert_allclose(
        odd.shares, np.array([19.54, 2.85, 4.7, 1.6, 4.2]) / 32.89, atol=1e-4
    )


@pytest.mark.parametrize("counts", [(1,), (3, 1), (5, 3, 2)])
def test_most_is_the_most_that_any_run_of_numbers_brings(counts):
    cycle = Cycle(counts)
    corpus, _ = cycle.deal(np.arange(10 * cycle.length + 20))
    for length in (1, 2, 4, 7, 11):
        runs = np.lib.stride_tricks.sliding_window_view(corpus, length)
        assert cycle.most(length) == [
            int((runs == number).sum(axis=1).max()) for number in range(len(counts))
        ]
