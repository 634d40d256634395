"""Order distributions: which positions of a row are unknown, and in which order they are predicted
(`data.factorization_order`).

    spans         XLNet's own: short spans of an example of two halves, A and B, in a random order
                  of each half
    uniform       the unknown positions in a random order, for models that predict any part of a
                  text from the rest
    left_within   the unknown positions in reading order, so each random set has only one order
                  (Shih et al. 2022, arXiv 2205.13554)

The targets of `spans` come from the module `spans`, its ranks from `examples.ranks`. With the other
distributions a row is ranked as a whole. Of its T positions n are unknown: n is uniform from 1 to
T, and the places are random. The other positions are context: they have rank -1 and see context
only. Unknown positions have the ranks 0 to n - 1.

In a reversed row the reading order goes from the end of the text to its start. Relative distances
are always those in the text. So inside a segment a reversed row equals a forward text whose unknown
positions are predicted from right to left. Its memory holds the text after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from xlnet_jax.config import DataConfig

Beyond = Callable[[DataConfig, Sequence[np.ndarray], str | Sequence[int]], list[str]]
"""Function that names the properties of a question that training did not have. Arguments: the
training's data settings, the known positions of each segment, bool [N], and the order of the
unknown positions, a name or a list of positions.
"""


class OrderDistribution(NamedTuple):
    """A value of `data.factorization_order`; `config.data` has the rules for the lengths of its
    examples.

    Attributes:
      order: function that returns the ranks of the unknown positions, int [B, T]. Arguments: the
        places in a random order of all positions, int [B, T], and which positions are unknown, bool
        [B, T]. None: an example is not ranked as a whole (`spans`).
      beyond: function that returns the warnings about a question.
    """

    order: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    beyond: Beyond

    @property
    def whole(self) -> bool:
        """Whether a row is ranked as a whole: all of it is fresh text and may be unknown."""
        return self.order is not None

    def layout(self, segment_len: int) -> tuple[int, int]:
        """Returns the numbers of fresh tokens and target slots of a row; for `spans` the published
        shares.
        """
        return (segment_len, segment_len) if self.whole else (segment_len // 2, segment_len // 6)

    def ranks(self, draws_BX: np.ndarray, length_B1: int | np.ndarray) -> np.ndarray:
        """Ranks the positions of whole rows, int32 [B, T], -1 for known positions, from X = 1 + T
        draws that are uniform in [0, 1). Positions from `length_B1` on are known.
        """
        assert self.order is not None
        T = draws_BX.shape[1] - 1
        unknown_B1 = 1 + (draws_BX[:, :1] * length_B1).astype(int)
        # The first n positions of a random order are a random set in a random order.
        draws_BT = np.where(np.arange(T) < length_B1, draws_BX[:, 1:], 1.0)
        place_BT = np.argsort(np.argsort(draws_BT, axis=1), axis=1)
        unknown_BT = place_BT < unknown_B1
        return np.where(unknown_BT, self.order(place_BT, unknown_BT), -1).astype(np.int32)


def _beyond_spans(
    data: DataConfig, known: Sequence[np.ndarray], order: str | Sequence[int]
) -> list[str]:
    """Reports far more unknown positions than targets in training, and known text more than half a
    segment to the right of an unknown position: in training a target of the first half sees nothing
    of the second. (A reversed row sees more text on its right, but its memory is on the right too;
    the memory of a question is on the left.)
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
            f"known text is up to {right} tokens right of an unknown position (in training {most})"
        )
    return beyond


def _right(known_N: np.ndarray) -> int:
    """Returns the largest distance from an unknown to a known position on its right, or 0."""
    distance = np.flatnonzero(known_N)[-1:] - np.flatnonzero(~known_N)[:1]
    return int(distance.max(initial=0))


def _beyond_left_within(
    data: DataConfig, known: Sequence[np.ndarray], order: str | Sequence[int]
) -> list[str]:
    """Reports any order except `left` and, if training had reversed rows, `reversed`."""
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
