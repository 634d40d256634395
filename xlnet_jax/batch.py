"""The Batch and the Memory: all that enters the model.

An example is a few integer vectors. Which position may see which is one integer per position, its rank:

    content position i sees j                  <=>  rank[j] <= rank[i]      (itself included)
    a query at target position p sees j        <=>  rank[j] <  rank[p]      (itself not)

so a [T, T] mask never exists outside the attention itself. Letters: B rows, T segment, M memory, P targets, D model
width, L layers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

Array = Any
"""numpy.ndarray on the host, jax.Array on the device."""

MEMORY_RANK = -2
"""Rank of a memory slot that holds something: below every rank in the segment, so all see it."""

NEVER = 2**30
"""Rank of padding and of empty memory slots: nothing sees them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One segment of B rows; K steps stacked add a leading axis to every array."""

    tokens: Array
    """int32 [B, T], as fed to the content stream."""
    segments: Array
    """int32 [B, T]; only equality counts. The memory counts as segment 0."""
    rank: Array
    """int32 [B, T]; see the module's docstring."""
    direction: Array
    """int32 [B]: +1, or -1 where the row's text is reversed: the sign of the relative distance."""
    continues: Array
    """bool [B]: the row's text follows what its memory holds."""
    target_positions: Array
    """int32 [B, P], ascending; 0 in unused slots."""
    target_tokens: Array
    """int32 [B, P]."""
    target_weights: Array
    """float32 [B, P]; 0 marks an unused slot."""
    summary_position: Array
    """int32 [B]: where the CLS token stands."""
    label: Array
    """int32 [B]: sentence label (1: B follows A)."""
    label_weight: Array
    """float32 [B]; 0 = the row has no label to learn."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """Segment recurrence (Transformer-XL, section 3.2): cached inputs of every layer, right-aligned."""

    hidden_LBMD: jax.Array
    """Compute dtype."""
    valid_B: jax.Array
    """int32: how many of the M slots, counted from the right, hold something."""
