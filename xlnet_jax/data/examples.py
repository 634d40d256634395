"""From a place in the corpus to a Batch: reuse window, segments A and B, targets, factorisation order.

    [ reuse window, R tokens ][ A ][SEP][ B ][SEP][CLS]        T tokens in all
      segment 0                 0    0    1    1    2

A begins right after the reuse window. B is the text that follows A, or text from elsewhere in the corpus that shares
nothing with this row's own window, look-ahead and memory (`_split_a_and_b` of the original, which drew it from the
same stretch of text and let it overlap). The reuse window and the rest have their own targets and their own
factorisation orders; the first half never sees the second. All rows of a batch are built together, in numpy.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from xlnet_jax.batch import Batch
from xlnet_jax.config import Config, DataConfig
from xlnet_jax.data import spans
from xlnet_jax.data.stream import Windows, uniforms
from xlnet_jax.data.tokenizer import CLS, SEP
from xlnet_jax.errors import BadInput


class Text(Protocol):
    """What examples are made from: `corpus.Corpus`, or anything that reads like it."""

    tokens: int

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 [B, length] and sentence starts bool [B, length], wrapping round at the end."""
        ...


@dataclasses.dataclass(frozen=True)
class Layout:
    """Lengths that follow from the configuration."""

    segment_len: int
    reuse_len: int
    memory_len: int
    first_goal: int
    """Targets in the reuse window: 43 of 85 in the published layout."""
    second_goal: int

    @property
    def budget(self) -> int:
        """Tokens of A and B together."""
        return self.segment_len - self.reuse_len - 3

    @property
    def own(self) -> int:
        """Tokens around the window that random B keeps away from: memory, window, look-ahead."""
        return self.memory_len + self.reuse_len + self.budget


def layout(data: DataConfig, memory_len: int) -> Layout:
    """Splits the targets over the two parts in proportion to their lengths."""
    second = data.num_predict * (data.segment_len - data.reuse_len) // data.segment_len
    return Layout(data.segment_len, data.reuse_len, memory_len, data.num_predict - second, second)


def check(text: Text, shape: Layout, split: str) -> None:
    """Raises BadInput if the text is too short for random B to keep clear of its own row."""
    need = shape.own + 3 * shape.budget
    if text.tokens < need:
        raise BadInput(
            f"the {split} split has {text.tokens:,} tokens, but an example with its memory and a random segment B "
            f"needs {need:,}; use more text or a shorter data.segment_len"
        )


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Segments A and B of B rows, |A| + |B| = budget."""

    a_len_B: np.ndarray
    tokens_BY: np.ndarray
    """A's tokens and then B's."""
    follows_B: np.ndarray
    """bool: B is the text after A."""


def read_in_order(text: Text, cursor_B: np.ndarray, direction_B: np.ndarray, length: int) -> tuple:
    """Text from each cursor on in reading order, and where sentences start in that order.

    Read backwards, a sentence starts where forwards the next one does: its last token comes first.
    """
    reversed_B1 = direction_B[:, None] < 0
    tokens_BN, starts_BN = text.read(np.where(direction_B < 0, cursor_B - length + 1, cursor_B), length + 1)
    tokens = np.where(reversed_B1, tokens_BN[:, length - 1 :: -1], tokens_BN[:, :length])
    starts = np.where(reversed_B1, starts_BN[:, :0:-1], starts_BN[:, :length])
    return tokens, starts


def split_lengths(a_len: np.ndarray, b_len: np.ndarray, budget: int) -> np.ndarray:
    """How much of A stays when both are cut to `budget` tokens, always from the longer one, from B at a tie."""
    return np.minimum(a_len, np.maximum(budget - b_len, -(-budget // 2)))


def choose_pairs(
    text: Text, where: Windows, ahead_BX: np.ndarray, starts_BX: np.ndarray, shape: Layout, draws_B4: np.ndarray,
    follow_probability: float,
) -> Pairs:  # fmt: skip
    """Chooses A and B.

    Args:
      ahead_BX: tokens after the reuse window in reading order, budget + budget // 2 of them: beyond that, a longer B
        would be cut to the same length.
      starts_BX: where sentences start among them.
    """
    tot, (B, X) = shape.budget, ahead_BX.shape
    columns = np.arange(X)
    cut_BX = starts_BX & (columns >= 1) & (columns < tot)
    cuts_B = cut_BX.sum(axis=1)
    beyond_BX = starts_BX & (columns >= tot)
    end_B = np.where(beyond_BX.any(axis=1), beyond_BX.argmax(axis=1), X)
    follows_B = (draws_B4[:, 0] < follow_probability) & (cuts_B > 0)

    nth_B = (draws_B4[:, 1] * cuts_B).astype(int)
    cut_B = (cut_BX & (np.cumsum(cut_BX, axis=1) == nth_B[:, None] + 1)).argmax(axis=1)
    a_end_B = np.where(cuts_B > 0, cut_B, end_B)
    b_begin_B, b_end_B = a_end_B.copy(), end_B.copy()

    source_BX = np.zeros((B, 3 * tot), ahead_BX.dtype)
    others = np.flatnonzero(~follows_B)
    if others.size:
        # Distances ahead of A's begin, in reading order and round the corpus: [tot, tot + room) is nobody's own.
        room = text.tokens - shape.own
        wanted = np.maximum(1, tot - a_end_B[others])
        place = tot + (draws_B4[others, 2] * (room - 2 * tot + 1)).astype(np.int64)
        direction = where.direction_B[others].astype(np.int64)
        begin = where.cursor_B[others] + direction * shape.reuse_len
        source_BX[others], starts = read_in_order(
            text, begin + direction * (place - tot), where.direction_B[others], 3 * tot
        )
        columns = np.arange(3 * tot)
        # Left to the start of its sentence, but neither into the row's own text nor further than the budget.
        lowest = np.maximum(0, 2 * tot - place)[:, None]
        is_begin = (starts | (columns == lowest)) & (columns >= lowest) & (columns <= tot)
        b_begin_B[others] = tot - is_begin[:, tot::-1].argmax(axis=1)
        is_end = (starts & (columns >= tot + wanted[:, None])) | (columns == 3 * tot - 1)
        b_end_B[others] = is_end.argmax(axis=1)

    a_len_B = split_lengths(a_end_B, b_end_B - b_begin_B, tot)
    place_BY = np.arange(tot)[None, :]
    from_b_BY = place_BY - a_len_B[:, None] + b_begin_B[:, None]
    in_a_BY = place_BY < a_len_B[:, None]
    following = np.take_along_axis(ahead_BX, np.where(in_a_BY, place_BY, np.minimum(from_b_BY, X - 1)), axis=1)
    elsewhere = np.take_along_axis(source_BX, np.clip(from_b_BY, 0, 3 * tot - 1), axis=1)
    return Pairs(a_len_B, np.where(in_a_BY | follows_B[:, None], following, elsewhere), follows_B)


def ranks(tokens_BT: np.ndarray, target_BT: np.ndarray, reuse_len: int, draws_BT: np.ndarray) -> np.ndarray:
    """The factorisation order: context -1, targets and SEP/CLS their place in a random order of their half.

    The second half starts R + 1 higher, so that all of it sees all of the first and never the other way round
    (`_local_perm` of the original with perm_size = the length of a half). int32 [B, T].
    """
    order_BT = np.concatenate(
        [np.argsort(np.argsort(half, axis=1), axis=1) for half in np.split(draws_BT, [reuse_len], axis=1)], axis=1
    )
    ordered_BT = target_BT | (tokens_BT == SEP) | (tokens_BT == CLS)
    rank_BT = np.where(ordered_BT, order_BT, -1)
    rank_BT[:, reuse_len:] += reuse_len + 1
    return rank_BT.astype(np.int32)


def build(
    text: Text,
    word_start_V: np.ndarray,
    config: Config,
    where: Windows,
    *,
    name: str,
    step: int,
    rows: np.ndarray,
) -> Batch:
    """The Batch that `where` describes.

    Args:
      word_start_V: bool [V]: the piece begins a word.
      where: places of the B rows, from `stream`.
      name, step, rows: what the random draws are keyed by, beside the data seed; see `stream.uniforms`.
    """
    data, compat, seed = config.data, config.compat, config.seeds.data
    shape = layout(data, config.model.memory_len)
    T, R, tot, P = shape.segment_len, shape.reuse_len, shape.budget, data.num_predict
    B = len(rows)
    needs = [spans.draws_needed(half, data.mask_alpha, data.mask_beta) for half in (R, T - R)]
    draws = uniforms(seed, name, step, rows, 4 + sum(needs) + T)
    if compat.on("static_targets"):
        # All but the factorisation order belongs to the window and its direction, not to the step.
        fixed = uniforms(seed, "static", where.window, 2 * where.block_B + (where.direction_B < 0), 4 + sum(needs))
        draws[:, : fixed.shape[1]] = fixed
    pair_draws, first_draws, second_draws, order_draws = np.split(draws, np.cumsum([4, *needs]), axis=1)

    tokens_BX, starts_BX = read_in_order(text, where.cursor_B, where.direction_B, R + tot + tot // 2)
    pairs = choose_pairs(text, where, tokens_BX[:, R:], starts_BX[:, R:], shape, pair_draws, data.follow_probability)

    column = np.arange(T)[None, :]
    first_sep = R + pairs.a_len_B[:, None]
    place = np.clip(column - R - (column > first_sep), 0, tot - 1)
    tokens_BT = np.where(column < R, tokens_BX[:, np.minimum(np.arange(T), R - 1)],
                         np.take_along_axis(pairs.tokens_BY, place, axis=1))  # fmt: skip
    tokens_BT = np.where((column == first_sep) | (column == T - 2), SEP, tokens_BT)
    tokens_BT[:, T - 1] = CLS
    segments_BT = (column > first_sep).astype(np.int32)
    segments_BT[:, T - 1] = 2

    # Words are words in the text's own order, so reversed rows are turned round to find spans and then back.
    turned_B1 = where.direction_B[:, None] < 0
    targets = []
    halves = ((slice(0, R), shape.first_goal, first_draws), (slice(R, T), shape.second_goal, second_draws))
    for half, goal, half_draws in halves:
        natural = np.where(turned_B1, tokens_BT[:, half][:, ::-1], tokens_BT[:, half])
        text_only = (natural != SEP) & (natural != CLS)
        mask = spans.sample(
            word_start_V[natural], text_only | compat.on("fill_functional"), goal, half_draws,
            max_span=data.max_span, alpha=data.mask_alpha, beta=data.mask_beta,
            kind="pieces" if compat.on("piece_spans") else data.spans,
        )  # fmt: skip
        mask &= text_only
        targets.append(np.where(turned_B1, mask[:, ::-1], mask))
    target_BT = np.concatenate(targets, axis=1)

    # A stable sort of "is no target" brings the targets' positions to the front, ascending.
    position_BP = np.argsort(~target_BT, axis=1, kind="stable")[:, :P]
    used_BP = np.arange(P)[None, :] < target_BT.sum(axis=1, keepdims=True)
    position_BP = np.where(used_BP, position_BP, 0)
    weight_BP = used_BP & where.exists_B[:, None]
    return Batch(
        tokens=tokens_BT.astype(np.int32),
        segments=segments_BT,
        rank=ranks(tokens_BT, target_BT, R, order_draws),
        direction=where.direction_B,
        continues=where.continues_B,
        target_positions=position_BP.astype(np.int32),
        target_tokens=np.where(used_BP, np.take_along_axis(tokens_BT, position_BP, axis=1), 0).astype(np.int32),
        target_weights=weight_BP.astype(np.float32),
        summary_position=np.full(B, T - 1, np.int32),
        label=pairs.follows_B.astype(np.int32),
        label_weight=where.exists_B.astype(np.float32),
    )
