"""Target spans: exact counts, whole words, and their lengths."""

import numpy as np
import pytest

from xlnet_jax.data.batches import spans


def draw(B, N, goal, *, kind="words", start_share=0.7, seed=0, blocked=()):
    rng = np.random.default_rng(seed)
    word_start = rng.random((B, N)) < start_share
    eligible = np.ones((B, N), bool)
    eligible[:, list(blocked)] = False
    draws = rng.random((B, spans.draws_needed(N, 6, 1)))
    mask = spans.sample(
        word_start, eligible, goal, draws, max_span=5, alpha=6, beta=1, kind=kind
    )  # fmt: skip
    return word_start, mask


@pytest.mark.parametrize("kind", ["words", "pieces"])
@pytest.mark.parametrize("goal", [1, 7, 43])
def test_every_row_gets_exactly_the_goal_and_none_where_it_may_not(goal, kind):
    _, mask = draw(64, 256, goal, kind=kind, blocked=(100, 254, 255))
    assert (mask.sum(axis=1) == goal).all()
    assert not mask[:, [100, 254, 255]].any()


def test_fewer_eligible_positions_than_the_goal_are_all_taken():
    _, mask = draw(4, 20, 15, blocked=range(10))
    assert (mask.sum(axis=1) == 10).all()


def test_the_choice_depends_on_the_draws_alone_and_row_by_row():
    rng = np.random.default_rng(5)
    start, eligible = rng.random((6, 80)) < 0.7, np.ones((6, 80), bool)
    draws = rng.random((6, spans.draws_needed(80, 6, 1)))
    options = {"max_span": 5, "alpha": 6, "beta": 1, "kind": "words"}
    together = spans.sample(start, eligible, 13, draws, **options)
    alone = np.concatenate([spans.sample(start[i : i + 1], eligible[i : i + 1], 13, draws[i : i + 1], **options)
                            for i in range(6)])  # fmt: skip
    np.testing.assert_array_equal(together, alone)


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


@pytest.mark.parametrize("kind", ["words", "pieces"])
@pytest.mark.parametrize("share", [0.4, 0.65, 0.85])
def test_targets_are_spread_evenly_over_the_text(kind, share):
    """Context counted in pieces for spans of words would leave the last eighth nearly empty."""
    rng = np.random.default_rng(0)
    start = rng.random((2000, 256)) < share
    draws = rng.random((2000, spans.draws_needed(256, 6, 1)))
    mask = spans.sample(start, np.ones_like(start), 43, draws, max_span=5, alpha=6, beta=1, kind=kind)
    eighths = mask.reshape(2000, 8, 32).mean(axis=(0, 2))
    assert eighths.min() > 0.75 * eighths.max()


def test_span_lengths_fall_off_as_one_over_n():
    lengths = np.zeros(6)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        start, draws = np.ones((200, 256), bool), rng.random((200, spans.draws_needed(256, 6, 1)))
        draws[:, -256:] = np.sort(draws[:, -256:], axis=1)  # the fill goes to the left end, where it is cut off below
        mask = spans.sample(start, start, 30, draws, max_span=5, alpha=6, beta=1, kind="pieces")
        for row in mask[:, 60:]:
            edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]])))
            for begin, end in edges.reshape(-1, 2):
                lengths[min(end - begin, 6) - 1] += 1
    share = lengths[:5] / lengths[:5].sum()
    np.testing.assert_allclose(share, (1 / np.arange(1, 6)) / np.sum(1 / np.arange(1, 6)), atol=0.02)
