"""Assigns each block number to a corpus, by a fixed cycle with the shares of a mixture."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from xlnet_jax.data.batches import spans

RESOLUTION = 10_000
"""Number of places of a cycle, before the counts are divided by their greatest common divisor. So
weights are exact to one part in ten thousand.
"""


@dataclasses.dataclass(frozen=True)
class Cycle:
    """Assigns block numbers to corpora: a fixed cycle, interleaved as evenly as whole numbers
    allow.

        number n  ->  place p = n mod L of round n // L
                  ->  corpus c = order[p], its block (n // L) k_c + before[p]

    Nothing is random: after any n blocks every corpus has had its share of them, within one or two
    blocks. `counts[c]` is k_c >= 1, the number of places of corpus c; L is their sum.
    """

    counts: tuple[int, ...]

    @property
    def length(self) -> int:
        """The number of places L."""
        return sum(self.counts)

    @property
    def shares(self) -> list[float]:
        """The share of the blocks that each corpus gets."""
        return [count / self.length for count in self.counts]

    @functools.cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The corpus of each place, the number of earlier places of this corpus, int64 [L] both;
        and `counts`.
        """
        counts, dealt = np.array(self.counts, np.int64), np.zeros(len(self.counts), np.int64)
        order, before = np.zeros((2, self.length), np.int64)
        for place in range(self.length):
            # The corpus that is furthest behind its share (times L, to stay in whole numbers); at a
            # tie the first such corpus.
            corpus = np.argmax(counts * (place + 1) - dealt * self.length)
            order[place], before[place] = corpus, dealt[corpus]
            dealt[corpus] += 1
        return order, before, counts

    def deal(self, numbers_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the corpus of each block number and the block number within that corpus, int64
        [B] both.
        """
        order, before, counts = self._tables
        round_B, place_B = np.divmod(numbers_B, self.length)
        corpus_B = order[place_B]
        return corpus_B, round_B * counts[corpus_B] + before[place_B]

    def dealt(self, number: int) -> np.ndarray:
        """Counts the block numbers below `number` that each corpus has: int64 [C]."""
        order, _, counts = self._tables
        return number // self.length * counts + np.bincount(
            order[: number % self.length], minlength=len(counts)
        )

    def most(self, count: int) -> list[int]:
        """Returns the most blocks that each corpus gets among any `count` consecutive numbers."""
        rounds, rest = divmod(count, self.length)
        order, _, counts = self._tables
        earlier = spans.before(np.tile(order == np.arange(len(self.counts))[:, None], 2))
        in_rest = earlier[:, rest : rest + self.length] - earlier[:, : self.length]
        return (rounds * counts + in_rest.max(axis=1)).tolist()


ONE = Cycle((1,))
"""Cycle of a single corpus."""


def from_weights(weights: Sequence[float]) -> Cycle:
    """Returns the cycle closest to `weights` (positive, any sum)."""
    shares = np.array(weights, np.float64) / max(weights)
    exact = shares / shares.sum() * RESOLUTION
    counts = np.maximum(1, np.floor(exact)).astype(int)
    # The remaining places go to the largest remainders.
    rest = max(0, RESOLUTION - int(counts.sum()))
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1
    return Cycle(tuple((counts // math.gcd(*counts.tolist())).tolist()))
