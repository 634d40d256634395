"""Differences between systems, paired by seed, with intervals that hold for all pairs together.

    d_s = a_s - b_s of seed s            mean +- t * sd / sqrt(S), Student's t with S - 1 degrees of freedom

Two systems have the same order of the data under one seed, so what it does to both is gone from d_s. Of m pairs Holm
(1979) tests the smallest p at alpha / m, the next at alpha / (m - 1), and so on to the first that fails, and with it
all that are left. Each interval here has the level of its test, so it leaves 0 exactly if the test rejects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

ALPHA = 0.05
FEWEST_SEEDS = 5
"""With fewer nothing is claimed."""


class Difference(NamedTuple):
    """Of system `a` minus system `b`. Without two seeds there is no interval: `low` and `high` are None."""

    a: str
    b: str
    mean: float
    low: float | None
    high: float | None
    seeds: int
    named: bool
    """Whether the interval leaves 0, with `FEWEST_SEEDS` or more."""


def inside(t: float, freedom: int) -> float:
    """P(|T| <= t) of Student's distribution with whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 4)."""
    angle = math.atan(t / math.sqrt(freedom))
    term, total = (math.cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
    for n in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (n - 1) / n
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if freedom % 2 else total


def quantile(level: float, freedom: int) -> float:
    """The t with P(|T| <= t) = level."""
    low, high = 0.0, 1.0
    while inside(high, freedom) < level:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle, freedom) < level else (low, middle)
    return high


def differences(values: Mapping[str, Mapping[Any, float]]) -> list[Difference]:
    """All pairs of systems, from the value of each seed of each, with Holm's correction for their number."""
    pairs, alone = [], []
    for a, b in itertools.combinations(values, 2):
        seeds = values[a].keys() & values[b].keys()
        d_S = np.array([values[a][seed] - values[b][seed] for seed in seeds])
        if len(seeds) > 1:
            mean, error, freedom = float(d_S.mean()), float(d_S.std(ddof=1)) / math.sqrt(len(d_S)), len(d_S) - 1
            t = abs(mean) / error if error else math.inf if mean else 0.0
            pairs.append((1 - inside(t, freedom), Difference(a, b, mean, None, None, len(d_S), False), error))
        elif seeds:
            alone.append(Difference(a, b, float(d_S[0]), None, None, 1, False))
    found, left = list[Difference](), len(pairs)
    for p, pair, error in sorted(pairs, key=lambda each: each[0]):
        half = quantile(1 - ALPHA / left, pair.seeds - 1) * error
        rejects = p <= ALPHA / left
        left -= rejects  # after the first that fails all have its level
        found.append(pair._replace(low=pair.mean - half, high=pair.mean + half,
                                   named=rejects and pair.seeds >= FEWEST_SEEDS))  # fmt: skip
    order = [*itertools.combinations(values, 2)]
    return sorted(found + alone, key=lambda each: order.index((each.a, each.b)))
