"""Keys and values of a segment and its memory, kept while a text grows: one new token costs one row per layer.

K = M + T slots per layer. Slots 0 to M - 1 are the memory; slot M + i is position i of the segment, whatever the order
in which positions are filled. The rank of a slot says who sees it, as in a Batch; NEVER marks an empty one. Nothing
that was computed is changed by a later token: with fixed parameters the keys of a memory slot are those that its token
had in its own segment. So the memory rolls by moving keys and values, and no hidden state is kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import MEMORY_RANK, NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.model import positions
from xlnet_jax.model.layers import accumulator


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
    """What attention reads of earlier tokens, of all layers (a leading L) or of one."""

    k_BKHE: jax.Array
    v_BKHE: jax.Array
    r_NHE: jax.Array
    """Position keys of text that is read forward, N = K + T - 1 rows; see `kernels.xla`. They never change."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The kept keys and values of B texts; M slots of memory and T of a segment."""

    layers: Kept
    rank_BK: jax.Array
    memory_len: int = dataclasses.field(metadata={"static": True})

    @property
    def segment_len(self) -> int:
        """T."""
        return self.rank_BK.shape[1] - self.memory_len

    def read(self, rank_BQ: jax.Array, position_BQ: jax.Array | None) -> tuple[Kept, jax.Array]:
        """What Q new rows attend to: the slots that are kept, and the ranks of these slots and of the rows, joined.

        Args:
          position_BQ: places of the rows in the segment; None: it starts with them. Then only the memory is kept.
        """
        kept, Q, T, M = self.layers, rank_BQ.shape[1], self.segment_len, self.memory_len
        if position_BQ is not None:
            return kept, put(self.rank_BK, rank_BQ, M + position_BQ)
        k_LBMHE, v_LBMHE = (x[:, :, :M] for x in (kept.k_BKHE, kept.v_BKHE))
        r_LNHE = kept.r_NHE[:, T - Q : T + M + Q - 1]
        return Kept(k_LBMHE, v_LBMHE, r_LNHE), jnp.concatenate([self.rank_BK[:, :M], rank_BQ], axis=1)

    def write(
        self, rows_LBQHE: tuple[jax.Array, jax.Array], rank_BQ: jax.Array, position_BQ: jax.Array | None
    ) -> Cache:
        """The cache with the keys and values of the new rows, and their ranks."""
        if position_BQ is None:
            position_BQ = jnp.broadcast_to(jnp.arange(rank_BQ.shape[1])[None], rank_BQ.shape)
        slot_BQ = self.memory_len + position_BQ
        each_layer, kept = jax.vmap(put, in_axes=(0, 0, None)), self.layers
        old_LBKHE = kept.k_BKHE, kept.v_BKHE
        k_LBKHE, v_LBKHE = (each_layer(old, rows, slot_BQ) for old, rows in zip(old_LBKHE, rows_LBQHE, strict=True))
        rank_BK = put(self.rank_BK, rank_BQ, slot_BQ)
        return dataclasses.replace(self, layers=Kept(k_LBKHE, v_LBKHE, kept.r_NHE), rank_BK=rank_BK)

    def next_segment(self, ended_B: jax.Array) -> Cache:
        """Rolls the memory of the texts whose segment is full: its last M slots are the memory of the next one."""
        K, T = self.rank_BK.shape[1], self.segment_len
        rank_BK = jnp.roll(self.rank_BK, -T, axis=1)
        # What is left in the segment's slots is hidden by its rank, until it is overwritten.
        filled_BK = (jnp.arange(K) < self.memory_len)[None] & (rank_BK != NEVER)
        rank_BK = jnp.where(filled_BK, MEMORY_RANK, NEVER)

        def rolled(x_LBKHE: jax.Array) -> jax.Array:
            return jnp.where(ended_B[None, :, None, None, None], jnp.roll(x_LBKHE, -T, axis=2), x_LBKHE)

        kept = self.layers
        layers = Kept(rolled(kept.k_BKHE), rolled(kept.v_BKHE), kept.r_NHE)
        return dataclasses.replace(self, layers=layers, rank_BK=jnp.where(ended_B[:, None], rank_BK, self.rank_BK))

    def hidden(self, position_BQ: jax.Array) -> Cache:
        """The cache in which nothing sees these places of the segment until they are written again."""
        never_BQ = jnp.full(position_BQ.shape, NEVER, self.rank_BK.dtype)
        return dataclasses.replace(self, rank_BK=put(self.rank_BK, never_BQ, self.memory_len + position_BQ))


def put(slots_BK: jax.Array, rows_BQ: jax.Array, slot_BQ: jax.Array) -> jax.Array:
    """slots_BK... with rows_BQ... at the places `slot_BQ`; a row whose place is K or more is left out."""
    return jax.vmap(lambda slots_K, rows_Q, at_Q: slots_K.at[at_Q].set(rows_Q, mode="drop"))(slots_BK, rows_BQ, slot_BQ)


def join(kept_BKHE: jax.Array, rows_BQHE: jax.Array, slot_BQ: jax.Array | None) -> jax.Array:
    """Keys or values of one layer with those of the new rows: at their slots, or after the memory."""
    if slot_BQ is None:
        return jnp.concatenate([kept_BKHE, rows_BQHE], axis=1)
    return put(kept_BKHE, rows_BQHE, slot_BQ)


def empty_cache(config: ModelConfig, params: Any, batch_size: int, segment_len: int, memory_len: int) -> Cache:
    """A cache without filled slots, for the parameters of an `XLNet`; a text of one segment needs no memory."""
    K, dtype = memory_len + segment_len, jnp.dtype(config.compute_dtype)
    shape = (config.layers, batch_size, K, config.heads, config.head_dim)
    zeros = nn.with_logical_constraint(jnp.zeros(shape, dtype), (None, "batch", None, "heads", None))
    high = accumulator(dtype)
    table_ND = positions.sinusoids(segment_len, memory_len, config.d_model, config.clamp_len, high)
    kernel_LDHE = params["layers"]["attention"]["position"]
    if config.share_layers:
        kernel_LDHE = jnp.broadcast_to(kernel_LDHE, (config.layers, *kernel_LDHE.shape))
    odd_LNHE, even_LNHE = jax.vmap(lambda kernel_DHE: positions.project(table_ND[None].astype(dtype), kernel_DHE))(
        kernel_LDHE
    )
    r_LNHE = (odd_LNHE + even_LNHE)[:, 0].astype(dtype)
    r_LNHE = nn.with_logical_constraint(r_LNHE, (None, None, "heads", None))
    return Cache(Kept(zeros, zeros, r_LNHE), jnp.full((batch_size, K), NEVER, jnp.int32), memory_len)
