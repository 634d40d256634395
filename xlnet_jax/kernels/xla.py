"""Relative attention in plain JAX: the reference that every other implementation must equal.

    s_ij = E^(-1/2) [ (q_i + u) . k_j  +  (q_i + v) . r(d_ij)  +  (q_i + w) . S[seg_i != seg_j] ]
    o_i  = sum_j Drop(softmax_j(s_ij)) v_j        over the keys j that i sees

Letters: B rows, Q queries, T positions of the segment, K = M + T keys, the M memory slots first, N = K + T - 1
distances, H heads, E head width. The distance from the query at position i of the segment to key j is
d_ij = M + i - j in reading order: positive for keys that were read before. Arrays have the same order in both reading
directions, because reversed text is stored reversed. The direction is only the sign of a distance in the position term.

Row n of the position keys is for the distance K - 1 - n. So the query at position i reads the K rows from row
T - 1 - i: all T queries together by one reshape (`shift`), queries at chosen positions by one slice each (`windows`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.kernels.dropout import AttentionDropout


def attend(
    q_BQHE: jax.Array,
    k_BKHE: jax.Array,
    v_BKHE: jax.Array,
    position: tuple[jax.Array | None, jax.Array, jax.Array],
    biases: Mapping[str, jax.Array],
    segment_2HE: jax.Array,
    limit_BQ: jax.Array,
    rank_BK: jax.Array,
    segment_BQ: jax.Array,
    segment_BK: jax.Array,
    query_position_BQ: jax.Array | None,
    rows_B: jax.Array,
    dropout: AttentionDropout | None,
    max_distance: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attention of one stream of one layer.

    Args:
      k_BKHE, v_BKHE: finite everywhere: a hidden key has the weight 0, and 0 times NaN is NaN.
      position: odd_SNHE and even_SNHE, the parts of the position keys that change sign with the direction and that do
        not; S is 1, or B if every row has its own. And direction_B, +1 or -1. Here odd may be None: then even_BNHE are
        the position keys of each row in its direction.
      biases: u, v and w under `content_bias`, `position_bias` and `segment_bias`: [H, E].
      segment_2HE: the vectors S for the same and for another segment.
      limit_BQ: query i sees the keys of lower rank, except for those of rank NEVER.
      query_position_BQ: positions of the queries in the segment; None: the queries are all T positions in order.
      rows_B: row numbers in the global batch, for dropout.
      dropout: on the probabilities; None: no dropout.
      max_distance: keys further in the past are hidden; None: no bound.

    Returns:
      o_BQHE in the dtype of v, and the probabilities before dropout, [B, H, Q, K] in at least float32. A query that
      sees nothing has zeros in both.
    """
    K, N = k_BKHE.shape[1], position[1].shape[1]
    T = N + 1 - K
    position_BQ = query_position_BQ
    if position_BQ is None:
        position_BQ = jnp.broadcast_to(jnp.arange(T), (len(q_BQHE), T))
    high = jnp.promote_types(q_BQHE.dtype, jnp.float32)
    einsum = functools.partial(jnp.einsum, preferred_element_type=high)
    # Once for all products: a CPU copies a factor whose heads are not in front, for every product again.
    q_BHQE, k_BHKE, v_BHKE = (x.transpose(0, 2, 1, 3) for x in (q_BQHE, k_BKHE, v_BKHE))
    # Sums with float32 biases, which get their gradient in float32.
    content_BHQE, position_BHQE, segment_BHQE = (
        (q_BHQE + biases[f"{name}_bias"][None, :, None]).astype(dtype)
        for name, dtype in (("content", q_BQHE.dtype), ("position", q_BQHE.dtype), ("segment", high))
    )
    content_BHQK = einsum("bhqe,bhke->bhqk", content_BHQE, k_BHKE)
    position_BHQK = position_scores(position_BHQE, position, K, query_position_BQ)
    segment, letters = segment_2HE.astype(high), "she"
    if meshes.device().platform == "cpu":
        # One for each row: else a CPU copies all queries, to have the heads in front of the rows.
        segment, letters = jnp.broadcast_to(segment, (len(q_BQHE), *segment.shape)), "bshe"
    either_BHQ2 = einsum(f"bhqe,{letters}->bhqs", segment_BHQE, segment)
    same_BQK = segment_BQ[:, :, None] == segment_BK[:, None, :]
    segment_BHQK = jnp.where(same_BQK[:, None], either_BHQ2[..., :1], either_BHQ2[..., 1:])
    score_BHQK = (content_BHQK + position_BHQK + segment_BHQK) * q_BQHE.shape[-1] ** -0.5
    visible_BQK = (rank_BK[:, None, :] < limit_BQ[:, :, None]) & (rank_BK != NEVER)[:, None, :]
    if max_distance is not None:
        distance_BQK = K - T + position_BQ[:, :, None] - jnp.arange(K)[None, None, :]
        visible_BQK &= distance_BQK <= max_distance
    return _weighted_sum(score_BHQK, visible_BQK, v_BHKE, position_BQ, rows_B, dropout)


def attend_by_content(
    q_BQHE: jax.Array,
    k_BKHE: jax.Array,
    v_BKHE: jax.Array,
    limit_BQ: jax.Array,
    rank_BK: jax.Array,
    position_BQ: jax.Array,
    rows_B: jax.Array,
    dropout: AttentionDropout | None,
) -> tuple[jax.Array, jax.Array]:
    """s_ij = E^(-1/2) q_i . k_j (Vaswani et al. 2017), where positions are in the vectors already; see `attend`."""
    high = jnp.promote_types(q_BQHE.dtype, jnp.float32)
    q_BHQE, k_BHKE, v_BHKE = (x.transpose(0, 2, 1, 3) for x in (q_BQHE, k_BKHE, v_BKHE))
    score_BHQK = jnp.einsum("bhqe,bhke->bhqk", q_BHQE, k_BHKE, preferred_element_type=high) * q_BQHE.shape[3] ** -0.5
    visible_BQK = (rank_BK[:, None, :] < limit_BQ[:, :, None]) & (rank_BK < NEVER)[:, None, :]
    return _weighted_sum(score_BHQK, visible_BQK, v_BHKE, position_BQ, rows_B, dropout)


def _weighted_sum(
    score_BHQK: jax.Array, visible_BQK: jax.Array, v_BHKE: jax.Array, position_BQ: jax.Array, rows_B: jax.Array,
    dropout: AttentionDropout | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    probability_BHQK = masked_softmax(score_BHQK, visible_BQK)
    dropped_BHQK = probability_BHQK if dropout is None else dropout(probability_BHQK, rows_B, position_BQ)
    o_BHQE = jnp.einsum("bhqk,bhke->bhqe", dropped_BHQK.astype(v_BHKE.dtype), v_BHKE)
    return o_BHQE.transpose(0, 2, 1, 3), probability_BHQK


def position_scores(
    q_BHQE: jax.Array,
    position: tuple[jax.Array | None, jax.Array, jax.Array],
    keys: int,
    query_position_BQ: jax.Array | None,
) -> jax.Array:
    """q_i . r(d_ij), where q_i includes its bias: [B, H, Q, K] in at least float32."""
    odd_SNHE, even_SNHE, direction_B = position
    r_BHNE = even_SNHE.transpose(0, 2, 1, 3)
    if odd_SNHE is not None:
        r_BHNE += direction_B.astype(r_BHNE.dtype)[:, None, None, None] * odd_SNHE.transpose(0, 2, 1, 3)
    r_BHNE = r_BHNE.astype(q_BHQE.dtype)
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.promote_types(q_BHQE.dtype, jnp.float32))
    if query_position_BQ is None:
        return shift(einsum("bhqe,bhne->bhqn", q_BHQE, r_BHNE), keys)
    return windows(einsum("bhqe,bhne->bqhn", q_BHQE, r_BHNE), query_position_BQ, keys).transpose(0, 2, 1, 3)


def _shift(score_BHTN: jax.Array, keys: int) -> jax.Array:
    """Query i keeps `keys` columns, starting with T - 1 - i: [B, H, T, K].

    The offset of element (i, j) in row-major order is i N + T - 1 - i + j = (T - 1) + i (N - 1) + j: rows of N - 1,
    which hold K columns if T > 1. A single query keeps all N = K columns.
    """
    B, H, T, N = score_BHTN.shape
    if T == 1:
        return score_BHTN
    flat = score_BHTN.reshape(B, H, T * N)
    return flat[:, :, T - 1 : T - 1 + T * (N - 1)].reshape(B, H, T, N - 1)[..., :keys]


def _unshift(keys: int, _: None, d_BHTK: jax.Array) -> tuple[jax.Array]:
    """The gradient of `shift`."""
    B, H, T, K = d_BHTK.shape
    if meshes.device().platform != "cpu":
        scores = jax.ShapeDtypeStruct((B, H, T, K + T - 1), d_BHTK.dtype)
        return jax.linear_transpose(lambda score_BHTN: _shift(score_BHTN, keys), scores)(d_BHTK)
    # A CPU copies rows, which is much faster than the transposed reshape: two fused pads.
    wide_BHTN = jnp.pad(d_BHTK, ((0, 0), (0, 0), (0, 0), (T - 1, T - 1)))
    rows = wide_BHTN.reshape(B * H, T, 1, -1)
    return (windows(rows, jnp.broadcast_to(T - 1 - jnp.arange(T), (B * H, T)), K + T - 1).reshape(B, H, T, -1),)


shift = jax.custom_vjp(_shift, nondiff_argnums=(1,))
shift.defvjp(lambda score_BHTN, keys: (_shift(score_BHTN, keys), None), _unshift)


def windows(score_BQHN: jax.Array, position_BQ: jax.Array, keys: int) -> jax.Array:
    """The same for queries at chosen positions, without building all T rows: [B, Q, H, K]."""
    last = score_BQHN.shape[3] - keys  # T - 1

    def window(score_HN: jax.Array, position: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(score_HN, last - position, keys, axis=1)

    return jax.vmap(jax.vmap(window))(score_BQHN, position_BQ)


def masked_softmax(score_BHQK: jax.Array, visible_BQK: jax.Array) -> jax.Array:
    """Softmax over the visible keys; a row that sees nothing gets probabilities (and gradients) of exactly 0."""
    visible = visible_BQK[:, None]
    highest = jnp.max(jnp.where(visible, score_BHQK, -jnp.inf), axis=-1, keepdims=True)
    highest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0))
    # The inner `where` keeps exp finite at hidden keys: an infinity there would turn their gradient 0 into NaN.
    weight = jnp.where(visible, jnp.exp(jnp.where(visible, score_BHQK - highest, 0)), 0)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)
