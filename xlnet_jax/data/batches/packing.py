"""Whole documents in rows, for `data.documents=whole`.

A document is one piece or, if a row cannot hold it, the fewest pieces of nearly equal length, the
longer first. `GROUP` consecutive pieces are a group, whose pieces are put into rows by first fit,
longest first (Johnson 1973); rows are numbered through over all groups. So a group does not depend
on other groups, and the pieces of a row are found again from the lengths of the documents, the
first piece of each group, and 16 bits per piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlnet_jax.errors import BadInput

GROUP = 1024
"""Pieces of a group. The rows of an epoch depend on it."""

_TOGETHER = 256  # groups that are packed at the same time

Goal = Callable[[np.ndarray], np.ndarray]
"""The largest number of targets of pieces with these numbers of tokens."""


class RowPieces(NamedTuple):
    """The pieces of one row in the order of their slots, which is that of the split; int64 [D]
    each.
    """

    first_D: np.ndarray
    """First token of the piece in the split."""
    length_D: np.ndarray
    """Tokens of text; EOD is not counted."""
    part_D: np.ndarray
    """Number of the piece in its document, from 0."""
    parts_D: np.ndarray
    """Number of pieces of its document."""
    number_D: np.ndarray
    """Number of the piece in the split."""


class _Groups(NamedTuple):
    """The pieces of all documents of a split, in groups."""

    length_D: np.ndarray
    """Tokens of each document."""
    eod: bool
    """Whether one token of each document is no text."""
    longest: int
    """Largest number of tokens of a piece."""
    pieces: int
    first_G3: np.ndarray
    """int64: the document of each group's first piece, the number of this piece in it, and the
    first token of this document in the split. The last line is behind all groups.
    """

    def read(self, group: int, end: int, place_N: np.ndarray) -> RowPieces:
        """Returns pieces of the groups [group, end) by their places, from 0."""
        (document, part, token), (last, *_) = self.first_G3[[group, end]].tolist()
        token_D = self.length_D[document : last + 1].astype(np.int64)
        parts_D = -((self.eod - token_D) // self.longest)
        end_D = np.cumsum(parts_D) - part
        document_N = np.searchsorted(end_D, place_N, "right")
        parts_N = parts_D[document_N]
        part_N = place_N - end_D[document_N] + parts_N
        # The first `longer_N` pieces have a token more.
        length_N, longer_N = np.divmod(token_D[document_N] - self.eod, parts_N)
        first_D = token + np.cumsum(token_D) - token_D
        return RowPieces(
            first_D[document_N] + part_N * length_N + np.minimum(part_N, longer_N),
            length_N + (part_N < longer_N),
            part_N,
            parts_N,
            group * GROUP + place_N,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Packing:
    """The rows of one epoch."""

    rows: int
    """Number of rows."""
    groups: _Groups
    first_row_G: np.ndarray
    """int64: number of the first row of each group."""
    row_N: np.ndarray
    """uint16: number of the row of each piece in its group."""

    def row(self, index: int) -> RowPieces:
        """Returns the pieces of a row."""
        index = range(self.rows)[index]
        group = int(np.searchsorted(self.first_row_G, index, "right")) - 1
        row_N = self.row_N[group * GROUP : (group + 1) * GROUP]
        place_N = np.flatnonzero(row_N == index - self.first_row_G[group])
        return self.groups.read(group, group + 1, place_N)


def pack(
    lengths: np.ndarray,
    eod: bool,
    segment_len: int,
    frame: int,
    slots: int,
    goal: Goal,
) -> Packing:
    """Packs the documents of a split into rows of `segment_len` positions and `slots` targets.

    Args:
      lengths: tokens of each document; not copied.
      eod: whether one of them is EOD.
      frame: number of tokens around the text of each piece.
      goal: see `Goal`.

    Raises BadInput: a row cannot hold one piece, or a document has no text.
    """
    longest, shortest = segment_len - frame, int(lengths.argmin())
    if longest < 1:
        raise BadInput(
            f"data.segment_len={segment_len} cannot hold a token of a document and the {frame} "
            f"tokens around it; use {frame + 1} or more"
        )
    if lengths[shortest] <= eod:
        raise BadInput(
            f"document {shortest} (0 is the first) has no token of text; leave it out, and prepare "
            "the text again with another --output"
        )
    parts_D = -((eod - lengths) // longest)
    first_D, token_D = (
        np.concatenate([[0], np.cumsum(x_D, dtype=np.int64)]) for x_D in (parts_D, lengths)
    )
    pieces = int(first_D[-1])
    number_G = np.arange(0, pieces + GROUP, GROUP)
    document_G = np.searchsorted(first_D, number_G, "right") - 1
    first_G3 = np.stack([document_G, number_G - first_D[document_G], token_D[document_G]], axis=1)
    groups = _Groups(lengths, eod, longest, pieces, first_G3)
    row_N = np.concatenate(
        [
            _first_fit(groups, group, segment_len, slots, goal)
            for group in range(0, len(number_G) - 1, _TOGETHER)
        ]
    )
    rows_G = 1 + np.maximum.reduceat(row_N, number_G[:-1]).astype(np.int64)
    return Packing(int(rows_G.sum()), groups, np.cumsum(rows_G) - rows_G, row_N)


def _first_fit(groups: _Groups, group: int, segment_len: int, slots: int, goal: Goal) -> np.ndarray:
    """Packs up to `_TOGETHER` groups. Returns the row of each piece in its group, uint16.

    The loop is over the places of a group: each step serves all groups. Axis 2: positions, targets.
    """
    end = min(group + _TOGETHER, len(groups.first_G3) - 1)
    place_N = np.arange(min(end * GROUP, groups.pieces) - group * GROUP)
    length_N = groups.read(group, end, place_N).length_D
    goal_N = goal(length_N)
    if goal_N.max() > slots:
        raise BadInput(
            f"data.num_predict={slots} cannot hold the {goal_N.max()} targets of a piece of "
            f"{length_N[goal_N.argmax()]} tokens; use {goal(np.array(groups.longest))} or more, or "
            "a smaller data.segment_len"
        )
    need_2GN = np.zeros((2, end - group, GROUP), np.min_scalar_type(max(segment_len, slots)))
    frame = segment_len - groups.longest
    need_2GN.reshape(2, -1)[:, place_N] = length_N + frame, goal_N
    left_2GR = np.full_like(need_2GN, [[[segment_len]], [[slots]]])
    row_GN, group_G = np.empty(need_2GN.shape[1:], np.uint16), np.arange(end - group)
    opened = 1  # rows up to the first that is empty in all groups
    # The longest first; of equal lengths the earlier first; last, places without a piece.
    for place_G in np.argsort(segment_len - need_2GN[0], axis=1, kind="stable").T:
        need_2G = need_2GN[:, group_G, place_G]
        fits_GR = (left_2GR[:, :, :opened] >= need_2G[:, :, None]).all(axis=0)
        row_GN[group_G, place_G] = row_G = fits_GR.argmax(axis=1)
        left_2GR[:, group_G, row_G] -= need_2G
        opened = max(opened, int(row_G.max()) + 2)
    return row_GN.reshape(-1)[place_N]
