"""Differences between systems, paired by seed, with confidence intervals that hold for all pairs
together.

    d_s = a_s - b_s of seed s
    mean +- t * sd / sqrt(S), Student's t with S - 1 degrees of freedom

Two systems read the data in the same order under one seed, so the effect of that order on both
cancels in d_s. Of m pairs Holm (1979) tests the smallest p at alpha / m, the next at
alpha / (m - 1), and so on; after the first test that fails, all remaining pairs have its level.
Each interval has the level of its test, so it excludes 0 exactly if the test rejects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

ALPHA = 0.05
"""Probability that any of the pairs is named although its systems are equal."""
FEWEST_SEEDS = 5
"""Fewest seeds with which a difference is named."""


class Difference(NamedTuple):
    """System `a` minus system `b`. With one seed there is no interval: `low` and `high` are
    None.
    """

    a: str
    b: str
    mean: float
    low: float | None
    high: float | None
    seeds: int
    named: bool
    """Whether the interval excludes 0, with `FEWEST_SEEDS` seeds or more."""


def differences(values: Mapping[str, Mapping[Any, float]]) -> list[Difference]:
    """Compares all pairs of systems, with Holm's correction for the number of pairs. `values` has
    the score of each seed of each system.
    """
    from scipy import stats  # JAX requires SciPy; the import takes a second

    pairs, tests = dict[tuple[str, str], Difference](), []
    for a, b in itertools.combinations(values, 2):
        seeds = values[a].keys() & values[b].keys()
        if not seeds:
            continue
        d_S = np.array([values[a][seed] - values[b][seed] for seed in seeds])
        mean = float(d_S.mean())
        pairs[a, b] = Difference(a, b, mean, None, None, len(d_S), False)
        if len(seeds) > 1:
            error = float(d_S.std(ddof=1)) / math.sqrt(len(d_S))
            t = abs(mean) / error if error else math.inf if mean else 0.0
            tests.append((2 * stats.t.sf(t, len(d_S) - 1), error, (a, b)))
    left = len(tests)
    for p, error, names in sorted(tests, key=lambda each: each[0]):
        pair = pairs[names]
        half = float(stats.t.isf(ALPHA / left / 2, pair.seeds - 1)) * error
        rejects = bool(p <= ALPHA / left)
        left -= rejects  # after the first test that fails, all have its level
        pairs[names] = pair._replace(
            low=pair.mean - half,
            high=pair.mean + half,
            named=rejects and pair.seeds >= FEWEST_SEEDS,
        )
    return [*pairs.values()]
