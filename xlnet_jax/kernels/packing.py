"""Common code of the fused kernels for TPU and GPU: formulas, constants, the layout of the
arguments, and the blocks of keys that a block of queries sees.

Forward, for a query i at the position t_i and a key j (letters and distances as in `xla`):

    a_i = q_i + u    b_i = q_i + v    c_i = q_i + w
    row n_ij = T - 1 - t_i + j    r = even + direction odd
    s_ij = E^(-1/2) [ a_i . k_j + b_i . r[n_ij] + c_i . S[g_ij] ]    (*)
    p_ij = exp(s_ij) / sum of exp(s_ij') over the visible j'
    o_i  = sum_j p_ij z_ij v_j

where g_ij is 0 if query and key are in the same segment, else 1; p_ij is 0 for hidden keys and for
queries that see no key; and z_ij is the dropout factor, 0 or 1 / (share kept).

(*) Without `Plan.relative` s_ij = E^(-1/2) q_i . k_j, and everything of u, b, c, r and S is absent.

Backward, from the gradient do of o. The gradient of an input without a batch axis is a sum over the
batch:

    dv_j = sum_i p_ij z_ij do_i
    ds_ij = E^(-1/2) p_ij (z_ij do_i . v_j - do_i . o_i)    do_i . o_i = sum_j p_ij z_ij do_i . v_j
    da_i = sum_j ds_ij k_j    db_i = sum_j ds_ij r[n_ij]    dc_i = sum_j ds_ij S[g_ij]
    dq_i = da_i + db_i + dc_i    du = sum_i da_i    dv = sum_i db_i (the bias)    dw = sum_i dc_i
    dk_j = sum_i ds_ij a_i
    dr[n] = sum of ds_ij b_i where n_ij = n    dS[g] = sum of ds_ij c_i where g_ij = g
    deven = dr    dodd = direction dr
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.kernels.dropout import advance, fold
from xlnet_jax.kernels.xla import Arguments

FAR = 1e30
"""Large number used in place of infinity, because infinity - infinity is NaN."""
LN2 = math.log(2)
NT, NN, TN = ((1,), (1,)), ((1,), (0,)), ((0,), (0,))
"""Contractions of two matrices: a b', a b and a' b (' is the transpose)."""
_INT = jnp.iinfo(jnp.int32)
"""Range of int32. No query sees a key of rank `max`; a query with the limit `min` sees no key."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Static sizes and options of a call, for both kernels, after padding."""

    positions: int
    """T, the number of positions of the segment."""
    keys: int
    """K, the number of keys."""
    chosen: bool
    """Whether queries are at chosen positions, not in order."""
    own_tables: bool
    """Whether every row of the batch has its own position keys; else each direction has a table."""
    relative: bool
    """Whether scores have the position and the segment term."""
    packed: bool
    """Whether rows hold several documents."""
    near: bool
    """Whether a window bounds the distance of visible keys; not with `relative`."""
    rate: float
    """Dropout rate."""
    farthest: int | None
    """Largest (query position - key number) at which a key is visible; None: no bound."""

    @property
    def skips(self) -> bool:
        """Whether a block of queries visits only blocks of keys that it sees (`seen_blocks`)."""
        return self.packed or self.near


def plan_fields(a: Arguments, positions: int, keys: int) -> dict[str, Any]:
    """Returns the fields of `Plan`; `positions` and `keys` are padded sizes."""
    assert a.position is None or a.near is None, "relative positions have no window"
    assert a.position is not None or a.max_distance is None, "M is known from position keys"
    return {
        "positions": positions,
        "keys": keys,
        "chosen": a.query_position_BQ is not None,
        "own_tables": a.own_tables,
        "relative": a.position is not None,
        "packed": a.packed is not None,
        "near": a.near is not None,
        "rate": 0.0 if a.dropout is None else a.dropout.rate,
        "farthest": None if a.max_distance is None else a.max_distance - a.memory_len,
    }


def round_up(size: int, multiple: int) -> int:
    """Rounds the size up to a multiple."""
    return -(-size // multiple) * multiple


def position_keys(a: Arguments) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns tables of position keys r [S, N, H, E], one for each direction or for each row, and
    the index of each row's table, [B]; None and None without position keys.
    """
    if a.position is None:
        return None, None
    odd_SNHE, even_SNHE, direction_B = a.position
    if len(odd_SNHE) == 1:
        return jnp.concatenate([even_SNHE + odd_SNHE, even_SNHE - odd_SNHE]), (
            direction_B < 0
        ).astype(jnp.int32)
    r_SNHE = even_SNHE + direction_B.astype(odd_SNHE.dtype)[:, None, None, None] * odd_SNHE
    return r_SNHE, jnp.arange(len(direction_B), dtype=jnp.int32)


def other_segment(a: Arguments) -> jax.Array:
    """Returns S[1] - S[0], [H, E]: a term that all keys of a query share cancels in the softmax.
    Needs position keys.
    """
    return a.segment_2HE[1] - a.segment_2HE[0]


def dropout_words(a: Arguments, heads: int) -> jax.Array:
    """Returns dropout's hash word after row and head, uint32 [B, heads]; zeros without dropout.

    With documents the head's number: a query then has the word after its document
    (`padded_queries`).
    """
    if a.dropout is None:
        return jnp.zeros((len(a.rows_B), heads), jnp.uint32)
    heads_1H = (a.dropout.first_head + jnp.arange(heads))[None]
    if a.packed is not None:
        return jnp.broadcast_to(heads_1H, (len(a.rows_B), heads)).astype(jnp.uint32)
    return advance(fold(a.dropout.key), jnp.uint32(a.dropout.stream), a.rows_B[:, None], heads_1H)


def dot(
    a: jax.Array,
    b: jax.Array,
    contraction: tuple[tuple[int], tuple[int]],
    exact: Any = jax.lax.Precision.HIGHEST,
) -> jax.Array:
    """Multiplies with a float32 result; `exact` is the precision for float32 factors."""
    precision = exact if b.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, (contraction, ((), ())), precision, jnp.float32)


def padded_queries(a: Arguments, size: int) -> list[jax.Array]:
    """Returns limit, segment and position of `size` queries, [B, size]; with documents also
    dropout's hash word after the document, as int32, the floor, and the position in the document.
    With a window, which no segments have, the position in `NearKeys` takes the segment's place.

    A padding query has the position of the last query, and sees no key.
    """
    after = ((0, 0), (0, size - a.limit_BQ.shape[1]))
    limit_BQ = jnp.pad(a.limit_BQ, after, constant_values=_INT.min)
    second_BQ = a.segment_BQ if a.near is None else a.near.position_BQ
    rows = [limit_BQ, jnp.pad(second_BQ, after), jnp.pad(a.position_BQ, after, mode="edge")]
    if a.packed is not None:
        word_BQ = a.packed.document_BQ
        if a.dropout is not None:
            word_BQ = advance(fold(a.dropout.key), jnp.uint32(a.dropout.stream), word_BQ)
        floor_BQ = jnp.pad(a.packed.floor_BQ, after, constant_values=NEVER)
        if a.query_position_BQ is not None:
            # Unused targets have the position 0: beside the last target they add no window.
            rows[2] = jnp.where(floor_BQ == NEVER, rows[2].max(1, keepdims=True), rows[2])
        word_BQ = jnp.pad(jax.lax.bitcast_convert_type(word_BQ, jnp.int32), after)
        rows += [word_BQ, floor_BQ, jnp.pad(a.packed.position_BQ, after)]
    return rows


def padded_keys(a: Arguments, size: int) -> list[jax.Array]:
    """Returns rank and segment of `size` keys, [B, size]; with documents also the position in the
    document; with a window as in `padded_queries`. No query sees padding or a key of rank NEVER.
    """
    after = ((0, 0), (0, size - a.rank_BK.shape[1]))
    rank_BK = jnp.where(a.rank_BK == NEVER, _INT.max, a.rank_BK)
    second_BK = a.segment_BK if a.near is None else a.near.position_BK
    rows = [jnp.pad(rank_BK, after, constant_values=_INT.max), jnp.pad(second_BK, after)]
    return rows if a.packed is None else [*rows, jnp.pad(a.packed.position_BK, after)]


def seen_blocks(
    a: Arguments,
    queries: list[jax.Array],
    keys: list[jax.Array],
    query_block: int,
    key_block: int,
) -> jax.Array:
    """Returns which blocks of keys a block of queries may see, bool [B, blocks of queries, blocks
    of keys], from `padded_queries` and `padded_keys` with documents or a window.

    A block of keys counts with its smallest and largest rank and position, a block of queries with
    its smallest floor, largest limit, and smallest and largest position. Keys and queries of
    padding and unused targets do not count.
    """

    def ends(x_BN: jax.Array, counts_BN: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        """Returns the smallest and the largest element of each block that counts, [B, blocks]."""
        x_BNS, counts_BNS = (x.reshape(len(x), -1, size) for x in (x_BN, counts_BN))
        return (
            jnp.where(counts_BNS, x_BNS, _INT.max).min(2),
            jnp.where(counts_BNS, x_BNS, _INT.min).max(2),
        )

    of_queries, of_keys = queries[0] != _INT.min, keys[0] != _INT.max
    if a.packed is not None:
        of_queries &= queries[4] != NEVER
    largest_BI1 = ends(queries[0], of_queries, query_block)[1][:, :, None]
    smallest_B1J, highest_B1J = (x[:, None] for x in ends(keys[0], of_keys, key_block))
    seen_BIJ = smallest_B1J < largest_BI1
    if a.packed is not None:
        seen_BIJ &= ends(queries[4], of_queries, query_block)[0][:, :, None] <= highest_B1J
    if a.near is not None:
        at_BQ, at_BK = queries[1], keys[1]
        if a.packed is not None:  # Slots: a block can hold ends of two documents.
            at_BQ, at_BK = queries[2], jnp.broadcast_to(jnp.arange(keys[1].shape[1]), keys[1].shape)
        first_BI1, last_BI1 = (x[:, :, None] for x in ends(at_BQ, of_queries, query_block))
        first_B1J, last_B1J = (x[:, None] for x in ends(at_BK, of_keys, key_block))
        seen_BIJ &= (first_B1J - last_BI1 <= a.near.size) & (first_BI1 - last_B1J <= a.near.size)
    return seen_BIJ


def first_and_last(seen_BIJ: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the first and the last J that each I sees, int32 [B, I]; 0 and 0 if it sees none.

    A kernel visits all blocks between the two. Documents have their keys side by side, so it sees
    nearly all of these blocks.
    """
    last_BI = jnp.where(seen_BIJ, jnp.arange(seen_BIJ.shape[2]), 0).max(2)
    return jnp.argmax(seen_BIJ, axis=2).astype(jnp.int32), last_BI.astype(jnp.int32)
