"""Relative attention in plain JAX: the reference that every other implementation must equal.

    s_ij = E^(-1/2) [ (q_i + u) . k_j  +  (q_i + v) . r(d_ij)  +  (q_i + w) . S[seg_i != seg_j] ]
    o_i  = sum_j Drop(softmax_j(s_ij)) v_j        over the keys j that i sees

Letters: B rows, Q queries, T positions of the segment, K = M + T keys, the M memory slots first,
N = K + T - 1 distances, H heads, E head width. The distance from the query at position i of the
segment to key j is d_ij = M + i - j in reading order: positive for keys that were read before.
Arrays have the same order in both reading directions, because reversed text is stored reversed. The
direction is only the sign of a distance in the position term.

Row n of the position keys is for the distance K - 1 - n. So the query at position i reads K rows,
from row T - 1 - i on. One reshape does this for all T queries in order (`shift`); each query at a
chosen position takes one slice (`windows`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER, Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedKeys:
    """The documents of rows that hold several: which keys a query sees at least, and the indices of
    dropout masks. There is then no memory and no `max_distance`.
    """

    floor_BQ: Array
    """Query i sees no key of lower rank; see `batch.Documents`."""
    document_BQ: Array
    """Document of the query, in place of `Arguments.rows_B`."""
    position_BQ: Array
    """Position of the query in its document."""
    position_BK: Array
    """Position of the key in its document."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NearKeys:
    """A bound on the distance of visible keys, in both directions, in layers with a window."""

    size: Array
    """int32 []: a query sees only keys at this distance or nearer. A layer without a window has
    `NEVER`, so that all layers are one program.
    """
    position_BQ: Array
    """Positions of the queries, in the document or in the segment."""
    position_BK: Array
    """Positions of the keys; negative in the memory."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arguments:
    """Input of every `attend`: all arrays that one stream of one layer reads. As a pytree it may
    hold other values in their place, such as partition specs.
    """

    q_BQHE: Array
    k_BKHE: Array
    """Keys and values must be finite: a hidden key has the weight 0, and 0 times NaN is NaN."""
    v_BKHE: Array
    limit_BQ: Array
    """Query i sees the keys of lower rank, except for those of rank NEVER."""
    rank_BK: Array
    segment_BQ: Array
    segment_BK: Array
    query_position_BQ: Array
    """Positions of the queries in the segment; None: the queries are all T positions in order."""
    rows_B: Array
    """Row numbers in the global batch, for dropout."""
    position: Any = None
    """odd_SNHE, even_SNHE and direction_B, +1 or -1: the position keys are even + direction odd. S
    is 1, or B if every row has its own position keys. For `xla` odd may be None: then even_BNHE are
    the position keys of each row in its direction. Without `position` the score is q . k alone.
    """
    biases: Any = dataclasses.field(default_factory=dict)
    """u, v and w, [H, E], under `content_bias`, `position_bias` and `segment_bias`; empty without
    `position`.
    """
    segment_2HE: Array = None
    """The vectors S for the same and for another segment; None without `position`."""
    dropout: Any = None
    """AttentionDropout, on the probabilities; None: no dropout."""
    packed: Any = None
    """PackedKeys; None: a row is one text."""
    near: Any = None
    """NearKeys; None: no layer has one."""
    max_distance: int | None = dataclasses.field(default=None, metadata={"static": True})
    """Largest distance of a visible key into the past; None: no bound."""
    save: bool = dataclasses.field(default=False, metadata={"static": True})
    """Whether a kernel saves the probabilities of the forward pass for the backward pass, if it
    can; else the backward pass computes them again.
    """

    @property
    def memory_len(self) -> int:
        """M, the number of keys before the segment; 0 without position keys, since nothing needs
        it then.
        """
        if self.position is None:
            return 0
        K, N = self.k_BKHE.shape[1], self.position[1].shape[1]
        return 2 * K - N - 1

    @property
    def own_tables(self) -> bool:
        """Whether every row has its own position keys."""
        return self.position is not None and len(self.position[1]) > 1

    @property
    def position_BQ(self) -> jax.Array:
        """Positions of the queries in the segment."""
        if self.query_position_BQ is None:
            return jnp.broadcast_to(jnp.arange(self.limit_BQ.shape[1]), self.limit_BQ.shape)
        return self.query_position_BQ

    @property
    def mask_indices(self) -> tuple[jax.Array, ...]:
        """The indices of `dropout`: rows [B, 1], positions of queries [B, Q] and keys [1, K]; or
        documents [B, Q], and the positions of queries and keys [B, K] in them.
        """
        if self.packed is None:
            return self.rows_B[:, None], self.position_BQ, jnp.arange(self.rank_BK.shape[1])[None]
        return self.packed.document_BQ, self.packed.position_BQ, self.packed.position_BK


def differentiated(
    attend: Callable[[Arguments], tuple[jax.Array, Any]],
    a: Arguments,
    do_BQHE: jax.Array | None = None,
) -> tuple[jax.Array, Any, Arguments]:
    """Returns the results of an implementation, and the gradient of sum(do * o) by each array of
    floating-point arguments; do is o if None.
    """
    o_BQHE, pull, probability_BHQK = jax.vjp(attend, a, has_aux=True)
    (grads,) = pull(o_BQHE if do_BQHE is None else do_BQHE)
    return (
        o_BQHE,
        probability_BHQK,
        jax.tree.map(lambda x: None if x.dtype == jax.dtypes.float0 else x, grads),
    )


def attend(a: Arguments, cpu: bool = False) -> tuple[jax.Array, jax.Array]:
    """Computes attention of one stream of one layer: o_BQHE in the dtype of v, and the
    probabilities before dropout, [B, H, Q, K] in at least float32.

    A query that sees no key has zeros in both results. `cpu` selects the forms of segment scores
    and of the gradient of the shift that are fast on a CPU.
    """
    dtype, high = a.q_BQHE.dtype, jnp.promote_types(a.q_BQHE.dtype, jnp.float32)
    # Transposed once for all products: for each product a CPU copies a factor whose heads are not
    # in front.
    q_BHQE, k_BHKE, v_BHKE = (x.transpose(0, 2, 1, 3) for x in (a.q_BQHE, a.k_BKHE, a.v_BKHE))

    def query(name: str, dtype: jnp.dtype) -> jax.Array:
        # A sum with a float32 bias, which gets its gradient in float32.
        return (
            (q_BHQE + a.biases[f"{name}_bias"][None, :, None]).astype(dtype) if a.biases else q_BHQE
        )

    content_BHQE = query("content", dtype)
    score_BHQK = jnp.einsum("bhqe,bhke->bhqk", content_BHQE, k_BHKE, preferred_element_type=high)
    if a.position is not None:
        score_BHQK += position_scores(query("position", dtype), a, cpu)
        score_BHQK += segment_scores(query("segment", high), a, cpu)
    score_BHQK *= a.q_BQHE.shape[-1] ** -0.5
    visible_BQK = (a.rank_BK[:, None, :] < a.limit_BQ[:, :, None]) & (a.rank_BK != NEVER)[
        :, None, :
    ]
    if a.max_distance is not None:
        distance_BQK = (
            a.memory_len + a.position_BQ[:, :, None] - jnp.arange(k_BHKE.shape[2])[None, None, :]
        )
        visible_BQK &= distance_BQK <= a.max_distance
    if a.packed is not None:
        visible_BQK &= a.rank_BK[:, None, :] >= a.packed.floor_BQ[:, :, None]
    if a.near is not None:
        distance_BQK = a.near.position_BQ[:, :, None] - a.near.position_BK[:, None, :]
        visible_BQK &= jnp.abs(distance_BQK) <= a.near.size
    probability_BHQK = masked_softmax(score_BHQK, visible_BQK)
    dropped_BHQK = probability_BHQK
    if a.dropout is not None:
        dropped_BHQK = a.dropout(probability_BHQK, *a.mask_indices)
    o_BHQE = jnp.einsum("bhqk,bhke->bhqe", dropped_BHQK.astype(v_BHKE.dtype), v_BHKE)
    return o_BHQE.transpose(0, 2, 1, 3), probability_BHQK


def segment_scores(q_BHQE: jax.Array, a: Arguments, cpu: bool) -> jax.Array:
    """Returns q_i . S[seg_i != seg_j], where q_i has its bias: [B, H, Q, K] in the dtype of q."""
    segment, letters = a.segment_2HE.astype(q_BHQE.dtype), "she"
    if cpu:  # a copy per row; else a CPU copies all queries to put heads before rows
        segment, letters = jnp.broadcast_to(segment, (len(q_BHQE), *segment.shape)), "bshe"
    either_BHQ2 = jnp.einsum(
        f"bhqe,{letters}->bhqs", q_BHQE, segment, preferred_element_type=q_BHQE.dtype
    )
    same_BQK = a.segment_BQ[:, :, None] == a.segment_BK[:, None, :]
    return jnp.where(same_BQK[:, None], either_BHQ2[..., :1], either_BHQ2[..., 1:])


def position_scores(q_BHQE: jax.Array, a: Arguments, cpu: bool) -> jax.Array:
    """Returns q_i . r(d_ij), where q_i includes its bias: [B, H, Q, K] in at least float32."""
    odd_SNHE, even_SNHE, direction_B = a.position
    keys = a.k_BKHE.shape[1]
    r_BHNE = even_SNHE.transpose(0, 2, 1, 3)
    if odd_SNHE is not None:
        r_BHNE += direction_B.astype(r_BHNE.dtype)[:, None, None, None] * odd_SNHE.transpose(
            0, 2, 1, 3
        )
    r_BHNE = r_BHNE.astype(q_BHQE.dtype)
    einsum = functools.partial(
        jnp.einsum, preferred_element_type=jnp.promote_types(q_BHQE.dtype, jnp.float32)
    )
    if a.query_position_BQ is None:
        return (shift_on_cpu if cpu else shift)(einsum("bhqe,bhne->bhqn", q_BHQE, r_BHNE), keys)
    return windows(einsum("bhqe,bhne->bqhn", q_BHQE, r_BHNE), a.query_position_BQ, keys).transpose(
        0, 2, 1, 3
    )


def shift(score_BHTN: jax.Array, keys: int) -> jax.Array:
    """Takes `keys` columns of query i, starting with column T - 1 - i: [B, H, T, K].

    The offset of element (i, j) in row-major order is i N + T - 1 - i + j =
    (T - 1) + i (N - 1) + j. So the result is a reshape to rows of N - 1 elements, which hold K
    columns if T > 1. A single query keeps all N = K columns.
    """
    B, H, T, N = score_BHTN.shape
    if T == 1:
        return score_BHTN
    flat = score_BHTN.reshape(B, H, T * N)
    return flat[:, :, T - 1 : T - 1 + T * (N - 1)].reshape(B, H, T, N - 1)[..., :keys]


def _unshift(keys: int, _: None, d_BHTK: jax.Array) -> tuple[jax.Array]:
    """Computes the gradient of `shift` by copies of rows: on a CPU faster than the transposed
    reshape, which is two fused pads.
    """
    B, H, T, K = d_BHTK.shape
    wide_BHTN = jnp.pad(d_BHTK, ((0, 0), (0, 0), (0, 0), (T - 1, T - 1)))
    rows = wide_BHTN.reshape(B * H, T, 1, -1)
    return (
        windows(rows, jnp.broadcast_to(T - 1 - jnp.arange(T), (B * H, T)), K + T - 1).reshape(
            B, H, T, -1
        ),
    )


shift_on_cpu = jax.custom_vjp(shift, nondiff_argnums=(1,))
shift_on_cpu.defvjp(lambda score_BHTN, keys: (shift(score_BHTN, keys), None), _unshift)


def windows(score_BQHN: jax.Array, position_BQ: jax.Array, keys: int) -> jax.Array:
    """Does `shift` for queries at chosen positions, without building all T rows: [B, Q, H, K]."""
    last = score_BQHN.shape[3] - keys  # T - 1

    def window(score_HN: jax.Array, position: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(score_HN, last - position, keys, axis=1)

    return jax.vmap(jax.vmap(window))(score_BQHN, position_BQ)


@jax.custom_vjp
def masked_softmax(score_BHQK: jax.Array, visible_BQK: jax.Array) -> jax.Array:
    """Computes the softmax over the visible keys; a query that sees no key gets probabilities and
    gradients of exactly 0.
    """
    score_BHQK = jnp.where(visible_BQK[:, None], score_BHQK, -jnp.inf)
    highest = jnp.max(score_BHQK, axis=-1, keepdims=True)
    weight = jnp.exp(score_BHQK - jnp.where(jnp.isfinite(highest), highest, 0))
    total = jnp.sum(weight, axis=-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)


def _softmax_gradient(probability_BHQK: jax.Array, d_BHQK: jax.Array) -> tuple[jax.Array, None]:
    """Computes the gradient by hand: it reads the probabilities twice, and no mask."""
    mean = jnp.sum(probability_BHQK * d_BHQK, axis=-1, keepdims=True)
    return probability_BHQK * (d_BHQK - mean), None


masked_softmax.defvjp(lambda *arguments: (masked_softmax(*arguments),) * 2, _softmax_gradient)
