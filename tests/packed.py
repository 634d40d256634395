"""Documents that are drawn at random, and rows that hold several of them: batches of
`data.documents=whole` without a corpus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlnet_jax.batch import NEVER, Batch, Documents, forward_text


class Document(NamedTuple):
    """An example of n tokens with m targets, before it has a place in a row."""

    number: int
    tokens_N: np.ndarray
    rank_N: np.ndarray
    """From -1 up, as if the document were alone."""
    targets_M: np.ndarray
    """Positions, ascending."""
    target_tokens_M: np.ndarray
    weights_M: np.ndarray


class Place(NamedTuple):
    """The first position of a document."""

    row: int
    start: int


def draw(
    rng: np.random.Generator, objective: str, number: int, n: int, vocabulary: int
) -> Document:
    """Draws a document with the ranks and targets of an objective; weights are no powers of 2."""
    tokens_N, m = (
        rng.integers(0, vocabulary, n),
        n if objective == "clm" else rng.integers(1, n + 1),
    )
    targets_M = np.sort(rng.choice(n, m, replace=False))
    rank_N = np.arange(n) if objective == "clm" else np.zeros(n, int)
    if objective == "plm":
        rank_N -= 1
        rank_N[targets_M] = rng.permutation(m)
    return Document(
        number,
        tokens_N,
        rank_N,
        targets_M,
        rng.integers(0, vocabulary, m),
        np.full(m, n / m if objective == "mdm" else 1.0, np.float32),
    )


def place(rng: np.random.Generator, lengths: Sequence[int], T: int, rows: int) -> list[Place]:
    """Puts documents into rows in random order, with gaps between them that are often empty."""
    end_B, places = np.zeros(rows, int), {}
    for which in rng.permutation(len(lengths)):
        (fits,) = np.nonzero(end_B + lengths[which] <= T)
        # The fullest, so that documents share rows.
        row = fits[np.argmax(end_B[fits])]
        gap = min(rng.integers(0, 3) // 2, T - end_B[row] - lengths[which])
        places[which] = Place(row, end_B[row] + gap)
        end_B[row] += gap + lengths[which]
    return [places[which] for which in range(len(lengths))]


def pack(
    documents: Sequence[Document],
    places: Sequence[Place],
    direction_B: np.ndarray,
    T: int,
    P: int,
) -> Batch:
    """Returns rows with each document at its place. Padding and unused slots have tokens too, which
    must change nothing.
    """
    B, padding = len(direction_B), np.random.default_rng(0)
    # No id that a member has for padding, whose own row of a table is not trained.
    tokens, rank = padding.integers(9, 20, (B, T)), np.full((B, T), NEVER)
    targets, unused = np.zeros((B, P), int), padding.integers(0, 20, (B, P))
    # The loss of the targets is divided by the summed weights, to be compared in float64.
    weights, used_B = np.zeros((B, P)), np.zeros(B, int)
    floor, position, number = np.full((B, T), NEVER), np.zeros((B, T), int), np.zeros((B, T), int)
    for document, (row, start) in sorted(zip(documents, places, strict=True), key=lambda x: x[1]):
        n, m = len(document.tokens_N), len(document.targets_M)
        at = row, slice(start, start + n)
        tokens[at], number[at], position[at] = document.tokens_N, document.number, np.arange(n)
        assert (rank[at] == NEVER).all(), "two documents at one place"
        floor[at], rank[at] = 2 * start, 2 * start + 1 + document.rank_N
        slots = row, slice(used_B[row], used_B[row] + m)
        targets[slots], weights[slots] = start + document.targets_M, document.weights_M
        unused[slots] = document.target_tokens_M
        used_B[row] += m
    whole = [np.asarray(x, np.int32) for x in (tokens, rank, targets, unused)]
    batch = forward_text(whole[0], whole[1], np.zeros((B, T), np.int32), *whole[2:])
    each = (np.asarray(x, np.int32) for x in (floor, position, number))
    return dataclasses.replace(
        batch,
        direction=np.asarray(direction_B, np.int32),
        target_weights=weights,
        documents=Documents(*each),
    )


def text_read(batch: Batch, row: int) -> list[int]:
    """The tokens of text of a row, known or predicted, in order; not of left-to-right rows."""
    fed = batch.tokens[row].copy()
    used = batch.target_weights[row] > 0
    fed[batch.target_positions[row][used]] = batch.target_tokens[row][used]
    return [int(token) for token in fed[batch.rank[row] != NEVER] if token >= 9]
