"""Constants of the fused kernels for TPU and GPU, and the arguments of `attend` in the form that both take."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.kernels.dropout import bits
from xlnet_jax.kernels.xla import Arguments

FAR = 1e30
"""Stands for infinity, whose differences are NaN."""
LN2 = math.log(2)
_INT = jnp.iinfo(jnp.int32)
"""A rank that no limit exceeds is `max`, a limit that no rank is below is `min`."""


def up(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def position_keys(a: Arguments) -> tuple[jax.Array, jax.Array]:
    """r [S, N, H, E], one for each direction, or one for each row that has its own; and which one each row has, [B]."""
    odd_SNHE, even_SNHE, direction_B = a.position
    if len(odd_SNHE) == 1:
        return jnp.concatenate([even_SNHE + odd_SNHE, even_SNHE - odd_SNHE]), (direction_B < 0).astype(jnp.int32)
    r_SNHE = even_SNHE + direction_B.astype(odd_SNHE.dtype)[:, None, None, None] * odd_SNHE
    return r_SNHE, jnp.arange(len(direction_B), dtype=jnp.int32)


def other_segment(a: Arguments) -> jax.Array:
    """S[1] - S[0], [H, E]: what all keys of a query have in common cancels in the softmax."""
    return a.segment_2HE[1] - a.segment_2HE[0]


def words(a: Arguments, heads: int) -> jax.Array:
    """The hash of dropout up to row and head, uint32 [B, heads]; zeros without dropout."""
    if a.dropout is None:
        return jnp.zeros((len(a.rows_B), heads), jnp.uint32)
    heads_1H = (a.dropout.first_head + jnp.arange(heads))[None]
    return bits(a.dropout.key, jnp.uint32(a.dropout.stream), a.rows_B[:, None], heads_1H)


def queries(a: Arguments, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Limit, segment and position of `size` queries. Padded ones see nothing, and are where the last query is."""
    after = ((0, 0), (0, size - a.limit_BQ.shape[1]))
    limit_BQ = jnp.pad(a.limit_BQ, after, constant_values=_INT.min)
    return limit_BQ, jnp.pad(a.segment_BQ, after), jnp.pad(a.position_BQ, after, mode="edge")


def keys(a: Arguments, size: int) -> tuple[jax.Array, jax.Array]:
    """Rank and segment of `size` keys. No query sees padded ones, nor those of rank NEVER."""
    after = ((0, 0), (0, size - a.rank_BK.shape[1]))
    rank_BK = jnp.where(a.rank_BK == NEVER, _INT.max, a.rank_BK)
    return jnp.pad(rank_BK, after, constant_values=_INT.max), jnp.pad(a.segment_BK, after)
