"""What is drawn: spans, by hand and by their distribution; segments A and B and targets per half,
by hand.

The figures come from the 2019 code's `_sample_mask`.
"""

import numpy as np
import pytest
import tiny

from xlnet_jax.config import DataConfig
from xlnet_jax.data.batches import examples, sentence_pairs, spans
from xlnet_jax.data.batches.stream import Windows

LENGTH_DRAW = {1: 0.2, 2: 0.5, 3: 0.7, 4: 0.85, 5: 0.95}
"""A draw that gives each span length: the shares 1/n end at .438, .657, .803, .912 and 1."""


def sampled(words, goal, lengths, places, fill, *, kind, ineligible=(), alpha=2):
    """Chosen positions of one text; a word is a `W` and the dots behind it."""
    N = len(words)
    start = np.array([[letter == "W" for letter in words]])
    eligible = ~np.isin(np.arange(N), ineligible)[None]
    data = DataConfig(mask_group_size=alpha)
    draws = np.full((1, spans.draws_needed(N, data)), 0.5)
    count = (draws.shape[1] - N) // 2
    draws[0, : len(lengths)] = [LENGTH_DRAW[n] for n in lengths]
    draws[0, count : count + len(places)] = places
    for order, position in enumerate(fill):
        draws[0, 2 * count + position] = 0.01 * order
    mask = spans.sample(start, eligible, goal, draws, data, kind, start.shape[1])
    return np.flatnonzero(mask[0]).tolist()


#        0         1         2
#        012345678901234567890123
WORDS = "W.WW..WW..W.WW..W.W.WW.W"
DRAWN = {"lengths": [2, 3, 1, 5], "places": [0.3, 0.6, 0.0, 0.9]}


def test_whole_words_by_hand():
    """24 pieces are 13 words, so a span of n words lays out int(n 24 / 13 2) pieces of context;
    goal 7.

    n = 2: lead 2 of 7, to the start at 2; words 2 and 3-5 are taken, 4 done, on at 6 + 7 - 2 = 11.
    n = 2: lead 4 of 7, from 15 to the start at 16; with the second word 4 > 3, so only 16-17; on at
    18 + 7 - 4 = 21. n = 1: lead 0 of 3, the start at 21; its word is longer than the 1 missing and
    stepped over; on at 26, the end. One is missing: 3 has the smallest draw but is taken, 9 the
    next.
    """
    drawn = {"lengths": [2, 2, 1], "places": [0.3, 0.6, 0.0]}
    assert sampled(WORDS, 7, **drawn, fill=[3, 9, 0], kind="words") == [2, 3, 4, 5, 9, 16, 17]


def test_n_pieces_by_hand():
    """The original's rule: n pieces from a word start, wherever they end; goal 6.

    n = 2: 2 and 3; on at 4 + 3 = 7.   n = 3: lead 3 of 6, 10 is a start: 10-12; on at 13 + 3 = 16.
    n = 1: lead 0, 16: done.
    """
    assert sampled(WORDS, 6, **DRAWN, fill=[0], kind="pieces") == [2, 3, 10, 11, 12, 16]
    # A SEP at 12 does not count: one more span, lead 1 of 2 from 17 + 2 on, 20.
    assert sampled(WORDS, 6, **DRAWN, fill=[0], kind="pieces", ineligible=[12]) == [
        2,
        3,
        10,
        11,
        16,
        20,
    ]


@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_a_span_that_touches_the_end_is_discarded_and_ends_the_scan(kind):
    """n = 3: lead 5 of 6; 5-7 would be the last pieces of 8. With a piece more behind them they are
    taken.
    """
    draws = {"lengths": [3, 1, 1], "places": [0.9, 0.0, 0.0], "fill": [6, 0, 3]}
    assert sampled("W" * 8, 3, **draws, kind=kind) == [0, 3, 6]
    assert sampled("W" * 9, 3, **draws, kind=kind) == [5, 6, 7]


def test_random_pieces_by_hand():
    """The goal's number of free positions with the smallest draws."""
    assert sampled(WORDS, 4, **DRAWN, fill=[7, 21, 1, 14, 2], kind="random") == [1, 7, 14, 21]
    assert sampled(
        WORDS, 4, **DRAWN, fill=[7, 21, 1, 14, 2, 0], kind="random", ineligible=[7, 1]
    ) == [0, 2, 14, 21]


class Numbers(tiny.Words):
    """A text whose tokens are each its own position, with sentences that start at `starts`."""

    def __init__(self, starts, tokens=100):
        self.tokens, self.text = tokens, np.arange(tokens, dtype=np.int32)
        self.starts = np.isin(self.text, starts)


PAIR_SHAPE = sentence_pairs.SegmentLayout(
    segment_len=21, reuse_len=8, memory_len=4, first_goal=3, second_goal=3
)


def pair(cursor, direction, draws, starts=(0, 28, 31, 35, 40, 47, 60, 66, 72, 80, 90)):
    """A, B and label of one row whose A and B have 10 tokens together; `draws`: follow, cut, place
    of B.
    """
    text, tot = Numbers(list(starts)), PAIR_SHAPE.budget
    where = Windows(
        np.array([cursor]),
        np.array([direction], np.int32),
        np.ones(1, bool),
        np.ones(1, bool),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        0,
    )
    tokens, begins = sentence_pairs.read_in_order(
        text, where.cursor_B, where.direction_B, 8 + tot + tot // 2
    )
    pairs = sentence_pairs.choose_pairs(
        text,
        where,
        tokens[:, 8:],
        begins[:, 8:],
        PAIR_SHAPE,
        np.array([[*draws, 0]]),
        DataConfig(),
    )
    a_len = int(pairs.a_len_B[0])
    return (
        pairs.tokens_BY[0, :a_len].tolist(),
        pairs.tokens_BY[0, a_len:].tolist(),
        bool(pairs.follows_B[0]),
    )


def test_segment_b_that_follows_by_hand():
    """A begins at 28; sentences end before 31, 35 and 40, the first behind the budget of 10."""
    # The cut at 35: A has 7, B 5; A, the longer one, loses its last two, and B does not begin where
    # A ends.
    assert pair(20, 1, (0.2, 0.6, 0.5)) == ([28, 29, 30, 31, 32], [35, 36, 37, 38, 39], True)
    # The cut at 31: A has 3, B 9, which loses two.
    assert pair(20, 1, (0.2, 0.1, 0.5)) == ([28, 29, 30], [31, 32, 33, 34, 35, 36, 37], True)
    # Reversed, A begins at 52 and the sentence ends with 47: 6 and 7 tokens. B loses at the tie,
    # then A, the longer.
    assert pair(60, -1, (0.2, 0.9, 0.5)) == ([52, 51, 50, 49, 48], [46, 45, 44, 43, 42], True)


def test_random_segment_b_by_hand():
    """The cut at 31: B needs 7 or more. Of 59 places from 38 on the draw .5 takes 67; its sentence
    begins at 66.
    """
    assert pair(20, 1, (0.7, 0.1, 0.5)) == ([28, 29, 30], [66, 67, 68, 69, 70, 71, 72], False)
    # The first place of all: 38 lies in the sentence of 35, which A's look-ahead ends in; B does
    # not begin before 38.
    assert pair(20, 1, (0.7, 0.1, 0.0)) == ([28, 29, 30], [38, 39, 40, 41, 42, 43, 44], False)


@pytest.mark.parametrize(
    ("segment_len", "reuse_len", "num_predict", "goals"),
    [
        (512, 256, 85, (43, 42)),
        (512, 128, 85, (22, 63)),
    ],
)
def test_targets_per_half(segment_len, reuse_len, num_predict, goals):
    shape = examples.layout(
        DataConfig(segment_len=segment_len, reuse_len=reuse_len, num_predict=num_predict), 0
    )
    assert (shape.first_goal, shape.second_goal) == goals


ROWS, N = 3000, 256


def scanned(goal):
    """What the scan alone marks, without the fill, in rows of 256 pieces of which 75 % begin a
    word.
    """
    rng = np.random.default_rng(0)
    start = rng.random((ROWS, N)) < 0.75
    draws = rng.random((ROWS, spans.draws_needed(N, DataConfig())))
    turned = draws.copy()
    turned[:, -N:] = 1 - turned[:, -N:]
    eligible = np.ones((ROWS, N), bool)
    masks = [
        spans.sample(start, eligible, goal, u, DataConfig(), "pieces", N) for u in (draws, turned)
    ]
    assert all((mask.sum(axis=1) == goal).all() for mask in masks)
    # The fill takes the smallest draws: the same spans, but no filled position, are in both.
    return masks[0] & masks[1]


def test_spans_are_as_long_as_the_originals():
    """Runs of 1 to 5 pieces: 44.5, 22.3, 14.2, 10.6 and 8.4 %. None is longer, because spans of n
    pieces never touch.
    """
    step = np.diff(np.pad(scanned(43).astype(int), ((0, 0), (1, 1))), axis=1)
    lengths = (np.argwhere(step == -1) - np.argwhere(step == 1))[:, 1]
    shares = np.bincount(lengths)[1:] / len(lengths)
    np.testing.assert_allclose(shares, [0.445, 0.223, 0.142, 0.106, 0.084], rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", ["words", "pieces", "random"])
def test_no_more_than_what_may_be_a_target(kind):
    drawn = {"lengths": [1], "places": [0.0], "fill": [0, 1]}
    assert sampled("W" * 8, 6, **drawn, kind=kind, ineligible=[0, 2, 3, 5, 7]) == [1, 4, 6]
