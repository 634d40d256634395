"""The body of the forward kernel of the fused attention on TPU: one block of queries, keys and heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.dropout import upscale
from xlnet_jax.kernels.packing import FAR
from xlnet_jax.kernels.tpu_shift import position_scores
from xlnet_jax.kernels.tpu_units import (
    LANES,
    NT,
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


def forward(
    plan: Plan, table_ref: Any, word_ref: Any, first_ref: Any, last_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any,
    r_ref: Any, small_ref: Any, queries_ref: Any, keys_ref: Any, o_ref: Any, log_ref: Any,
    columns_ref: Any, score_ref: Any, vt_ref: Any, sum_ref: Any, highest_ref: Any, total_ref: Any,
) -> None:  # fmt: skip
    """One program of the grid (row, lanes, queries, keys): the softmax is built up over the blocks of keys.

    Writes the output and log2(sum of 2^s), [8, Q] with one row per head, FAR for queries that see nothing.
    """
    b, g, i, j = (pl.program_id(n) for n in range(4))

    unit_of = Units(plan, (word_ref, first_ref, last_ref), columns_ref, queries_ref, keys_ref, (b, g, i, j), False)
    factor, dtype = upscale(plan.rate), k_ref.dtype
    vt_ref[...] = v_ref[0].T

    def first(n: Any, slot: int) -> None:
        unit, score = unit_of.prepare(n, slot), score_ref.at[slot]
        small_8L = small_ref[:, unit.lanes]
        a_QL, b_QL, c_QL = (only(unit.lane_1L, x) for x in factors(plan, q_ref[0, unit.here, unit.lanes], small_8L))
        a_QL, other_QL = a_QL.astype(dtype), other_segment(c_QL, small_8L)
        position = position_scores(unit, b_QL.astype(dtype), r_ref, score)
        highest_QL = jnp.full(other_QL.shape, -FAR / 2, jnp.float32)
        for t, part in enumerate(plan.parts):
            score_QK = position(t) + dot(a_QL, k_ref[0, part, unit.lanes], NT) + only(unit.other(part), other_QL)
            score_QK = jnp.where(unit.visible(part), score_QK, -FAR)
            score[:, part] = score_QK
            highest_QL = jnp.maximum(highest_QL, score_QK)
        # Above the score of hidden keys: so their weight is 0 even for a query that has seen nothing so far.
        before_QL = jnp.where(j == 0, -FAR / 2, highest_ref[unit.h, unit.here])
        highest_QL = jnp.maximum(before_QL, wide(jnp.max(highest_QL, axis=1, keepdims=True)))
        highest_ref[unit.h, unit.here] = highest_QL
        if plan.keys > plan.key_block:
            shrink_QL = jnp.where(j == 0, 0, jnp.exp2(before_QL - highest_QL))
            total_ref[unit.h, unit.here] = only(j > 0, total_ref[unit.h, unit.here]) * shrink_QL
            sum_ref[unit.rows, unit.here] = only(j > 0, sum_ref[unit.rows, unit.here]) * shrink_QL.T[: plan.head_dim]

    def second(n: Any, slot: int) -> None:
        unit, score = unit_of(n, slot), score_ref.at[slot]
        highest_QL, total_QL, o_EQ = highest_ref[unit.h, unit.here], 0.0, 0.0
        for part in plan.parts:
            weight_QK = jnp.exp2(score[:, part] - highest_QL)
            total_QL += weight_QK
            o_EQ += dot(vt_ref[unit.rows, part], only(unit.kept(part), weight_QK).astype(dtype), NT)
        total_QL = wide(jnp.sum(total_QL, axis=1, keepdims=True))
        if plan.keys > plan.key_block:
            total_QL, o_EQ = total_QL + total_ref[unit.h, unit.here], o_EQ + sum_ref[unit.rows, unit.here]
        total_ref[unit.h, unit.here] = total_QL
        sum_ref[unit.rows, unit.here] = o_EQ

    pipeline(plan.units, first, second)

    @pl.when(j == pl.num_programs(3) - 1)
    def _finish() -> None:
        for group, here in plan.each_group():
            first_head = group * LANES // plan.head_dim
            lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
            total_QL, highest_QL, each_QL = total_ref[first_head], highest_ref[first_head], total_ref[first_head]
            for n in range(1, LANES // plan.head_dim):
                total_QL = jnp.where(lane_1L == n, total_ref[first_head + n], total_QL)
                highest_QL = jnp.where(lane_1L == n, highest_ref[first_head + n], highest_QL)
                each_QL = jnp.where(lanes_of(plan, n), total_ref[first_head + n], each_QL)
            o_QL = sum_ref[here].T * (factor / jnp.where(each_QL == 0, 1, each_QL))
            o_ref[0, :, here] = o_QL.astype(o_ref.dtype)
            log_QL = jnp.where(total_QL == 0, FAR, highest_QL + jnp.log2(total_QL))
            log_ref[0, group] = log_QL.T[:SUBLANES]
