"""Order laws: which positions of a row are unknown, and in which order they are predicted.

Of a row of T positions, n are unknown: n is uniform from 1 to T, and the places are random. The others are context.

    uniform       the unknown positions in a random order: any-order models are asked for every split of a text
    left_within   in reading order: a random set with one order of its own (Shih et al. 2022, arXiv 2205.13554)

The row is one block, ranked as a whole: context -1, which sees context only; unknown positions 0 to n - 1. (`spans`,
XLNet's own law, has its targets in `spans` and its ranks in `examples.ranks`.)

Reading order in a reversed row is from the end of its text to the start. Distances are those of the text in both
directions, so inside a segment such a row is a forward text whose unknown positions come from right to left; what
follows the text is in its memory.
"""

from __future__ import annotations

import numpy as np


def draws_needed(length: int) -> int:
    """Number of uniform draws that `ranks` takes for `length` positions."""
    return 1 + length


def ranks(law: str, draws_BX: np.ndarray) -> np.ndarray:
    """The rank of every position, int32 [B, T]: -1 if it is known.

    Args:
      law: `uniform` or `left_within`.
      draws_BX: uniform in [0, 1), `draws_needed(T)` for each row.
    """
    T = draws_BX.shape[1] - 1
    unknown_B1 = 1 + (draws_BX[:, :1] * T).astype(int)
    # The first n of a random order of all positions: a random set in a random order.
    place_BT = np.argsort(np.argsort(draws_BX[:, 1:], axis=1), axis=1)
    unknown_BT = place_BT < unknown_B1
    order_BT = place_BT if law == "uniform" else np.cumsum(unknown_BT, axis=1) - 1
    return np.where(unknown_BT, order_BT, -1).astype(np.int32)
