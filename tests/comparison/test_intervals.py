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
    (few,) = differences(runs(a=noise + [0.1, 0.11, 0.1, 0.09, 0.1, 0.1], b=noise[:4]))
    assert few.low > 0 and not few.named, "with fewer than five seeds"
    (alone,) = differences(runs(a=[1.0, 2.0], b=[3.0]))
    assert (alone.mean, alone.low, alone.high, alone.named) == (-2.0, None, None, False)


def test_holm_gives_the_smallest_p_the_hardest_level_and_stops_at_the_first_that_fails():
    """Three pairs: widths of the intervals against the standard error give the level of each."""
    values = np.array([1.0, -0.5, 0.3, -1.2, 0.4])
    values -= values.mean()
    others = values[::-1], values[[2, 0, 4, 1, 3]]

    def compared(a, b, c):
        """Each difference, the one with the largest t first, and the level of its interval."""
        of = {"a": a, "b": b, "c": c}
        found = []
        for each in differences(runs(**of)):
            error = np.std(of[each.a] - of[each.b], ddof=1) / math.sqrt(5)
            level = 2 * student.sf((each.high - each.low) / 2 / error, 4)
            found.append((abs(each.mean) / error, level, each))
        assert [(each.a, each.b) for *_, each in found] == [*itertools.combinations("abc", 2)]
        return sorted(found, reverse=True)

    found = compared(values * 0.01, 5 + others[0] * 0.02, 5.02 + others[1] * 0.03)
    assert [each.named for *_, each in found] == [True, True, False]
    assert [level for _, level, _ in found] == pytest.approx([ALPHA / 3, ALPHA / 2, ALPHA])
    # Of three pairs that all fail, all have the level of the first.
    alike = compared(values, others[0] + 0.9, others[1] - 0.2)
    assert not any(each.named or each.low > 0 or each.high < 0 for *_, each in alike)
    assert [level for _, level, _ in alike] == pytest.approx([ALPHA / 3] * 3)
