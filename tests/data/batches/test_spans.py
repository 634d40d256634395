"""Target spans: exact counts, whole words, and their lengths."""

import numpy as np
import pytest

from xlnet_jax.data.batches import spans


@pytest.mark.parametrize("kind", ["words", "pieces"])
@pytest.mark.parametrize(
    ("N", "goal", "got", "blocked"),
    [(256, 1, 1, [100, 254, 255]), (256, 43, 43, [100, 254, 255]), (20, 15, 10, list(range(10)))],
)
def test_every_row_gets_exactly_the_goal_and_none_where_it_may_not(N, goal, got, blocked, kind):
    rng = np.random.default_rng(0)
    eligible = np.ones((64, N), bool)
    eligible[:, blocked] = False
    draws = rng.random((64, spans.draws_needed(N, 6, 1)))
    mask = spans.sample(rng.random((64, N)) < 0.7, eligible, goal, draws, max_span=5, alpha=6, beta=1, kind=kind)
    assert (mask.sum(axis=1) == got).all()
    assert not mask[~eligible].any()


def reference(word_start, goal, lengths, places, kind, alpha=6):
    """The scan for one row, step by step, without the fill."""
    N, mask, done, cursor = len(word_start), np.zeros(len(word_start), bool), 0, 0
    starts = np.flatnonzero(word_start)
    unit = N / max(len(starts), 1) if kind == "words" else 1
    for length, place in zip(lengths, places, strict=True):
        if done >= goal or cursor >= N:
            break
        n = min(length, goal - done)
        context = int(n * unit * alpha)
        lead = min(int(place * context), context - 1)
        later = starts[starts >= cursor + lead]
        if not len(later):
            break
        begin = later[0]
        if kind == "words":
            ends = [*later[1:], *[N] * 6][:n]
            fitting = [end for end in ends if end - begin <= goal - done]
            end, take = (fitting[-1], True) if fitting else (ends[0], False)
        else:
            end, take = begin + n, True
        if end >= N:
            break
        if take:
            mask[begin:end] = True
            done = mask.sum()
        cursor = end + context - lead
    return mask


@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_the_vectorised_scan_equals_one_written_out_step_by_step(kind):
    rng = np.random.default_rng(11)
    B, N, goal = 200, 120, 19
    word_start = rng.random((B, N)) < rng.choice([0.3, 0.75, 1.0], size=(B, 1))
    draws = rng.random((B, spans.draws_needed(N, 6, 1)))
    mask = spans.sample(word_start, np.ones((B, N), bool), goal, draws, max_span=5, alpha=6, beta=1, kind=kind)
    count = (draws.shape[1] - N) // 2
    shares = np.cumsum(1 / np.arange(1, 6)) / np.sum(1 / np.arange(1, 6))
    for row in range(B):
        lengths = 1 + np.searchsorted(shares, draws[row, :count], side="right")
        scanned = reference(word_start[row], goal, lengths, draws[row, count : 2 * count], kind)
        assert mask[row][scanned].all(), row
        fill = np.flatnonzero(mask[row] & ~scanned)
        assert len(fill) == goal - scanned.sum()
        # The fill takes the free positions with the smallest draws.
        free = np.flatnonzero(~scanned)
        smallest = free[np.argsort(draws[row, 2 * count :][free])[: len(fill)]]
        assert set(fill) == set(smallest)
