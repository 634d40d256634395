"""Intervals of differences: Student's t by its formula, and Holm's correction by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import t as student

from xlnet_jax.comparison.intervals import ALPHA, differences

CAUCHY = math.tan(0.475 * math.pi)
"""The 97.5 % quantile of t with one degree of freedom."""


def runs(**systems):
    return {name: dict(enumerate(values)) for name, values in systems.items()}


def test_two_seeds_by_hand():
    """d = 1, 3: mean 2, standard error 1, so 2 +- 12.7."""
    (found,) = differences(runs(a=[2.0, 5.0], b=[1.0, 2.0]))
    assert (found.a, found.b, found.mean, found.seeds, found.named) == ("a", "b", 2.0, 2, False)
    assert (found.low, found.high) == pytest.approx((2 - CAUCHY, 2 + CAUCHY), rel=1e-9)


def test_seeds_are_paired_and_one_seed_has_no_interval():
    """What a seed does to both systems is gone; a seed that one lacks does not count."""
    noise = np.random.default_rng(0).standard_normal(6)
    (found,) = differences(runs(a=noise + [0.1, 0.11, 0.1, 0.09, 0.1, 0.1], b=noise[:5]))
    assert found.named and found.seeds == 5 and 0.08 < found.low < 0.1 < found.high < 0.12
    (alone,) = differences(runs(a=[1.0, 2.0], b=[3.0]))
    assert (alone.mean, alone.low, alone.high, alone.named) == (-2.0, None, None, False)


def test_nothing_is_named_with_fewer_than_five_seeds():
    values = [1.0, 1.001, 0.999, 1.0, 1.002]
    for count, named in ((4, False), (5, True)):
        (found,) = differences(runs(a=values[:count], b=[0.0] * count))
        assert found.low > 0 and found.named == named


def test_holm_gives_the_smallest_p_the_hardest_level_and_stops_at_the_first_that_fails():
    """Three pairs: widths of the intervals against the standard error give the level of each."""
    stats = np.array([1.0, -0.5, 0.3, -1.2, 0.4])
    stats -= stats.mean()
    systems = runs(a=stats * 0.01, b=5 + stats[::-1] * 0.02, c=5.02 + stats[[2, 0, 4, 1, 3]] * 0.03)
    found = {(each.a, each.b): each for each in differences(systems)}
    assert list(found) == list(itertools.combinations("abc", 2))
    errors = {
        pair: np.std([systems[pair[0]][s] - systems[pair[1]][s] for s in range(5)], ddof=1)
        / math.sqrt(5)
        for pair in found
    }
    half = {pair: (each.high - each.low) / 2 / errors[pair] for pair, each in found.items()}
    by_t = sorted(found, key=lambda pair: -abs(found[pair].mean) / errors[pair])
    assert by_t[2] == ("b", "c"), "the example has two clear pairs and one that is not"
    for pair, left in zip(by_t, (3, 2, 1), strict=True):
        assert half[pair] == pytest.approx(student.isf(ALPHA / left / 2, 4), rel=1e-9)
    assert [found[pair].named for pair in by_t] == [True, True, False]
    # Of three pairs that all fail, all have the level of the first.
    alike = differences(runs(a=stats, b=stats[::-1] + 0.9, c=stats[[2, 0, 4, 1, 3]] - 0.2))
    widths = [(each.high - each.low) / 2 for each in alike]
    assert not any(each.named or each.low > 0 or each.high < 0 for each in alike)
    systems = runs(a=stats, b=stats[::-1] + 0.9, c=stats[[2, 0, 4, 1, 3]] - 0.2)
    for each, width in zip(alike, widths, strict=True):
        d_S = np.array([systems[each.a][s] - systems[each.b][s] for s in range(5)])
        assert width == pytest.approx(
            student.isf(ALPHA / 3 / 2, 4) * d_S.std(ddof=1) / math.sqrt(5)
        )
