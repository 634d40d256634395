"""The Batch and the Memory: the complete input of the model.

An example consists of integer vectors. The rank, one integer per position, defines which positions
each position sees:

    content position i sees j                  <=>  rank[j] <= rank[i]      (itself included)
    a query at target position p sees j        <=>  rank[j] <  rank[p]      (itself not)

So only the attention builds a [T, T] mask. Letters: B rows, T segment, M memory, P targets, D model
width, L layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Array = Any
"""numpy.ndarray on the host, jax.Array on the device."""

MEMORY_RANK = -2
"""Rank of a filled memory slot: below every rank in the segment, so every position sees it."""

NEVER = 2**30
"""Rank of padding and of empty memory slots: no position sees them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Auxiliary:
    """Targets and weights of the training losses besides the main loss (next token, last
    layer); see Al-Rfou et al. 2018, arXiv 1808.04444.
    """

    tokens: Array
    """int32 [B, A, P]: further targets of each slot, the token two ahead first."""
    weights: Array
    """float32 [B, L, 1 + A]: weight of each layer's loss for each target, the next token first. The
    last layer's loss of the next token is the main loss.
    """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Documents:
    """Several documents in each row, none of which sees another (`data.documents=whole`).

    The ranks of a document lie in an interval of their own, which starts at its floor:

        content position i sees j              <=>  floor[i] <= rank[j] <= rank[i]
        a query at target position p sees j    <=>  floor[p] <= rank[j] <  rank[p]
    """

    floor: Array
    """int32 [B, T]: the lowest rank that a position sees; NEVER at padding."""
    position: Array
    """int32 [B, T]: position in the document; 0 at padding."""
    number: Array
    """int32 [B, T]: number of the document in the epoch. With the position it selects the dropout
    masks, in place of the row and the position in the segment.
    """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One segment of B rows; K steps stacked add a leading axis to every array."""

    tokens: Array
    """int32 [B, T], the input of the content stream."""
    segments: Array
    """int32 [B, T]; only equality matters. The memory is segment 0."""
    rank: Array
    """int32 [B, T]; see the module's docstring."""
    direction: Array
    """int32 [B]: +1, or -1 if the row's text is reversed: the sign of the relative distance."""
    continues: Array
    """bool [B]: the row's text follows the text in its memory."""
    target_positions: Array
    """int32 [B, P], ascending; 0 in unused slots."""
    target_tokens: Array
    """int32 [B, P]."""
    target_weights: Array
    """float32 [B, P]; 0 marks an unused slot."""
    summary_position: Array
    """int32 [B]: position of the CLS token."""
    label: Array
    """int32 [B]: sentence label (1: B follows A)."""
    label_weight: Array
    """float32 [B]; 0 = the row has no label."""
    auxiliary: Auxiliary | None = None
    """None: no auxiliary losses, as in every evaluation."""
    documents: Documents | None = None
    """None: a row is one text (`data.documents=joined`)."""

    def for_transformers(self) -> dict[str, np.ndarray]:
        """Returns a batch of `plm` as inputs of transformers' `XLNetLMHeadModel`: `input_ids`,
        `token_type_ids` [B, T], `perm_mask` [B, T, T], `target_mapping` [B, P, T], `labels` [B, P]
        with -100 in unused slots.

        `XLNetLMHeadModel` has no `direction`: set data.bidirectional=False. The memory is not
        converted.
        """
        mapping_BPT = np.eye(self.tokens.shape[1], dtype=np.float32)[self.target_positions]
        mapping_BPT *= self.target_weights[..., None] != 0
        query, key = self.rank[:, :, None], self.rank[:, None, :]
        # `XLNetLMHeadModel` applies one mask to both streams; inside, it lets each content position
        # see itself again.
        visible_BTT = np.where(mapping_BPT.any(axis=1)[:, :, None], key < query, key <= query)
        if self.documents is not None:
            visible_BTT &= key >= self.documents.floor[:, :, None]
        return {
            "input_ids": self.tokens.astype(np.int64),
            "token_type_ids": self.segments.astype(np.int64),
            "perm_mask": (~visible_BTT).astype(np.float32),
            "target_mapping": mapping_BPT,
            "labels": np.where(self.target_weights != 0, self.target_tokens, -100).astype(np.int64),
        }


def forward_text(
    tokens: Array,
    rank: Array,
    segments: Array,
    positions: Array,
    targets: Array | None = None,
    continues: bool = False,
) -> Batch:
    """Returns a Batch of text that is read forward; `positions` [B, P] are the positions to
    predict. No target and no label has a weight.

    The arguments are numpy or traced arrays; the arrays of all other fields are numpy.
    """
    zeros_B = np.zeros(len(tokens), np.int32)
    return Batch(
        tokens=tokens,
        segments=segments,
        rank=rank,
        direction=zeros_B + 1,
        continues=np.full(len(tokens), continues),
        target_positions=positions,
        target_tokens=np.zeros(positions.shape, np.int32) if targets is None else targets,
        target_weights=np.zeros(positions.shape, np.float32),
        summary_position=zeros_B,
        label=zeros_B,
        label_weight=zeros_B.astype(np.float32),
    )


def stack(batches: Sequence[Any]) -> Any:
    """Stacks K batches of one kind into one with a leading axis; numpy."""
    return combine(batches, np.stack)


def combine(batches: Sequence[Any], how: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Any:
    """Combines batches of one kind into one: `how` maps the arrays of a field to one array."""
    return jax.tree.map(lambda *arrays: how(arrays), *batches)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """Segment recurrence (Transformer-XL, section 3.2): cached inputs of every layer,
    right-aligned.
    """

    hidden_LBMD: jax.Array
    """Compute dtype."""
    valid_B: jax.Array
    """int32: number of filled slots, at the right end of the M slots."""
