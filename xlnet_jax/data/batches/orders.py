"""Order distributions: which positions of a row are unknown, and in which order they are predicted
(`data.factorization_order`).

    spans         XLNet's own: short spans of an example of two halves, A and B, in a random order
                  of each half
    uniform       the unknown positions in a random order: any-order models are asked for every
                  split of a text
    left_within   in reading order: a random set with one order of its own (Shih et al. 2022, arXiv
                  2205.13554)

`spans` has its targets in the module `spans` and its ranks in `examples.ranks`. With the others a
row is one block, ranked as a whole. Of its T positions n are unknown: n is uniform from 1 to T, and
the places are random. The others are context, of rank -1, which sees context only; unknown
positions have the ranks 0 to n - 1.

Reading order in a reversed row is from the end of its text to the start. Distances are those of the
text in both directions, so inside a segment such a row is a forward text whose unknown positions
come from right to left; what follows the text is in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from xlnet_jax.config import DataConfig

Beyond = Callable[[DataConfig, Sequence[np.ndarray], str | Sequence[int]], list[str]]
"""Names the parts of a question that training has not taught. Arguments: the settings of the
training, the known positions of each segment, bool [N], and the order of the unknown ones, a name
or positions.
"""


class OrderDistribution(NamedTuple):
    """A value of `data.factorization_order`; `config.data` has the rules for the lengths of its
    examples.

    Attributes:
      order: the ranks of the unknown positions, int [B, T], from their places in a random order of
        all positions, int [B, T], and which are unknown, bool [B, T]. None: an example is not
        ranked as a whole (`spans`).
      beyond: the warnings about a question.
    """

    order: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    beyond: Beyond

    @property
    def whole(self) -> bool:
        """Whether a row is ranked as a whole: all of it is fresh text and may be unknown."""
        return self.order is not None

    def layout(self, segment_len: int) -> tuple[int, int]:
        """The numbers of fresh tokens and target slots of a row; for `spans` the published
        shares.
        """
        return (segment_len, segment_len) if self.whole else (segment_len // 2, segment_len // 6)

    def ranks(self, draws_BX: np.ndarray) -> np.ndarray:
        """The ranks of rows that are ranked as a whole, int32 [B, T], -1 for known positions; from
        X = 1 + T draws that are uniform in [0, 1).
        """
        assert self.order is not None
        T = draws_BX.shape[1] - 1
        unknown_B1 = 1 + (draws_BX[:, :1] * T).astype(int)
        # The first n of a random order of all positions: a random set in a random order.
        place_BT = np.argsort(np.argsort(draws_BX[:, 1:], axis=1), axis=1)
        unknown_BT = place_BT < unknown_B1
        return np.where(unknown_BT, self.order(place_BT, unknown_BT), -1).astype(np.int32)


def _beyond_spans(
    data: DataConfig, known: Sequence[np.ndarray], order: str | Sequence[int]
) -> list[str]:
    """Reports far more unknown positions than targets in training, and known text farther right of
    an unknown position than half a segment: a target of the first half sees nothing of the second.
    (A reversed row sees more text on its right, but its memory is there too; here it is on the
    left.)
    """
    share = max((1 - np.mean(known_N) for known_N in known), default=0.0)
    trained = data.num_predict / data.segment_len
    right = max(map(_right, known), default=0)
    most = max(data.reuse_len, data.segment_len - data.reuse_len)
    beyond = []
    if share > 1.5 * trained:
        beyond.append(
            f"up to {100 * share:.0f} % of a segment is unknown (in training {100 * trained:.0f} %)"
        )
    if right > most:
        beyond.append(
            f"known text is up to {right} tokens right of what is unknown (in training {most})"
        )
    return beyond


def _right(known_N: np.ndarray) -> int:
    """The largest distance from an unknown position to a known position on its right, or 0."""
    distance = np.flatnonzero(known_N)[-1:] - np.flatnonzero(~known_N)[:1]
    return int(distance.max(initial=0))


def _beyond_left_within(
    data: DataConfig, known: Sequence[np.ndarray], order: str | Sequence[int]
) -> list[str]:
    """Reports another order than from left to right or, if training had reversed rows, back."""
    name, both = order if isinstance(order, str) else "given", data.bidirectional
    taught = name == "left" or (both and name == "reversed")
    if not isinstance(order, str):
        taught = list(order) in [sorted(order), sorted(order, reverse=True)][: 1 + both]
    return [] if taught else [f"order={name} (in training left{' or reversed' * both})"]


DISTRIBUTIONS = {
    "spans": OrderDistribution(None, _beyond_spans),
    "uniform": OrderDistribution(lambda place_BT, unknown_BT: place_BT, lambda *question: []),
    "left_within": OrderDistribution(
        lambda place_BT, unknown_BT: np.cumsum(unknown_BT, axis=1) - 1, _beyond_left_within
    ),
}
"""Distributions by the value of `data.factorization_order`."""
