"""The body of the backward kernel of the fused attention on TPU: one block of queries, keys and heads."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.dropout import upscale
from xlnet_jax.kernels.packing import FAR, LN2
from xlnet_jax.kernels.tpu_shift import flip, position_gradients, position_scores
from xlnet_jax.kernels.tpu_units import (
    LANES,
    NN,
    NT,
    OTHER,
    SUBLANES,
    Plan,
    Units,
    dot,
    factors,
    lanes_of,
    only,
    other_segment,
    pipeline,
    wide,
)  # fmt: skip


def backward(
    plan: Plan, table_ref: Any, word_ref: Any, first_ref: Any, last_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any,
    r_ref: Any, small_ref: Any, queries_ref: Any, keys_ref: Any, o_ref: Any, log_ref: Any, do_ref: Any,
    dq_ref: Any, dk_ref: Any, dv_ref: Any, dr_ref: Any, dsmall_ref: Any, columns_ref: Any, score_ref: Any, dp_ref: Any,
    kt_ref: Any, left_ref: Any, da_ref: Any, db_ref: Any, other_ref: Any, dq_sum: Any, dk_sum: Any, dv_sum: Any,
) -> None:  # fmt: skip
    """One program of the grid (lanes, row, queries, keys): all gradients in one pass, summed in a fixed order.

    dq is summed over the keys, dk and dv over the queries of a row, dr and the small gradients over the rows too.
    """
    g, b, i, j = (pl.program_id(n) for n in range(4))
    blocks, key_blocks = pl.num_programs(2), pl.num_programs(3)
    first_of_row = (i == 0) & (j == 0)

    @pl.when(first_of_row if plan.own_tables else first_of_row & (b == 0))
    def _start_tables() -> None:
        dr_ref[...] = jnp.zeros_like(dr_ref)

    @pl.when(first_of_row & (b == 0))
    def _start_small() -> None:
        dsmall_ref[...] = jnp.zeros_like(dsmall_ref)

    unit_of = Units(plan, (word_ref, first_ref, last_ref), columns_ref, queries_ref, keys_ref, (b, g, i, j), True)
    factor, dtype = upscale(plan.rate), k_ref.dtype
    table = 0 if plan.own_tables else table_ref[b]
    kt_ref[...] = k_ref[0].T
    for _, here in plan.each_group():
        a_QL, b_QL, _ = factors(plan, q_ref[0, :, here], small_ref[:, here])
        for n, x_QL in enumerate((a_QL, flip(b_QL) if plan.rolled else b_QL, do_ref[0, :, here])):
            left_ref[n, here] = x_QL.astype(dtype).T

    def first(n: Any, slot: int) -> None:
        unit, score, dp = unit_of.prepare(n, slot), score_ref.at[slot], dp_ref.at[slot]
        small_8L = small_ref[:, unit.lanes]
        a_QL, b_QL, c_QL = (only(unit.lane_1L, x) for x in factors(plan, q_ref[0, unit.here, unit.lanes], small_8L))
        a_QL, other_QL = a_QL.astype(dtype), other_segment(c_QL, small_8L)
        do_QL = only(unit.lane_1L, do_ref[0, unit.here, unit.lanes].astype(jnp.float32)).astype(dtype)
        position = position_scores(unit, b_QL.astype(dtype), r_ref, score)
        for t, part in enumerate(plan.parts):
            score_QK = position(t) + dot(a_QL, k_ref[0, part, unit.lanes], NT) + only(unit.other(part), other_QL)
            score[:, part] = jnp.where(unit.visible(part), score_QK, -FAR)
            dp[:, part] = dot(do_QL, v_ref[0, part, unit.lanes], NT)

    def second(n: Any, slot: int) -> None:
        unit, score, dp = unit_of(n, slot), score_ref.at[slot], dp_ref.at[slot]
        rows, here = unit.rows, unit.here
        # p below carries ln 2 and dropout's factor.
        on_8 = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0) == unit.h % (LANES // plan.head_dim)
        log_1Q = jnp.sum(only(on_8, log_ref[0, unit.group, :, here]), axis=0, keepdims=True)
        log_QL = wide(jnp.broadcast_to(log_1Q, (SUBLANES, plan.strip)).T[:, :1]) - math.log2(factor * LN2)
        do_QL, o_QL = (x[0, here, unit.lanes].astype(jnp.float32) for x in (do_ref, o_ref))
        weighted_QL = do_QL * o_QL
        delta_QL = wide(jnp.sum(only(unit.lane_1L, weighted_QL), axis=1, keepdims=True)) / factor
        # The first strip of a row.
        fresh = (i == 0) & (n < plan.heads)
        da_EQ, ds_other_QL = 0.0, jnp.zeros_like(delta_QL)
        for part in plan.parts:
            keys = pl.ds(pl.multiple_of(unit.first_key + part.start, LANES), LANES)
            p_QK = jnp.exp2(score[:, part] - log_QL)
            keep_QK = unit.kept(part)
            ds_QK = p_QK * (only(keep_QK, dp[:, part]) - delta_QL)
            rounded_QK = ds_QK.astype(dtype)
            dv_EL = dot(left_ref[2, rows, here], only(keep_QK, p_QK).astype(dtype), NN)
            dk_EL = dot(left_ref[0, rows, here], rounded_QK, NN)
            dv_sum[rows, keys] = jnp.where(fresh, 0, dv_sum[rows, keys]) + dv_EL
            dk_sum[rows, keys] = jnp.where(fresh, 0, dk_sum[rows, keys]) + dk_EL
            da_EQ += dot(kt_ref[rows, part], rounded_QK, NT)
            ds_other_QL += only(unit.other(part), ds_QK)
            score[:, part] = ds_QK
        da_ref[rows, here] = da_EQ
        other_ref[unit.h, here] = ds_other_QL
        position_gradients(unit, left_ref[1, rows, here], r_ref.at[0, rows], dr_ref.at[table, rows],
                           db_ref.at[rows, here], score)  # fmt: skip

    pipeline(plan.units, first, second)
    for group, here in plan.each_group():
        small_8L = small_ref[:, here]
        c_QL = factors(plan, q_ref[0, :, here], small_8L)[2]
        ds_other_QL = jnp.zeros_like(c_QL)
        for n in range(LANES // plan.head_dim):
            ds_other_Q1 = jnp.sum(other_ref[group * LANES // plan.head_dim + n], axis=1, keepdims=True)
            ds_other_QL = jnp.where(lanes_of(plan, n), ds_other_Q1, ds_other_QL)
        db_QL = flip(db_ref[here].T) if plan.rolled else db_ref[here].T
        parts = [x * (plan.scale / LN2) for x in (da_ref[here].T, db_QL, ds_other_QL * small_8L[OTHER : OTHER + 1])]
        dq_sum[:, here] = only(j > 0, dq_sum[:, here]) + sum(parts)
        sums = [jnp.sum(x, axis=0, keepdims=True) for x in (*parts, ds_other_QL * c_QL)]
        zeros_4L = jnp.zeros((SUBLANES - len(sums), LANES), jnp.float32)
        dsmall_ref[:, here] += jnp.concatenate([*sums, zeros_4L], axis=0)

    @pl.when(j == key_blocks - 1)
    def _finish_block() -> None:
        dq_ref[0] = dq_sum[...].astype(dq_ref.dtype)

    @pl.when((i == blocks - 1) & (j == key_blocks - 1))
    def _finish_row() -> None:
        dk_ref[0] = dk_sum[...].astype(dk_ref.dtype).T
        dv_ref[0] = (dv_sum[...] * (1 / LN2)).astype(dv_ref.dtype).T
