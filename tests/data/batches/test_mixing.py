"""Dealing block numbers out to several corpora."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlnet_jax.data.batches.mixing import ONE, RESOLUTION, Cycle, from_weights


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 200))
def test_every_corpus_gets_its_blocks_in_order_and_its_share(counts, start):
    cycle = Cycle(tuple(counts))
    numbers = np.arange(start, start + 3 * cycle.length)
    corpus, own = cycle.deal(numbers)
    for number, count in enumerate(counts):
        mine = own[corpus == number]
        assert len(mine) == 3 * count
        np.testing.assert_array_equal(mine, mine[0] + np.arange(len(mine)), "no block skipped, none twice")
    all_corpora, _ = cycle.deal(np.arange(4 * cycle.length))
    for number, share in enumerate(cycle.shares):
        had = np.cumsum(all_corpora == number)
        assert np.abs(had - share * np.arange(1, len(had) + 1)).max() < 2, "never far from its share"


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
    np.testing.assert_allclose(odd.shares, np.array([19.54, 2.85, 4.7, 1.6, 4.2]) / 32.89, atol=1e-4)


@pytest.mark.parametrize("counts", [(1,), (3, 1), (5, 3, 2)])
def test_most_is_the_most_that_any_run_of_numbers_brings(counts):
    cycle = Cycle(counts)
    corpus, _ = cycle.deal(np.arange(10 * cycle.length + 20))
    for length in (1, 2, 4, 7, 11):
        runs = np.lib.stride_tricks.sliding_window_view(corpus, length)
        assert cycle.most(length) == [int((runs == number).sum(axis=1).max()) for number in range(len(counts))]
