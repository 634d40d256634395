"""Constants of the fused kernels for TPU and GPU, and the arguments of `attend` in the form that both take."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.kernels.dropout import AttentionDropout, bits

FAR = 1e30
"""Stands for infinity, whose differences are NaN."""
LN2 = math.log(2)
_INT = jnp.iinfo(jnp.int32)
"""A rank that no limit exceeds is `max`, a limit that no rank is below is `min`."""


def up(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def position_keys(position: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """r [S, N, H, E], one for each direction, or one for each row that has its own; and which one each row has, [B]."""
    odd_SNHE, even_SNHE, direction_B = position
    if len(odd_SNHE) == 1:
        return jnp.concatenate([even_SNHE + odd_SNHE, even_SNHE - odd_SNHE]), (direction_B < 0).astype(jnp.int32)
    r_SNHE = even_SNHE + direction_B.astype(odd_SNHE.dtype)[:, None, None, None] * odd_SNHE
    return r_SNHE, jnp.arange(len(direction_B), dtype=jnp.int32)


def words(dropout: AttentionDropout | None, rows_B: jax.Array, heads: int) -> jax.Array:
    """The hash of dropout up to row and head, uint32 [B, heads]; zeros without dropout."""
    if dropout is None:
        return jnp.zeros((len(rows_B), heads), jnp.uint32)
    heads_1H = (dropout.first_head + jnp.arange(heads))[None]
    return bits(dropout.key, jnp.uint32(dropout.stream), rows_B[:, None], heads_1H)


def queries(
    limit_BQ: jax.Array, segment_BQ: jax.Array, position_BQ: jax.Array | None, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Limit, segment and position of `size` queries. Padded ones see nothing, and are where the last query is."""
    B, Q = limit_BQ.shape
    if position_BQ is None:
        position_BQ = jnp.broadcast_to(jnp.arange(Q), (B, Q))
    after = ((0, 0), (0, size - Q))
    limit_BQ = jnp.pad(limit_BQ, after, constant_values=_INT.min)
    return limit_BQ, jnp.pad(segment_BQ, after), jnp.pad(position_BQ, after, mode="edge")


def keys(rank_BK: jax.Array, segment_BK: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Rank and segment of `size` keys. No query sees padded ones, nor those of rank NEVER."""
    after = ((0, 0), (0, size - rank_BK.shape[1]))
    rank_BK = jnp.where(rank_BK == NEVER, _INT.max, rank_BK)
    return jnp.pad(rank_BK, after, constant_values=_INT.max), jnp.pad(segment_BK, after)
