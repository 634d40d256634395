"""Partial prediction: chooses short spans as targets, each with context of alpha / beta times its
length around it.

Along the text: draw a span length n with P(n) proportional to 1/n, reserve alpha / beta times its
pieces as context, split the context at a uniform position, put the span there (moved right to the
next word start), and continue after the context. If the text ends before the goal is met, single
positions fill the rest (`_sample_mask` of the original). A span is n whole words; its context is
computed for n words of mean length. The 2019 code takes n pieces from a word start, an oversight
that its authors kept.

`in_random_order` is the distribution of BERT's code and, with spans of several words, of ALBERT's
code.

All rows of a batch advance together, one span per iteration.
"""

from __future__ import annotations

import numpy as np

from xlnet_jax.config import DataConfig


def draws_needed(length: int, data: DataConfig) -> int:
    """Returns the number of uniform draws that `sample` takes per row."""
    return 2 * _most_spans(length, data) + length


def _most_spans(length: int, data: DataConfig) -> int:
    # A span of one piece takes the least space: that piece and alpha // beta pieces of context.
    return -(-length // (1 + data.mask_group_size // data.masks_per_group)) + 1


def sample(
    word_start_BN: np.ndarray,
    eligible_BN: np.ndarray,
    goal: int | np.ndarray,
    draws_BX: np.ndarray,
    data: DataConfig,
    kind: str,
    length_B1: int | np.ndarray,
) -> np.ndarray:
    """Chooses targets: bool [B, N] with exactly min(goal, eligible) true in each row.

    Args:
      goal: one number, or int [B, 1].
      length_B1: lengths of the texts, int [B, 1]; no piece behind them begins a word or is
        eligible.
      word_start_BN: bool: the piece begins a word.
      eligible_BN: bool: the piece may be a target (not SEP or CLS).
      kind: `words`, `pieces` or `random` (single positions only).
      draws_BX: float [B, draws_needed(N, data)], uniform in [0, 1).
    """
    B, N = word_start_BN.shape
    spans, max_span = _most_spans(N, data), data.max_span
    length_BS, place_BS, fill_BN = np.split(draws_BX, [spans, 2 * spans], axis=1)
    length_BS = _lengths(length_BS, max_span)
    columns = np.arange(N)
    first_BW, before_BN = _words(word_start_BN, max_span)
    eligible_before_BN = before(eligible_BN)
    first_BW = np.minimum(first_BW, length_B1)

    # Pieces per unit of span length: the mean word length of the row. With a smaller unit the scan
    # would meet its goal early, and the end of the text would have too few targets.
    unit = length_B1 / np.maximum(before_BN[:, -1:], 1) if kind == "words" else 1.0

    chosen_BN = np.zeros((B, N), bool)
    done_B1 = cursor_B1 = np.zeros((B, 1), int)
    going_B1 = np.full((B, 1), kind != "random")
    for s in range(spans):
        going_B1 &= (done_B1 < goal) & (cursor_B1 < length_B1)
        if not going_B1.any():
            break
        left_B1 = goal - done_B1
        n_B1 = np.minimum(length_BS[:, s : s + 1], np.maximum(left_B1, 1))
        context_B1 = (n_B1 * unit * data.mask_group_size // data.masks_per_group).astype(int)
        lead_B1 = np.minimum((place_BS[:, s : s + 1] * context_B1).astype(int), context_B1 - 1)
        word_B1 = at(before_BN, np.minimum(cursor_B1 + lead_B1, length_B1))
        begin_B1 = at(first_BW, word_B1)
        if kind == "words":
            # Take the longest run of at most n words that fits the rest of the goal. A first word
            # that does not fit is skipped.
            ends_BS = at(first_BW, word_B1 + np.arange(1, max_span + 1))
            size_BS = at(eligible_before_BN, ends_BS) - at(eligible_before_BN, begin_B1)
            fits_BS = (size_BS <= left_B1) & (np.arange(1, max_span + 1) <= n_B1)
            words_B1 = fits_BS.sum(axis=1, keepdims=True)
            end_B1 = at(ends_BS, np.maximum(words_B1 - 1, 0))
        else:
            words_B1 = n_B1
            end_B1 = begin_B1 + n_B1
        # A span that touches the end of the text may be cut off there: it is not taken and ends
        # the scan.
        going_B1 &= end_B1 < length_B1
        taken_B1 = going_B1 & (words_B1 > 0)
        chosen_BN |= taken_B1 & (columns >= begin_B1) & (columns < end_B1) & eligible_BN
        done_B1 = chosen_BN.sum(axis=1, keepdims=True)
        cursor_B1 = end_B1 + context_B1 - lead_B1

    # Fill the missing targets with the free positions that have the smallest draws.
    free_BN = eligible_BN & ~chosen_BN
    order_BN = np.argsort(np.where(free_BN, fill_BN, 2.0), axis=1, kind="stable")
    return chosen_BN | (free_BN & (np.argsort(order_BN, axis=1, kind="stable") < goal - done_B1))


def in_random_order(
    word_start_BN: np.ndarray,
    eligible_BN: np.ndarray,
    goal: int | np.ndarray,
    draws_BX: np.ndarray,
    max_span: int,
) -> np.ndarray:
    """Chooses targets: whole words in random order, bool [B, N], at most `goal` in each row.

    Each word starts a span of up to n words, with P(n) proportional to 1/n. The span is shortened:
    it ends before the end of the row, before a piece that may not be a target, such as SEP, and
    within the rest of the goal. It is left out if its first word is too long or if it overlaps an
    earlier span. With `max_span` 1 the targets are the whole words of Google's
    `create_masked_lm_predictions`, with 3 the n-grams of ALBERT's code, except that in ALBERT's
    code a span may continue after SEP.

    Args:
      word_start_BN, eligible_BN, goal: as in `sample`; all pieces of a target's word must be
        eligible.
      draws_BX: float [B, 2 N], uniform in [0, 1).
    """
    B, N = word_start_BN.shape
    order_BN, length_BN = np.split(draws_BX, 2, axis=1)
    first_BW, before_BN = _words(word_start_BN, max_span)
    length_BN, ahead_S = _lengths(length_BN, max_span), np.arange(max_span)
    # Pieces before the first word belong to no word.
    barred_BW = np.arange(N + max_span) >= before_BN[:, -1:]
    row_BN, word_BN = np.indices((B, N))[0], before_BN[:, 1:] - 1
    barred_BN = ~eligible_BN & (word_BN >= 0)
    barred_BW[row_BN[barred_BN], word_BN[barred_BN]] = True
    chosen_BW = np.zeros_like(barred_BW)
    order_BN = np.argsort(np.where(barred_BW[:, :N], 2.0, order_BN), axis=1, kind="stable")
    left_B1 = np.minimum(goal, eligible_BN.sum(axis=1, keepdims=True))
    for k in range((~barred_BW[:, :N]).sum(axis=1).max()):
        span_BS = order_BN[:, k : k + 1] + ahead_S
        size_BS = at(first_BW, span_BS + 1) - first_BW[np.arange(B), span_BS[:, 0]][:, None]
        fits_BS = (size_BS <= left_B1) & (ahead_S < length_BN[:, k : k + 1])
        fits_BS &= ~np.logical_or.accumulate(at(barred_BW, span_BS), axis=1)
        fits_BS &= ~(at(chosen_BW, span_BS) & fits_BS).any(axis=1, keepdims=True)
        np.put_along_axis(chosen_BW, span_BS, at(chosen_BW, span_BS) | fits_BS, axis=1)
        left_B1 = left_B1 - np.where(fits_BS, size_BS, 0).max(axis=1, keepdims=True)
        if not left_B1.any():
            break
    return at(chosen_BW, np.maximum(word_BN, 0)) & (word_BN >= 0)


def at(table: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns the entries of each row at its indices."""
    return np.take_along_axis(table, index, axis=1)


def before(flags_BN: np.ndarray) -> np.ndarray:
    """Counts the set flags before each of the positions 0 to N: int64 [B, N + 1]."""
    return np.pad(np.cumsum(flags_BN, axis=1), ((0, 0), (1, 0)))


def first_true(flags_BN: np.ndarray, none: int | np.ndarray) -> np.ndarray:
    """Returns the first position in each row whose flag is set, int64 [B], or `none`."""
    return np.where(flags_BN.any(axis=1), flags_BN.argmax(axis=1), none)


def drawn_true(flags_BN: np.ndarray, draws_B: np.ndarray, none_B: np.ndarray) -> np.ndarray:
    """Chooses a position with a set flag in each row, int64 [B], by draws uniform in [0, 1);
    `none_B` in a row without set flags.
    """
    nth_B1 = 1 + (draws_B * flags_BN.sum(axis=1)).astype(int)[:, None]
    return first_true(flags_BN & (np.cumsum(flags_BN, axis=1) == nth_B1), none_B)


def start_before(starts_BX: np.ndarray, place: int, most_B: np.ndarray) -> np.ndarray:
    """Returns the last start of a sentence from L = max(0, `place - most_B`) to `place`, or L if
    no sentence starts there: int64 [B].
    """
    columns, lowest_B1 = np.arange(place + 1), np.maximum(0, place - most_B)[:, None]
    is_start = (starts_BX[:, : place + 1] | (columns == lowest_B1)) & (columns >= lowest_B1)
    return place - is_start[:, ::-1].argmax(axis=1)


def _lengths(draws: np.ndarray, max_span: int) -> np.ndarray:
    """Returns span lengths n from 1 to `max_span`, with P(n) proportional to 1/n."""
    cumulative = np.cumsum(1.0 / np.arange(1, max_span + 1))
    return 1 + np.searchsorted(cumulative / cumulative[-1], draws, side="right")


def _words(word_start_BN: np.ndarray, max_span: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start of each word, int [B, N + max_span + 1], N past the last word; and the
    number of words that start before each of the positions 0 to N.
    """
    N = word_start_BN.shape[1]
    first_BW = np.sort(np.where(word_start_BN, np.arange(N), N), axis=1)
    first_BW = np.pad(first_BW, ((0, 0), (0, max_span + 1)), constant_values=N)
    return first_BW, before(word_start_BN)
