"""Segments A and B of an example: their start, their end, and the choice of B.

A starts at the row's position in the text. B is the text that follows A (label 1), or, depending on
`data.pairs`,

    next     text from elsewhere in the corpus, label 0; it does not overlap this row's own window,
             look-ahead and memory (`_split_a_and_b` of the original draws B from the same range of
             text, with overlaps)
    order    the text that follows, with A and B swapped: label 0 (ALBERT's sentence order)

A and B end at the end of a sentence, and are then cut to the budget of the example.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlnet_jax.config import DataConfig
from xlnet_jax.data.batches import spans
from xlnet_jax.data.batches.stream import Windows
from xlnet_jax.data.corpus.corpus import Corpus


class SegmentLayout(NamedTuple):
    """Lengths of an example."""

    segment_len: int
    reuse_len: int
    memory_len: int
    first_goal: int
    """Number of targets in the reuse window: 43 of 85 in the published layout."""
    second_goal: int
    """Number of targets after the reuse window."""

    @property
    def budget(self) -> int:
        """The number of tokens of A and B together."""
        return self.segment_len - self.reuse_len - 3

    @property
    def own(self) -> int:
        """The number of the row's own tokens, which a random B must not overlap: memory, window,
        look-ahead.
        """
        return self.memory_len + self.reuse_len + self.budget


class Pairs(NamedTuple):
    """Segments A and B of B rows, |A| + |B| = budget."""

    a_len_B: np.ndarray
    tokens_BY: np.ndarray
    """The tokens of A and then of B."""
    follows_B: np.ndarray
    """bool: whether B is the text after A."""
    labelled_B: np.ndarray
    """bool: whether the label was chosen; if False, `follows_B` has no meaning."""


def read_in_order(
    text: Corpus, cursor_B: np.ndarray, direction_B: np.ndarray, length: int
) -> tuple:
    """Reads text from each cursor on in reading order. Returns the tokens, and whether a sentence
    starts at each, bool.

    In a reversed row a sentence starts with its last token, the token before the next sentence.
    """
    reversed_B1 = direction_B[:, None] < 0
    tokens_BN, starts_BN = text.read(
        np.where(direction_B < 0, cursor_B - length + 1, cursor_B), length + 1
    )
    return (
        np.where(reversed_B1, tokens_BN[:, length - 1 :: -1], tokens_BN[:, :length]),
        np.where(reversed_B1, starts_BN[:, :0:-1], starts_BN[:, :length]),
    )


def choose_pairs(
    text: Corpus,
    where: Windows,
    ahead_BX: np.ndarray,
    starts_BX: np.ndarray,
    shape: SegmentLayout,
    draws_B4: np.ndarray,
    data: DataConfig,
) -> Pairs:
    """Chooses A and B by `data.pairs`.

    Args:
      ahead_BX: tokens from the start of A on in reading order, at least the budget. With
        budget + budget // 2 tokens B ends at the end of a sentence, or is cut to the same length as
        any longer B.
      starts_BX: bool, whether a sentence starts at each of these tokens.
    """
    tot, (B, X) = shape.budget, ahead_BX.shape
    columns = np.arange(X)
    cut_BX = starts_BX & (columns >= 1) & (columns < tot)
    cuts_B = cut_BX.sum(axis=1)
    end_B = spans.first_true(starts_BX & (columns >= tot), X)
    follows_B = draws_B4[:, 0] < data.positive_pair_rate
    a_end_B = spans.drawn_true(cut_BX, draws_B4[:, 1], end_B)
    b_begin_B, b_end_B = a_end_B.copy(), end_B.copy()
    elsewhere_BX = np.zeros((B, 3 * tot), ahead_BX.dtype)
    if data.pairs == "next":
        follows_B &= cuts_B > 0
        rows = np.flatnonzero(~follows_B)
        elsewhere_BX[rows], b_begin_B[rows], b_end_B[rows] = _elsewhere(
            text, where.take(rows), shape, tot - a_end_B[rows], draws_B4[rows, 2]
        )

    # A and B are cut to the budget: the longer segment (B at a tie) loses tokens.
    a_len_B = np.minimum(a_end_B, np.maximum(tot - (b_end_B - b_begin_B), -(-tot // 2)))
    a_len_B1, place_BY = a_len_B[:, None], np.arange(tot)[None, :]
    from_b_BY = place_BY - a_len_B1 + b_begin_B[:, None]
    in_a_BY = place_BY < a_len_B1
    following_BY = spans.at(ahead_BX, np.where(in_a_BY, place_BY, np.minimum(from_b_BY, X - 1)))
    if data.pairs == "order":
        # Text without a sentence start within the budget is A alone, and is not swapped.
        swapped_B1 = ~follows_B[:, None] & (a_len_B1 < tot)
        swapped_BY = spans.at(following_BY, (place_BY + a_len_B1) % tot)
        return Pairs(
            np.where(swapped_B1, tot - a_len_B1, a_len_B1)[:, 0],
            np.where(swapped_B1, swapped_BY, following_BY),
            ~swapped_B1[:, 0],
            cuts_B > 0,
        )
    elsewhere_BY = spans.at(elsewhere_BX, np.clip(from_b_BY, 0, 3 * tot - 1))
    tokens_BY = np.where(in_a_BY | follows_B[:, None], following_BY, elsewhere_BY)
    return Pairs(a_len_B, tokens_BY, follows_B, np.ones(B, bool))


def _elsewhere(
    text: Corpus, where: Windows, shape: SegmentLayout, wanted_R: np.ndarray, draws_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads text for a random B of R rows, int [R, 3 budgets], and finds where B begins and
    ends in it.
    """
    tot = shape.budget
    # Distances from the start of A in reading order, in a corpus that wraps around: text in
    # [tot, tot + room) does not overlap the row.
    room = text.tokens - shape.own
    distance_R = tot + (draws_R * (room - 2 * tot + 1)).astype(np.int64)
    ahead_R = shape.reuse_len + distance_R - tot
    tokens, starts = read_in_order(
        text, where.cursor_B + where.direction_B * ahead_R, where.direction_B, 3 * tot
    )
    # B begins at the start of its sentence, but at most a budget before the drawn place and not
    # inside the row's own text.
    is_end = starts & (np.arange(3 * tot) >= tot + np.maximum(1, wanted_R)[:, None])
    return (
        tokens,
        spans.start_before(starts, tot, distance_R - tot),
        spans.first_true(is_end, 3 * tot - 1),
    )
