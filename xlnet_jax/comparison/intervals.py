"""Differences between systems, paired by seed, with intervals that hold for all pairs together.

    d_s = a_s - b_s of seed s
    mean +- t * sd / sqrt(S), Student's t with S - 1 degrees of freedom

Two systems have the same order of the data under one seed, so what it does to both is gone from
d_s. Of m pairs Holm (1979) tests the smallest p at alpha / m, the next at alpha / (m - 1), and so
on to the first that fails, and with it all that are left. Each interval here has the level of its
test, so it leaves 0 exactly if the test rejects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit  # JAX requires SciPy

ALPHA = 0.05
FEWEST_SEEDS = 5
"""With fewer nothing is claimed."""


class Difference(NamedTuple):
    """Of system `a` minus system `b`. Without two seeds there is no interval: `low` and `high` are
    None.
    """

    a: str
    b: str
    mean: float
    low: float | None
    high: float | None
    seeds: int
    named: bool
    """Whether the interval leaves 0, with `FEWEST_SEEDS` or more."""


def inside(t: float, freedom: int) -> float:
    """P(|T| <= t) of Student's distribution with these degrees of freedom."""
    return float(2 * stdtr(freedom, t) - 1)


def quantile(level: float, freedom: int) -> float:
    """The t with P(|T| <= t) = level."""
    return float(stdtrit(freedom, (1 + level) / 2))


def differences(values: Mapping[str, Mapping[Any, float]]) -> list[Difference]:
    """All pairs of systems, from the value of each seed of each, with Holm's correction for their
    number.
    """
    found, tested = dict[tuple[str, str], Difference](), []
    for a, b in itertools.combinations(values, 2):
        seeds = values[a].keys() & values[b].keys()
        if not seeds:
            continue
        d_S = np.array([values[a][seed] - values[b][seed] for seed in seeds])
        mean = float(d_S.mean())
        found[a, b] = Difference(a, b, mean, None, None, len(d_S), False)
        if len(seeds) > 1:
            error = float(d_S.std(ddof=1)) / math.sqrt(len(d_S))
            t = abs(mean) / error if error else math.inf if mean else 0.0
            tested.append((1 - inside(t, len(d_S) - 1), error, (a, b)))
    left = len(tested)
    for p, error, names in sorted(tested, key=lambda each: each[0]):
        pair = found[names]
        half = quantile(1 - ALPHA / left, pair.seeds - 1) * error
        rejects = p <= ALPHA / left
        left -= rejects  # after the first that fails all have its level
        found[names] = pair._replace(
            low=pair.mean - half,
            high=pair.mean + half,
            named=rejects and pair.seeds >= FEWEST_SEEDS,
        )
    return [*found.values()]
