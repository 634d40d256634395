"""Which corpus a block number belongs to: a fixed cycle, dealt out as evenly as whole numbers allow.

    number n  ->  place p = n mod L of round n // L  ->  corpus c = order[p], its block (n // L) k_c + before[p, c]

L is the length of the cycle, k_c the places of corpus c in it. Nothing is drawn: after any n blocks every corpus has
had its share of them, give or take a block or two, and the block of a number is found without counting up to it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

RESOLUTION = 10_000
"""Places of a cycle, before it is shortened: weights are met to a part in ten thousand."""


@dataclasses.dataclass(frozen=True)
class Cycle:
    """A cycle over corpora; `counts` are their places in it, at least one each."""

    counts: tuple[int, ...]

    @property
    def length(self) -> int:
        """Places L."""
        return sum(self.counts)

    @property
    def shares(self) -> list[float]:
        """Share of the blocks that each corpus gets."""
        return [count / self.length for count in self.counts]

    @functools.cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Corpus of each place [L], and how many places before it each corpus has [L, C]."""
        counts = np.array(self.counts, np.int64)
        order, before = np.zeros(self.length, np.int64), np.zeros((self.length, len(counts)), np.int64)
        dealt = np.zeros(len(counts), np.int64)
        for place in range(self.length):
            before[place] = dealt
            # To whom most is owed, times L to stay in whole numbers; the first of equals.
            order[place] = np.argmax(counts * (place + 1) - dealt * self.length)
            dealt[order[place]] += 1
        return order, before

    def deal(self, numbers_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The corpus of each block number, and the number it has there; int64 [B] each."""
        order, before = self._tables
        round_B, place_B = np.divmod(numbers_B, self.length)
        corpus_B = order[place_B]
        return corpus_B, round_B * np.array(self.counts, np.int64)[corpus_B] + before[place_B, corpus_B]

    def most(self, count: int) -> list[int]:
        """At most how many of `count` consecutive numbers each corpus gets."""
        rounds, rest = divmod(count, self.length)
        order, _ = self._tables
        most = []
        for corpus, places in enumerate(self.counts):
            mine = np.cumsum(np.concatenate([[0], np.tile(order == corpus, 2)]))
            starts = np.arange(self.length)
            most.append(rounds * places + int((mine[starts + rest] - mine[starts]).max()))
        return most


ONE = Cycle((1,))
"""A single corpus."""


def from_weights(weights: Sequence[float]) -> Cycle:
    """The cycle that comes closest to `weights` (positive, of any sum)."""
    shares = np.array(weights, np.float64) / max(weights)
    exact = shares / shares.sum() * RESOLUTION
    counts = np.maximum(1, np.floor(exact)).astype(int)
    # The largest remainders get the places that are left.
    for corpus in np.argsort(counts - exact, kind="stable")[: max(0, RESOLUTION - int(counts.sum()))]:
        counts[corpus] += 1
    divisor = math.gcd(*counts.tolist())
    return Cycle(tuple((counts // divisor).tolist()))
