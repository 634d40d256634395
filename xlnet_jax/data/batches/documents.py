"""Builds rows of whole documents (`data.documents=whole`), none of which sees another.

    row   [ document ][ document ][ document ][padding]    T positions, one direction

Each document is first built alone, left-aligned in T columns, by the functions for windows of a
stream. Then `pack` puts the documents into their rows. Random draws belong to (epoch, document), so
neither the place in the row nor its other documents change an example; the direction belongs to the
row.

A document at the positions from s on has the ranks and floors

    rank = 2 s + 1 + its rank alone (-1 for context)        floor = 2 s

A document of n positions has ranks below n, and n >= 1. So its ranks are below 2 (s + n), the floor
of the next document: position i sees j  <=>  floor[i] <= rank[j] <= rank[i].
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax.batch import NEVER, Batch, Documents, forward_text
from xlnet_jax.config import Config
from xlnet_jax.data.batches import examples, frames, orders, packing, spans
from xlnet_jax.data.batches.examples import ExampleBuilder
from xlnet_jax.data.batches.packing import Packing, RowPieces
from xlnet_jax.data.batches.sentence_pairs import read_in_order
from xlnet_jax.data.batches.stream import Windows
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.tokenizer import SpecialIds


class Texts(NamedTuple):
    """The documents of a batch, left-aligned, one per row; D documents."""

    where: Windows
    tokens_DT: np.ndarray
    """int: the text in reading order with its frame; padding behind it."""
    text_DT: np.ndarray
    """bool: positions of text."""
    length_D1: np.ndarray
    """int: tokens of text."""
    used_D: np.ndarray
    """int: positions of the text and its frame."""
    ends_D: np.ndarray
    """bool: the text ends with the end of its document, in reading order."""


def most_targets(config: Config, length_D: np.ndarray) -> np.ndarray:
    """Returns the largest number of targets of texts of these lengths."""
    data = config.data
    if config.objective.causal:
        return length_D + 1
    if config.objective.whole or data.factorization_order != "spans":
        return length_D
    if config.model.member.positions_at_input:
        return np.maximum((data.target_rate * length_D).astype(int), 1)
    return np.maximum(length_D * data.num_predict // data.segment_len, 1)


def shape(config: Config) -> tuple[Any, ...]:
    """Returns all values that decide which documents share a row, besides the corpus; none with
    `data.documents=joined`.
    """
    data = config.data
    if not data.whole_documents:
        return ()
    lengths = data.segment_len, data.num_predict, data.target_rate
    return config.model.architecture, data.objective, data.factorization_order, *lengths


def pack_corpus(text: Corpus, config: Config) -> Packing:
    """Packs the documents of a corpus into rows. Raises BadInput: the corpus has no lengths, or a
    row has no room for a piece of a document.
    """
    special, data = text.tokenizer.special, config.data
    return packing.pack(
        text.lengths,
        special.eod is not None,
        data.segment_len,
        frames.pieces_around(config),
        data.num_predict,
        functools.partial(most_targets, config),
    )


def build(
    text: Corpus,
    config: Config,
    where: Windows,
    *,
    packed: Packing,
    first_number: int,
    name: str,
) -> Batch:
    """Builds the Batch of the rows `where.block_B` of a packed corpus.

    Args:
      first_number: number of the first piece of the corpus among the pieces of all corpora.
      name: the key of the draws, with the data seed, the epoch and the number of the piece.
    """
    rows = [packed.row(block) for block in where.block_B.tolist()]
    count_B = np.array([len(row.first_D) for row in rows])
    row_D = np.repeat(np.arange(len(rows)), count_B)
    pieces = RowPieces(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))
    number_D = pieces.number_D + first_number
    texts = _read(text, config, where.take(row_D), pieces)
    builder = ExampleBuilder(text, text.tokenizer, config, f"{name} document", texts.where.epoch_B)
    alone = BUILDERS[config.objective.examples](builder, texts, number_D)
    return pack(alone, texts.used_D, row_D, number_D, where, text.tokenizer.special)


def _read(text: Corpus, config: Config, where: Windows, pieces: RowPieces) -> Texts:
    """Reads documents; `where` has a window for each, in the direction of its row."""
    reversed_D, length_D = where.direction_B < 0, pieces.length_D
    cursor_D = np.where(reversed_D, pieces.first_D + length_D - 1, pieces.first_D)
    read_DN, _ = read_in_order(text, cursor_D, where.direction_B, int(length_D.max()))
    length_D1 = length_D[:, None]
    framed = frames.ids(config, text.tokenizer.special)
    assert framed is not None, "only whole documents are built here"
    before, behind = framed
    place_DT = np.arange(config.data.segment_len)[None, :] - len(before)
    text_DT = (place_DT >= 0) & (place_DT < length_D1)
    tokens_DT = spans.at(read_DN, np.clip(place_DT, 0, read_DN.shape[1] - 1))
    tokens_DT = np.where(text_DT, tokens_DT, 0)
    tokens_DT[:, : len(before)] = before
    for place, token in enumerate(behind):
        tokens_DT[place_DT == length_D1 + place] = token
    return Texts(
        where,
        tokens_DT,
        text_DT,
        length_D1,
        length_D + len(before) + len(behind),
        pieces.part_D == np.where(reversed_D, 0, pieces.parts_D - 1),
    )


def _permuted(builder: ExampleBuilder, texts: Texts, number_D: np.ndarray) -> Batch:
    """Builds examples of `plm`: a text, or a text with SEP and CLS, is ranked as a whole."""
    data, T = builder.config.data, builder.config.data.segment_len
    distribution = orders.DISTRIBUTIONS[data.factorization_order]
    if distribution.whole:
        (draws_DX,) = builder.draws(texts.where, number_D, fresh=1 + T)
        rank_DT = distribution.ranks(draws_DX, texts.length_D1)
        return _example(texts, rank_DT, rank_DT >= 0, T)
    target_draws, order_draws = builder.draws(
        texts.where, number_D, builder.draws_needed(T), fresh=T
    )
    target_DT = _targets(builder, texts, target_draws)
    used_DT = np.arange(T) < texts.used_D[:, None]
    rank_DT = examples.ranks(
        texts.tokens_DT,
        target_DT,
        T,
        np.where(used_DT, order_draws, 1.0),
        builder.tokenizer.special,
    )
    return _example(texts, rank_DT, target_DT, data.num_predict)


def _masked(builder: ExampleBuilder, texts: Texts, number_D: np.ndarray) -> Batch:
    """Builds examples of `mlm`: CLS text SEP."""
    config, T = builder.config, builder.config.data.segment_len
    at_input = config.model.member.positions_at_input
    needs = 2 * T if at_input else builder.draws_needed(T)
    target_draws, corrupt_draws, _ = builder.draws(texts.where, number_D, needs, 2 * T)
    if at_input:
        text_DT = texts.text_DT & examples.is_text(texts.tokens_DT, builder.tokenizer.special)
        goal_D1 = most_targets(config, texts.length_D1)
        target_DT = builder.targets_in_random_order(texts.tokens_DT, text_DT, goal_D1, target_draws)
    else:
        target_DT = _targets(builder, texts, target_draws)
    batch = _example(texts, None, target_DT, config.data.num_predict)
    return examples.corrupted(batch, target_DT, builder, corrupt_draws)


def _diffused(builder: ExampleBuilder, texts: Texts, number_D: np.ndarray) -> Batch:
    """Builds examples of masked diffusion; each of the m masked tokens of n weighs n / m."""
    T, first = builder.config.data.segment_len, int(texts.text_DT[0].argmax())
    (draws_DX,) = builder.draws(texts.where, number_D, fresh=1 + T)
    masked_DT = orders.DISTRIBUTIONS["uniform"].ranks(draws_DX, texts.length_D1) >= 0
    target_DT = np.pad(masked_DT, ((0, 0), (first, 0)))[:, :T]
    batch = _example(texts, None, target_DT, T)
    weight_D1 = texts.length_D1 / target_DT.sum(axis=1, keepdims=True)
    return dataclasses.replace(
        batch,
        tokens=np.where(target_DT, builder.tokenizer.special.mask, batch.tokens).astype(np.int32),
        target_weights=(batch.target_weights * weight_D1).astype(np.float32),
    )


def _causal(builder: ExampleBuilder, texts: Texts, number_D: np.ndarray) -> Batch:
    """Builds left-to-right examples: each position predicts the next token, and the last position
    of a document predicts its end.
    """
    place_DT = np.broadcast_to(np.arange(texts.tokens_DT.shape[1]), texts.tokens_DT.shape)
    target_DT = place_DT < texts.length_D1 + texts.ends_D[:, None]
    batch = _example(texts, place_DT, target_DT, target_DT.shape[1])
    next_DT = np.pad(texts.tokens_DT[:, 1:], ((0, 0), (0, 1)))
    next_DT = np.where(place_DT == texts.length_D1, builder.tokenizer.special.eod, next_DT)
    tokens_DP = np.where(target_DT, next_DT, 0).astype(np.int32)
    return dataclasses.replace(batch, target_tokens=tokens_DP)


def _targets(builder: ExampleBuilder, texts: Texts, draws_DX: np.ndarray) -> np.ndarray:
    """Chooses spans of targets in each text, bool [D, T]."""
    return builder.targets(
        texts.tokens_DT,
        texts.where.direction_B,
        most_targets(builder.config, texts.length_D1),
        draws_DX,
        texts.text_DT,
    )


def _example(texts: Texts, rank_DT: np.ndarray | None, target_DT: np.ndarray, slots: int) -> Batch:
    """Returns a Batch with one document in each row."""
    none_DT = np.zeros_like(texts.tokens_DT)
    rank_DT = none_DT if rank_DT is None else rank_DT
    return examples.batch_of(texts.where, texts.tokens_DT, none_DT, rank_DT, target_DT, slots, 0)


BUILDERS = {"permuted": _permuted, "causal": _causal, "masked": _masked, "diffused": _diffused}
"""Builders of a Batch of documents alone, by `Objective.examples`."""


def pack(
    alone: Batch,
    used_D: np.ndarray,
    row_D: np.ndarray,
    number_D: np.ndarray,
    where: Windows,
    special: SpecialIds,
) -> Batch:
    """Packs documents, one in each row of `alone`, into the rows of `where`.

    Args:
      used_D: positions of each document, from the first column on.
      row_D, number_D: row and number of each document; the documents of a row follow each other,
        and rows ascend.
    """
    B, T, P = len(where.direction_B), alone.tokens.shape[1], alone.target_positions.shape[1]
    place_D = _starts(used_D, row_D)
    document, column = np.nonzero(np.arange(T) < used_D[:, None])
    at = row_D[document], place_D[document] + column

    def laid(values: np.ndarray, rest: int) -> np.ndarray:
        x_BT = np.full((B, T), rest, np.int32)
        x_BT[at] = values
        return x_BT

    slots_DP = alone.target_weights != 0
    slot_D = _starts(slots_DP.sum(axis=1), row_D)
    target, slot = np.nonzero(slots_DP)
    to = row_D[target], slot_D[target] + slot

    def slotted(values_DP: np.ndarray) -> np.ndarray:
        x_BP = np.zeros((B, P), values_DP.dtype)
        x_BP[to] = values_DP[slots_DP]
        return x_BP

    floor = 2 * place_D[document]
    rows = forward_text(
        laid(alone.tokens[document, column], special.pad or 0),
        laid(floor + 1 + alone.rank[document, column], NEVER),
        np.zeros((B, T), np.int32),
        slotted(alone.target_positions + place_D[:, None].astype(np.int32)),
        slotted(alone.target_tokens),
    )
    return dataclasses.replace(
        rows,
        direction=where.direction_B,
        target_weights=slotted(alone.target_weights),
        documents=Documents(
            floor=laid(floor, NEVER),
            position=laid(column, 0),
            number=laid(number_D[document] % 2**31, 0),
        ),
    )


def _starts(length_D: np.ndarray, row_D: np.ndarray) -> np.ndarray:
    """Returns the start of each part in its row; the parts of a row follow each other."""
    start_D = np.cumsum(length_D) - length_D
    return start_D - start_D[np.searchsorted(row_D, row_D)]
