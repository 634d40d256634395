"""Keys and values of a segment and its memory, kept while a text grows: one new token costs one row
per layer.

K = M + T slots per layer. Slots 0 to M - 1 are the memory; slot M + i is position i of the segment,
in whatever order the positions are filled. The rank of a slot decides which queries see it, as in a
Batch; NEVER marks an empty slot. A later token changes no earlier result: with fixed parameters the
keys and values of a token stay the same when its slot becomes memory. So the memory rolls by moving
keys and values, and no hidden state is kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import MEMORY_RANK, NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.model import positions


class Kept(NamedTuple):
    """Keys and values of earlier tokens, of one layer or, with a leading L, of all layers. Rotary
    keys are not turned yet, since a key in the memory moves to another position.
    """

    k_BHKE: jax.Array
    """Heads in front, as attention multiplies them: else a CPU would copy all slots for every new
    token.
    """
    v_BHKE: jax.Array
    r_NHE: jax.Array | None
    """Position keys of text that is read forward, N = K + T - 1 rows; see `kernels.xla`. They never
    change. None: positions are in the vectors of the tokens.
    """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The kept keys and values of B texts; M slots of memory and T of a segment."""

    layers: Kept
    rank_BK: jax.Array
    memory_len: int = dataclasses.field(metadata={"static": True})

    @property
    def segment_len(self) -> int:
        """T, the number of positions of the segment."""
        return self.rank_BK.shape[1] - self.memory_len

    def read(self, rank_BQ: jax.Array, slot_BQ: jax.Array | None) -> tuple[Kept, jax.Array]:
        """Returns the keys and values that Q new rows attend to, and the ranks of these slots and
        of the rows together.

        `slot_BQ` are the slots of the rows. None: the rows are the start of the segment, and only
        the memory slots are read.
        """
        kept, Q, T, M = self.layers, rank_BQ.shape[1], self.segment_len, self.memory_len
        if slot_BQ is not None:
            return kept, put(self.rank_BK, rank_BQ, slot_BQ)
        k_LBHME, v_LBHME = (x[:, :, :, :M] for x in kept[:2])
        r_LNHE = None if kept.r_NHE is None else kept.r_NHE[:, T - Q : T + M + Q - 1]
        return Kept(k_LBHME, v_LBHME, r_LNHE), jnp.concatenate(
            [self.rank_BK[:, :M], rank_BQ], axis=1
        )

    def write(
        self, rows_LBQHE: tuple[jax.Array, jax.Array], rank_BQ: jax.Array, slot_BQ: jax.Array | None
    ) -> Cache:
        """Returns the cache with the new rows' keys, values and ranks; `slot_BQ` as for `read`."""
        M, Q = self.memory_len, rank_BQ.shape[1]
        kept = self.layers
        k_LBHKE, v_LBHKE = (
            old_LBHKE.at[:, :, :, M : M + Q].set(new_LBQHE.transpose(0, 1, 3, 2, 4))
            if slot_BQ is None
            else _written(old_LBHKE, new_LBQHE, slot_BQ)
            for old_LBHKE, new_LBQHE in zip(kept[:2], rows_LBQHE, strict=True)
        )
        rank_BK = (
            self.rank_BK.at[:, M : M + Q].set(rank_BQ)
            if slot_BQ is None
            else put(self.rank_BK, rank_BQ, slot_BQ)
        )
        return dataclasses.replace(self, layers=Kept(k_LBHKE, v_LBHKE, kept.r_NHE), rank_BK=rank_BK)

    def next_segment(self, ended_B: jax.Array) -> Cache:
        """Rolls the memory of the texts whose segment is full: its last M slots become the memory
        of the next segment.
        """
        K, T = self.rank_BK.shape[1], self.segment_len
        rank_BK = jnp.roll(self.rank_BK, -T, axis=1)
        # Old keys in the slots of the segment are hidden by their rank until they are overwritten.
        filled_BK = (jnp.arange(K) < self.memory_len)[None] & (rank_BK != NEVER)
        rank_BK = jnp.where(filled_BK, MEMORY_RANK, NEVER)

        def rolled(x_LBHKE: jax.Array) -> jax.Array:
            return jnp.where(
                ended_B[None, :, None, None, None], jnp.roll(x_LBHKE, -T, axis=3), x_LBHKE
            )

        kept = self.layers
        layers = Kept(rolled(kept.k_BHKE), rolled(kept.v_BHKE), kept.r_NHE)
        return dataclasses.replace(
            self, layers=layers, rank_BK=jnp.where(ended_B[:, None], rank_BK, self.rank_BK)
        )

    def hidden(self, position_BQ: jax.Array) -> Cache:
        """Returns the cache with these positions hidden until they are written again."""
        never_BQ = jnp.full(position_BQ.shape, NEVER, self.rank_BK.dtype)
        return dataclasses.replace(
            self, rank_BK=put(self.rank_BK, never_BQ, self.memory_len + position_BQ)
        )


def put(slots_BK: jax.Array, rows_BQ: jax.Array, slot_BQ: jax.Array) -> jax.Array:
    """Returns slots_BK with rows_BQ at the slots `slot_BQ`; slots of K or more are left out."""
    # A comparison, because a CPU scatters slowly.
    is_slot_BQK = slot_BQ[:, :, None] == jnp.arange(slots_BK.shape[1])[None, None]
    new_BK = jnp.take_along_axis(rows_BQ, is_slot_BQK.argmax(axis=1), axis=1)
    return jnp.where(is_slot_BQK.any(axis=1), new_BK, slots_BK)


def join(kept_BHKE: jax.Array, rows_BQHE: jax.Array, slot_BQ: jax.Array | None) -> jax.Array:
    """Returns keys or values of one layer with the new rows at their slots, or after the memory:
    [B, K, H, E].
    """
    rows_BHQE = rows_BQHE.transpose(0, 2, 1, 3)
    if slot_BQ is None:
        return jnp.concatenate([kept_BHKE, rows_BHQE], axis=2).transpose(0, 2, 1, 3)
    at_K, joined_BHKE = jnp.arange(kept_BHKE.shape[2]), kept_BHKE
    for q in range(slot_BQ.shape[1]):
        is_slot_B1K1 = (slot_BQ[:, q : q + 1] == at_K[None])[:, None, :, None]
        joined_BHKE = jnp.where(is_slot_B1K1, rows_BHQE[:, :, q : q + 1], joined_BHKE)
    return joined_BHKE.transpose(0, 2, 1, 3)


def _written(old_LBHKE: jax.Array, new_LBQHE: jax.Array, slot_BQ: jax.Array) -> jax.Array:
    """Returns keys or values of all layers with the new rows at their slots."""
    row_B1 = jnp.arange(len(slot_BQ))[:, None]
    return old_LBHKE.at[:, row_B1, :, slot_BQ].set(new_LBQHE.transpose(1, 2, 0, 3, 4), mode="drop")


def empty_cache(
    config: ModelConfig, params: Any, batch_size: int, segment_len: int, memory_len: int
) -> Cache:
    """Returns a cache of empty slots, for the parameters of an `XLNet`; a text of one segment needs
    no memory.
    """
    K, dtype = memory_len + segment_len, jnp.dtype(config.compute_dtype)
    shape = (config.layers, batch_size, config.heads, K, config.head_dim)
    zeros = nn.with_logical_constraint(
        jnp.zeros(shape, dtype), (None, "batch", "heads", None, None)
    )
    never_BK = jnp.full((batch_size, K), NEVER, jnp.int32)
    if config.member.parts.positions != "relative":
        return Cache(Kept(zeros, zeros, None), never_BK, memory_len)
    kernel_LDHE = params["layers"]["attention"]["position"]
    if config.share_layers:
        kernel_LDHE = jnp.broadcast_to(kernel_LDHE, (config.layers, *kernel_LDHE.shape))
    table_1ND = positions.sinusoids(config, segment_len, memory_len)[None].astype(dtype)
    odd_LNHE, even_LNHE = jax.vmap(positions.project, (None, 0))(table_1ND, kernel_LDHE)
    r_LNHE = (odd_LNHE + even_LNHE)[:, 0].astype(dtype)
    r_LNHE = nn.with_logical_constraint(r_LNHE, (None, None, "heads", None))
    return Cache(Kept(zeros, zeros, r_LNHE), never_BK, memory_len)
