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
from typing import Any

import numpy as np

from xlnet_jax.batch import NEVER, Batch, Documents
from xlnet_jax.config import Config
from xlnet_jax.data.batches import examples, frames, packing, spans
from xlnet_jax.data.batches.examples import Content, ExampleBuilder, Texts
from xlnet_jax.data.batches.orders import DISTRIBUTIONS
from xlnet_jax.data.batches.packing import Packing, RowPieces
from xlnet_jax.data.corpus.corpus import Corpus


def most_targets(config: Config, length_D: np.ndarray) -> np.ndarray:
    """Returns the largest number of targets of texts of these lengths."""
    data = config.data
    if config.objective.causal:
        return length_D + 1
    if config.objective.whole or data.factorization_order != "spans":
        return length_D
    if config.model.member.bounded:
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


def build(builder: ExampleBuilder, packed: Packing, first_number: int) -> Batch:
    """Builds the Batch of the rows `builder.where.block_B` of a packed corpus.

    The keys of the draws of a document are the name, the epoch, and its number among the pieces of
    all corpora; `first_number` is the number of the first piece of this corpus.
    """
    rows = [packed.row(block) for block in builder.where.block_B.tolist()]
    row_D = np.repeat(np.arange(len(rows)), [len(row.first_D) for row in rows])
    pieces = RowPieces(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))
    where, length_D = builder.where.take(row_D), pieces.length_D
    reversed_D = where.direction_B < 0
    cursor_D = pieces.first_D + np.where(reversed_D, length_D - 1, 0)
    alone = builder._replace(
        where=where._replace(cursor_B=cursor_D),
        name=f"{builder.name} document",
        step=where.epoch_B,
        rows=pieces.number_D + first_number,
    )
    ends_D = pieces.part_D == np.where(reversed_D, 0, pieces.parts_D - 1)
    texts = examples.read_texts(alone, length_D)._replace(ends_B1=ends_D[:, None])
    content = BUILDERS[builder.config.objective.examples](alone, texts)
    return pack(builder, texts, content, row_D, alone.rows)


def _permuted(builder: ExampleBuilder, texts: Texts) -> Content:
    """Builds examples of `plm`: a text, or a text with SEP and CLS, is ranked as a whole."""
    if DISTRIBUTIONS[builder.config.data.factorization_order].whole:
        return examples.ordered(builder, texts)
    T = builder.config.data.segment_len
    target_draws, order_draws = builder.draws(builder.draws_needed(T), fresh=T)
    target_DT = _targets(builder, texts, target_draws)
    order_draws[np.arange(T) >= texts.used_B1] = 1.0
    special = builder.tokenizer.special
    rank_DT = examples.ranks(texts.tokens_BT, target_DT, T, order_draws, special)
    return Content(texts.tokens_BT, texts.tokens_BT, target_DT, rank_DT)


def _masked(builder: ExampleBuilder, texts: Texts) -> Content:
    """Builds examples of `mlm`: CLS text SEP."""
    T = builder.config.data.segment_len
    target_draws, corrupt_draws, _ = builder.draws(builder.draws_needed(T), 2 * T)
    target_DT = _targets(builder, texts, target_draws)
    fed_DT = examples.corrupted(builder, texts.tokens_BT, target_DT, corrupt_draws)
    return Content(fed_DT, texts.tokens_BT, target_DT)


def _causal(builder: ExampleBuilder, texts: Texts) -> Content:
    """Builds left-to-right examples: each position predicts the next token, and the last position
    of a document predicts its end.
    """
    place_DT = np.indices(texts.tokens_BT.shape)[1]
    next_DT = np.roll(texts.tokens_BT, -1, axis=1)
    next_DT[place_DT == texts.length_B1] = builder.tokenizer.special.eod
    target_DT = place_DT < texts.length_B1 + texts.ends_B1
    return Content(texts.tokens_BT, next_DT, target_DT, place_DT)


def _targets(builder: ExampleBuilder, texts: Texts, draws_DX: np.ndarray) -> np.ndarray:
    """Chooses the targets of each text, bool [D, T]."""
    goal_D1 = most_targets(builder.config, texts.length_B1)
    return builder.targets(texts.tokens_BT, goal_D1, draws_DX, texts.text_BT)


BUILDERS = {
    "permuted": _permuted,
    "causal": _causal,
    "masked": _masked,
    "diffused": examples.diffused,
}
"""Builders of documents alone, by `Objective.examples`."""


def pack(
    builder: ExampleBuilder,
    texts: Texts,
    content: Content,
    row_D: np.ndarray,
    number_D: np.ndarray,
) -> Batch:
    """Packs documents, one in each row of `content`, into the rows of `builder`.

    Args:
      row_D, number_D: row and number of each document; rows ascend.
    """
    config, column = builder.config, np.arange(builder.config.data.segment_len)
    used_DT = column < texts.used_B1
    filled_BT = column < np.bincount(row_D, texts.used_B1[:, 0], len(builder.rows))[:, None]

    def laid(values: np.ndarray | int, rest: int = 0, dtype: type = np.int32) -> np.ndarray:
        x_BT = np.full(filled_BT.shape, rest, dtype)
        # Both sides have the documents in the same order.
        x_BT[filled_BT] = np.broadcast_to(values, used_DT.shape)[used_DT]
        return x_BT

    position_BT = laid(column)
    floor_BT = np.where(filled_BT, 2 * (column - position_BT), NEVER).astype(np.int32)
    rank_BT = np.where(filled_BT, floor_BT + 1 + laid(content.rank_BT), NEVER)
    fed_BT = laid(content.fed_BT, builder.tokenizer.special.pad or 0)
    target_BT = laid(content.target_BT, dtype=bool)
    packed = Content(fed_BT, laid(content.goal_BT), target_BT, rank_BT)
    batch = examples.batch_of(builder, packed)
    if config.objective.likelihood == "bound":  # each of the m masked tokens of n weighs n / m
        weight_D1 = texts.length_B1 / content.target_BT.sum(axis=1, keepdims=True)
        weight_BP = spans.at(laid(weight_D1, dtype=np.float32), batch.target_positions)
        batch = dataclasses.replace(batch, target_weights=batch.target_weights * weight_BP)
    number_BT = laid(number_D[:, None] % 2**31)
    return dataclasses.replace(batch, documents=Documents(floor_BT, position_BT, number_BT))
