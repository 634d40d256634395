"""The bodies of the fused attention on TPU: what one program does for one block of queries, keys and heads.

Formulas: `reference`. A program handles 128 lanes of the model width: 128 / E heads, whose queries, keys and values are
where the projections put them. For one head the lanes of the others are set to 0 in one factor of each product.

The position term. Query i meets key j at row T - i + j of the position keys. So a block of queries whose positions are
in one window w of S positions needs S + K consecutive rows, from T - (w + 1) S + j on, with j the first key of the
block: one product gives scores [Q, S + K], and the query at offset e of its window keeps K columns from S - e on
(`skew`). Queries in order have one window per block, in which e grows by 1 per row: a strided roll. Queries at chosen
positions take the windows from the first to the last of the block in turn.

Letters: Q queries and K keys of the block, L = 128 lanes, S positions of a window, W = S + K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.dropout import drop

LANES, SUBLANES = 128, 8
FAR = 1e30
"""Stands for infinity, whose differences are NaN."""
OTHER = 3
"""Row of the small inputs [8, L] after content, position and segment bias: the vector S of another segment minus that
of the same one. Only their difference matters: what all keys of a query have in common cancels in the softmax."""
NT, TN, NN = ((1,), (1,)), ((0,), (0,)), ((1,), (0,))
"""Contractions of two matrices: a b', a' b and a b."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static facts of a call, after padding."""

    positions: int
    """T."""
    keys: int
    head_dim: int
    """E: 32, 64 or 128."""
    scale: float
    """E^(-1/2) of the E before padding."""
    query_block: int
    key_block: int
    window: int
    """S; for queries in order it is `query_block`."""
    chosen: bool
    """Queries are at chosen positions, not in order."""
    own_tables: bool
    """Every row of the batch has its own position keys; else there are two tables, one per direction."""
    strided: bool
    """The chip can roll row n of a tile by n lanes more than row 0 (v5e and later)."""
    rate: float
    """Of dropout."""
    farthest: int | None
    """A key is hidden if the query's position minus the key's number is larger."""

    @property
    def heads(self) -> int:
        """Heads in 128 lanes."""
        return LANES // self.head_dim

    @property
    def lined_up(self) -> bool:
        """The offset in the window grows by 1 per row, and the chip can use that."""
        return self.strided and not self.chosen


@dataclasses.dataclass(frozen=True)
class Tile:
    """What forward and backward know about a block of queries and keys, for all of its heads."""

    plan: Plan
    visible_QK: jax.Array
    other_QK: jax.Array
    """The key is in another segment."""
    position_Q1: jax.Array
    key_1K: jax.Array
    first_key: Any
    first_window: Any
    last_window: Any

    def each_window(self, visit: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """Folds visit(state, rows of the position keys, which queries [Q, 1] are in the window, or None for all)."""
        plan = self.plan

        def rows(window: Any) -> Any:
            start = plan.positions - (window + 1) * plan.window + self.first_key
            return pl.ds(pl.multiple_of(start, LANES), plan.window + plan.key_block)

        if not plan.chosen or plan.positions == plan.window:
            return visit(initial, rows(self.first_window), None)
        window_Q1 = self.position_Q1 // plan.window
        return jax.lax.fori_loop(
            self.first_window, self.last_window + 1, lambda w, state: visit(state, rows(w), window_Q1 == w), initial
        )

    def kept(self, word: jax.Array) -> jax.Array:
        """1 / share kept where dropout keeps a probability, 0 elsewhere; `word`: the hash up to row and head."""
        ones_QK = jnp.ones(self.visible_QK.shape, jnp.float32)
        return drop(ones_QK, self.plan.rate, word.astype(jnp.uint32), self.position_Q1, self.key_1K)


def load_tile(plan: Plan, queries_ref: Any, keys_ref: Any, windows: tuple[Any, Any], j: Any) -> Tile:
    """The tile of block j of the keys. Rows of the references: limit, segment, position; rank, segment."""
    queries_Q8, keys_8K = queries_ref[0].T, keys_ref[0]
    limit_Q1, segment_Q1, position_Q1 = (queries_Q8[:, n : n + 1] for n in range(3))
    first_key = j * plan.key_block
    key_1K = first_key + jax.lax.broadcasted_iota(jnp.int32, (1, plan.key_block), 1)
    visible_QK = keys_8K[0:1] < limit_Q1
    if plan.farthest is not None:
        visible_QK &= position_Q1 - key_1K <= plan.farthest
    return Tile(plan, visible_QK, keys_8K[1:2] != segment_Q1, position_Q1, key_1K, first_key, *windows)


def forward(
    plan: Plan, table_ref: Any, word_ref: Any, first_ref: Any, last_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any,
    r_ref: Any, small_ref: Any, queries_ref: Any, keys_ref: Any, o_ref: Any, log_ref: Any,
    sum_ref: Any, highest_ref: Any, total_ref: Any,
) -> None:  # fmt: skip
    """One program of the grid (row, lanes, queries, keys): the softmax is built up over the blocks of keys.

    Writes the output and log(sum of exp(s)), [8, Q] with one row per head, FAR for queries that see nothing.
    """
    b, g, i, j = (pl.program_id(n) for n in range(4))
    block = b * pl.num_programs(2) + i

    @pl.when(j == 0)
    def _start() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)
        # Above the score of hidden keys: so their weight is 0 even for a query that has seen nothing so far.
        highest_ref[...] = jnp.full_like(highest_ref, -FAR / 2)
        total_ref[...] = jnp.zeros_like(total_ref)

    tile = load_tile(plan, queries_ref, keys_ref, (first_ref[block], last_ref[block]), j)
    v_KL, sum_QL = v_ref[0], sum_ref[...]
    for h in range(plan.heads):
        score_QK, *_ = scores(tile, h, q_ref[0], k_ref[0], r_ref, small_ref[...])
        score_QK = jnp.where(tile.visible_QK, score_QK, -FAR)
        before_QL = highest_ref[h]
        highest_QL = jnp.maximum(before_QL, jnp.max(score_QK, axis=1, keepdims=True))
        weight_QK = jnp.exp(score_QK - highest_QL[:, :1])
        shrink_QL = jnp.exp(before_QL - highest_QL)
        total_ref[h] = total_ref[h] * shrink_QL + jnp.sum(weight_QK, axis=1, keepdims=True)
        highest_ref[h] = highest_QL
        if plan.rate:
            weight_QK *= tile.kept(word_ref[(b * pl.num_programs(1) + g) * plan.heads + h])
        added_QL = dot(weight_QK.astype(v_KL.dtype), v_KL, NN)
        sum_QL = jnp.where(lanes_of(plan, h), sum_QL * shrink_QL + added_QL, sum_QL)
    sum_ref[...] = sum_QL

    @pl.when(j == pl.num_programs(3) - 1)
    def _finish() -> None:
        o_QL, log_QL = sum_ref[...], jnp.full(sum_ref.shape, FAR, jnp.float32)
        lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        for h in range(plan.heads):
            blind_QL = total_ref[h] == 0
            total_QL = jnp.where(blind_QL, 1, total_ref[h])
            o_QL = jnp.where(lanes_of(plan, h), o_QL / total_QL, o_QL)
            log_QL = jnp.where((lane_1L == h) & ~blind_QL, highest_ref[h] + jnp.log(total_QL), log_QL)
        o_ref[0] = o_QL.astype(o_ref.dtype)
        log_ref[0, 0] = log_QL.T[:SUBLANES]


def backward(
    plan: Plan, table_ref: Any, word_ref: Any, first_ref: Any, last_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any,
    r_ref: Any, small_ref: Any, queries_ref: Any, keys_ref: Any, o_ref: Any, log_ref: Any, do_ref: Any,
    dq_ref: Any, dk_ref: Any, dv_ref: Any, dr_ref: Any, dsmall_ref: Any, dq_sum: Any, dk_sum: Any, dv_sum: Any,
) -> None:  # fmt: skip
    """One program of the grid (lanes, row, queries, keys): all gradients in one pass, summed in a fixed order.

    dq is summed over the keys, dk and dv over the queries of a row, dr and the small gradients over the rows too.
    """
    g, b, i, j = (pl.program_id(n) for n in range(4))
    blocks, key_blocks = pl.num_programs(2), pl.num_programs(3)
    block = b * blocks + i
    first_of_row = (i == 0) & (j == 0)

    @pl.when(first_of_row if plan.own_tables else first_of_row & (b == 0))
    def _start_tables() -> None:
        dr_ref[...] = jnp.zeros_like(dr_ref)

    @pl.when(first_of_row & (b == 0))
    def _start_small() -> None:
        dsmall_ref[...] = jnp.zeros_like(dsmall_ref)

    @pl.when(first_of_row)
    def _start_row() -> None:
        dk_sum[...] = jnp.zeros_like(dk_sum)
        dv_sum[...] = jnp.zeros_like(dv_sum)

    @pl.when(j == 0)
    def _start_block() -> None:
        dq_sum[...] = jnp.zeros_like(dq_sum)

    tile = load_tile(plan, queries_ref, keys_ref, (first_ref[block], last_ref[block]), j)
    table = 0 if plan.own_tables else table_ref[b]
    q_QL, k_KL, v_KL, do_QL, small_8L = q_ref[0], k_ref[0], v_ref[0], do_ref[0], small_ref[...]
    weighted_QL = do_QL.astype(jnp.float32) * o_ref[0].astype(jnp.float32)
    log_Q8 = log_ref[0, 0].T
    here = pl.ds(pl.multiple_of(tile.first_key, LANES), plan.key_block)
    dk_KL, dv_KL = dk_sum[here, :], dv_sum[here, :]
    da_QL, db_QL, dc_QL = (jnp.zeros(q_QL.shape, jnp.float32) for _ in range(3))
    dother_1L = jnp.zeros((1, LANES), jnp.float32)
    for h in range(plan.heads):
        on_1L = lanes_of(plan, h)
        score_QK, a_QL, b_QL, c_QL = scores(tile, h, q_QL, k_KL, r_ref, small_8L)
        p_QK = jnp.where(tile.visible_QK, jnp.exp(score_QK - log_Q8[:, h : h + 1]), 0)
        do_h_QL = jnp.where(on_1L, do_QL, 0)
        dp_QK, dropped_QK = dot(do_h_QL, v_KL, NT), p_QK
        if plan.rate:
            kept_QK = tile.kept(word_ref[(b * pl.num_programs(0) + g) * plan.heads + h])
            dp_QK, dropped_QK = dp_QK * kept_QK, p_QK * kept_QK
        delta_Q1 = jnp.sum(jnp.where(on_1L, weighted_QL, 0), axis=1, keepdims=True)
        # Without the scale: a, b and c have it, and dq gets it at the end.
        ds_QK = p_QK * (dp_QK - delta_Q1)
        rounded_QK = ds_QK.astype(k_KL.dtype)
        dv_KL += dot(dropped_QK.astype(v_KL.dtype), do_h_QL, TN)
        dk_KL += dot(rounded_QK, a_QL, TN)
        da_QL = jnp.where(on_1L, dot(rounded_QK, k_KL, NN), da_QL)
        ds_other_Q1 = jnp.sum(jnp.where(tile.other_QK, ds_QK, 0), axis=1, keepdims=True)
        dc_QL = jnp.where(on_1L, ds_other_Q1 * small_8L[OTHER : OTHER + 1], dc_QL)
        dother_1L += jnp.sum(ds_other_Q1 * c_QL, axis=0, keepdims=True)

        def window(db_h_QL: Any, rows: Any, inside_Q1: Any, ds_QK: Any = ds_QK, b_QL: Any = b_QL) -> Any:
            ds_QW, order = unskew(tile, ds_QK if inside_Q1 is None else jnp.where(inside_Q1, ds_QK, 0))
            ds_QW = ds_QW.astype(k_KL.dtype)
            dr_ref[table, rows, :] += dot(ds_QW, order(b_QL), TN)
            return db_h_QL + order(dot(ds_QW, r_ref[0, rows, :], NN))

        db_QL = jnp.where(on_1L, tile.each_window(window, jnp.zeros_like(db_QL)), db_QL)
    dk_sum[here, :], dv_sum[here, :] = dk_KL, dv_KL
    parts = [x * plan.scale for x in (da_QL, db_QL, dc_QL)]
    dq_sum[...] += sum(parts)
    sums = [jnp.sum(x, axis=0, keepdims=True) for x in parts]
    dsmall_ref[...] += jnp.concatenate([*sums, dother_1L, jnp.zeros((SUBLANES - 4, LANES), jnp.float32)], axis=0)

    @pl.when(j == key_blocks - 1)
    def _finish_block() -> None:
        dq_ref[0] = dq_sum[...].astype(dq_ref.dtype)

    @pl.when((i == blocks - 1) & (j == key_blocks - 1))
    def _finish_row() -> None:
        dk_ref[0] = dk_sum[...].astype(dk_ref.dtype)
        dv_ref[0] = dv_sum[...].astype(dv_ref.dtype)


def scores(
    tile: Tile, h: int, q_QL: jax.Array, k_KL: jax.Array, r_ref: Any, small_8L: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """s [Q, K] of head h, hidden keys included, and a, b, c [Q, L] times the scale; 0 in the lanes of other heads."""
    scale_1L = jnp.where(lanes_of(tile.plan, h), tile.plan.scale, 0)
    a_QL, b_QL, c_QL = ((q_QL.astype(jnp.float32) + small_8L[n : n + 1]) * scale_1L for n in range(3))
    a_QL, b_QL = a_QL.astype(q_QL.dtype), b_QL.astype(q_QL.dtype)

    def window(position_QK: Any, rows: Any, inside_Q1: Any) -> Any:
        found_QK = skew(tile, dot(b_QL, r_ref[0, rows, :], NT))
        return found_QK if inside_Q1 is None else jnp.where(inside_Q1, found_QK, position_QK)

    position_QK = tile.each_window(window, jnp.zeros(tile.visible_QK.shape, jnp.float32))
    other_Q1 = jnp.sum(c_QL * small_8L[OTHER : OTHER + 1], axis=1, keepdims=True)
    return dot(a_QL, k_KL, NT) + position_QK + jnp.where(tile.other_QK, other_Q1, 0), a_QL, b_QL, c_QL


def dot(a: jax.Array, b: jax.Array, contraction: tuple[tuple[int], tuple[int]]) -> jax.Array:
    """The product in float32; float32 factors are not rounded to bfloat16."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, (contraction, ((), ())), precision, jnp.float32)


def lanes_of(plan: Plan, h: int) -> jax.Array:
    """Bool [1, L]: the lanes of head h."""
    lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return (lane_1L >= h * plan.head_dim) & (lane_1L < (h + 1) * plan.head_dim)


def skew(tile: Tile, x_QW: jax.Array) -> jax.Array:
    """[Q, K]: of each row the columns from S - offset on."""
    plan = tile.plan
    if plan.lined_up:
        return pltpu.roll(x_QW, plan.key_block, 1, stride=1, stride_axis=0)[:, : plan.key_block]
    return shifted(_cut(x_QW), plan.window - tile.position_Q1 % plan.window, plan)


def unskew(tile: Tile, x_QK: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """The transpose of `skew`, [Q, W] with zeros elsewhere, but in another order of rows; and a map to that order.

    A strided roll turns later rows by more, and here they need less: so the rows of each 8 are reversed.
    """
    plan = tile.plan
    if not plan.lined_up:
        zeros = [None] * (plan.window // LANES)
        return shifted([*zeros, *_cut(x_QK), *zeros], tile.position_Q1 % plan.window, plan), lambda x: x
    x_QW = jnp.concatenate([flip(x_QK), jnp.zeros((plan.query_block, plan.window), x_QK.dtype)], axis=1)
    # Row n + t is row n + 7 - t of x, which belongs S - (n + 7 - t) columns further right.
    turned = [
        pltpu.roll(x_QW[n : n + SUBLANES], plan.window - n - SUBLANES + 1, 1, stride=1, stride_axis=0)
        for n in range(0, plan.query_block, SUBLANES)
    ]
    return jnp.concatenate(turned, axis=0), flip


def flip(x: jax.Array) -> jax.Array:
    """Reverses the rows inside every 8 sublanes: a gather within a register. Its own inverse."""
    wide = x.astype(jnp.float32)
    at = SUBLANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, x.shape[1]), 0)
    parts = [jnp.take_along_axis(wide[n : n + SUBLANES], at, axis=0) for n in range(0, len(x), SUBLANES)]
    return jnp.concatenate(parts, axis=0).astype(x.dtype)


def shifted(blocks: Sequence[jax.Array | None], start_Q1: jax.Array, plan: Plan) -> jax.Array:
    """[Q, ..]: row q of the blocks side by side, from column start[q] on; 0 <= start <= S.

    Args:
      blocks: [Q, 128] each; None means zeros. The result has S / 128 blocks less.

    One gather of lanes turns each block by start % 128, one select joins neighbours; whole blocks move by selects.
    """
    queries = (len(start_Q1), LANES)
    coarse_Q1, fine_Q1 = start_Q1 // LANES, start_Q1 % LANES
    lane_QL = jax.lax.broadcasted_iota(jnp.int32, queries, 1) + fine_Q1
    zeros_QL = jnp.zeros(queries, jnp.float32)

    def select(which: jax.Array, one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
        if one is None and other is None:
            return None
        return jnp.where(which, zeros_QL if one is None else one, zeros_QL if other is None else other)

    turned = [None if x is None else jnp.take_along_axis(x, lane_QL % LANES, axis=1) for x in blocks]
    out = [select(lane_QL < LANES, *pair) for pair in zip(turned, [*turned[1:], None], strict=True)]
    for bit in reversed(range((plan.window // LANES).bit_length())):
        later = [*out[1 << bit :], *[None] * len(out)][: len(out)]
        out = [select((coarse_Q1 >> bit) & 1 == 1, *pair) for pair in zip(later, out, strict=True)]
    kept = out[: len(blocks) - plan.window // LANES]
    return jnp.concatenate([zeros_QL if x is None else x for x in kept], axis=1)


def _cut(x: jax.Array) -> list[jax.Array]:
    return [x[:, n : n + LANES] for n in range(0, x.shape[1], LANES)]
