"""The bodies of the fused attention on TPU: what one program does with a block of queries, keys and
heads.

Formulas: `packing`. Units and letters: `tpu_units`. The position term: `tpu_positions`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.dropout import upscale
from xlnet_jax.kernels.packing import FAR, LN2
from xlnet_jax.kernels.tpu_positions import flip, position_gradients, position_scores
from xlnet_jax.kernels.tpu_units import (
    LANES,
    NN,
    NT,
    SUBLANES,
    TpuPlan,
    Unit,
    Units,
    dot,
    lanes_of,
    only,
    wide,
)

OTHER = 3
"""Row of the small inputs [8, L] after content, position and segment bias: the vector S of another
segment minus that of the same one. Only their difference matters: what all keys of a query have in
common cancels in the softmax.
"""

Stage = Callable[[Any, int], Iterator[None]]
"""Of `pipeline`: unit and slot."""


def forward(
    plan: TpuPlan,
    table_ref: Any,
    word_ref: Any,
    first_ref: Any,
    last_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    r_ref: Any,
    small_ref: Any,
    queries_ref: Any,
    keys_ref: Any,
    o_ref: Any,
    log_ref: Any,
    weight_ref: Any,
    columns_ref: Any,
    score_ref: Any,
    vt_ref: Any,
    sum_ref: Any,
    highest_ref: Any,
    total_ref: Any,
) -> None:
    """One program of the grid (row, lanes, queries, keys): the softmax is built up over the blocks
    of keys.

    Writes the output and log2(sum of 2^s), [8, Q] with one row per head, FAR for queries that see
    nothing. With `plan.saved` also 2^(s - highest), negative where dropout drops it; the sum is
    then of these.
    """
    b, g, i, j = (pl.program_id(n) for n in range(4))

    unit_of = Units(
        plan,
        (word_ref, first_ref, last_ref),
        columns_ref,
        queries_ref,
        keys_ref,
        (b, g, i, j),
        False,
    )
    factor, dtype = upscale(plan.rate), k_ref.dtype
    vt_ref[...] = v_ref[0].T

    def first(n: Any, slot: int) -> Iterator[None]:
        unit, score = unit_of.prepare(n, slot), score_ref.at[slot]
        scores = masked_scores(unit, q_ref, k_ref, r_ref, small_ref, score)
        highest_QL = jnp.full((plan.strip, LANES), -FAR / 2, jnp.float32)
        for t, part in enumerate(plan.parts):
            score_QK = score[:, part] = scores(t)
            highest_QL = jnp.maximum(highest_QL, score_QK)
            yield
        # Above the score of hidden keys: so their weight is 0 even for a query that has seen
        # nothing so far.
        before_QL = jnp.where(j == 0, -FAR / 2, highest_ref[unit.h, unit.here])
        highest_QL = jnp.maximum(before_QL, wide(jnp.max(highest_QL, axis=1, keepdims=True)))
        highest_ref[unit.h, unit.here] = highest_QL
        if plan.keys > plan.key_block:
            shrink_QL = jnp.where(j == 0, 0, jnp.exp2(before_QL - highest_QL))
            total_ref[unit.h, unit.here] = only(j > 0, total_ref[unit.h, unit.here]) * shrink_QL
            sum_ref[unit.rows, unit.here] = (
                only(j > 0, sum_ref[unit.rows, unit.here]) * shrink_QL.T[: plan.head_dim]
            )

    def second(n: Any, slot: int) -> Iterator[None]:
        unit, score = unit_of(n, slot), score_ref.at[slot]
        highest_QL, total_QL, o_EQ = highest_ref[unit.h, unit.here], 0.0, 0.0
        for part in plan.parts:
            weight_QK = jnp.exp2(score[:, part] - highest_QL)
            total_QL += weight_QK
            keep_QK = unit.kept(part)
            o_EQ += dot(vt_ref[unit.rows, part], only(keep_QK, weight_QK).astype(dtype), NT)
            if plan.saved:
                weight_ref[0, unit.h, unit.here, part] = jnp.where(
                    keep_QK, weight_QK, -weight_QK
                ).astype(dtype)
        total_QL = wide(jnp.sum(total_QL, axis=1, keepdims=True))
        if plan.keys > plan.key_block:
            total_QL, o_EQ = (
                total_QL + total_ref[unit.h, unit.here],
                o_EQ + sum_ref[unit.rows, unit.here],
            )
        total_ref[unit.h, unit.here] = total_QL
        sum_ref[unit.rows, unit.here] = o_EQ
        # In one piece: with more of it beside the products the registers do not suffice.
        yield

    pipeline(plan.units, first, second)

    @pl.when(j == pl.num_programs(3) - 1)
    def _finish() -> None:
        heads, lane_1L = LANES // plan.head_dim, jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        for group, here in plan.each_group():
            # Sums and highest scores of the heads on as many lanes; then on rows, where a query
            # costs one lane.
            both_QL = jnp.zeros((plan.query_block, LANES), jnp.float32)
            for n, ref in enumerate((total_ref, highest_ref)):
                for h in range(heads):
                    both_QL = jnp.where(lane_1L == n * 4 + h, ref[group * heads + h], both_QL)
            both_8Q = both_QL.T[:SUBLANES]
            total_4Q, highest_4Q = both_8Q[:4], 0 if plan.saved else both_8Q[4:]
            log_ref[0, group, :4] = jnp.where(total_4Q == 0, FAR, highest_4Q + jnp.log2(total_4Q))
            scale_4Q = factor / jnp.where(total_4Q == 0, 1, total_4Q)
            each = [
                sum_ref[plan.rows(group * heads + h)] * scale_4Q[h : h + 1] for h in range(heads)
            ]
            o_ref[0, :, here] = jnp.concatenate(each, axis=0).T.astype(o_ref.dtype)


def backward(
    plan: TpuPlan,
    table_ref: Any,
    word_ref: Any,
    first_ref: Any,
    last_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    r_ref: Any,
    small_ref: Any,
    queries_ref: Any,
    keys_ref: Any,
    o_ref: Any,
    log_ref: Any,
    do_ref: Any,
    weight_ref: Any,
    dq_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
    dr_ref: Any,
    dsmall_ref: Any,
    columns_ref: Any,
    score_ref: Any,
    dp_ref: Any,
    kt_ref: Any,
    left_ref: Any,
    da_ref: Any,
    db_ref: Any,
    other_ref: Any,
    dq_sum: Any,
    dk_sum: Any,
    dv_sum: Any,
    scaled_ref: Any,
) -> None:
    """One program of the grid (lanes, row, queries, keys): all gradients in one pass, summed in a
    fixed order.

    dq is summed over the keys, dk and dv over the queries of a row, dr and the small gradients over
    the rows too. With `plan.saved` do carries what makes a weight of `forward` a probability, so
    that the gradient of a score is |weight| (do . v if the weight is positive - do . o).
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

    unit_of = Units(
        plan,
        (word_ref, first_ref, last_ref),
        columns_ref,
        queries_ref,
        keys_ref,
        (b, g, i, j),
        True,
    )
    factor, dtype = upscale(plan.rate), k_ref.dtype
    table = 0 if plan.own_tables else table_ref[b]
    kt_ref[...] = k_ref[0].T
    for group, here in plan.each_group():
        a_QL, b_QL, _ = factors(plan, q_ref[0, :, here], small_ref[:, here])
        do_QL = do_ref[0, :, here]
        if plan.saved:
            scale_Q8, scale_QL = jnp.exp2(math.log2(factor * LN2) - log_ref[0, group]).T, 0.0
            for n in range(LANES // plan.head_dim):
                scale_QL = jnp.where(lanes_of(plan, n), scale_Q8[:, n : n + 1], scale_QL)
            do_QL = scaled_ref[:, here] = (do_QL.astype(jnp.float32) * scale_QL).astype(dtype)
        for n, x_QL in enumerate((a_QL, flip(b_QL) if plan.rolled else b_QL, do_QL)):
            left_ref[n, here] = x_QL.astype(dtype).T

    do_ref = scaled_ref if plan.saved else do_ref.at[0]

    def first(n: Any, slot: int) -> Iterator[None]:
        unit, score, dp = unit_of.prepare(n, slot), score_ref.at[slot], dp_ref.at[slot]
        do_QL = only(unit.lane_1L, do_ref[unit.here, unit.lanes].astype(jnp.float32)).astype(dtype)
        scores = None if plan.saved else masked_scores(unit, q_ref, k_ref, r_ref, small_ref, score)
        for t, part in enumerate(plan.parts):
            if scores:
                score[:, part] = scores(t)
            dp[:, part] = dot(do_QL, v_ref[0, part, unit.lanes], NT)
            yield

    def second(n: Any, slot: int) -> Iterator[None]:
        unit, score, dp = unit_of(n, slot), score_ref.at[slot], dp_ref.at[slot]
        rows, here = unit.rows, unit.here
        do_QL, o_QL = (
            x.astype(jnp.float32) for x in (do_ref[here, unit.lanes], o_ref[0, here, unit.lanes])
        )
        weighted_QL = do_QL * o_QL
        delta_QL = wide(jnp.sum(only(unit.lane_1L, weighted_QL), axis=1, keepdims=True)) / factor
        probabilities = (
            saved(unit, weight_ref) if plan.saved else computed(unit, score, log_ref, factor)
        )
        # The first strip of a row.
        fresh = (i == 0) & (n < plan.heads)
        da_EQ, ds_other_QL = 0.0, jnp.zeros_like(delta_QL)
        for part in plan.parts:
            keys = pl.ds(pl.multiple_of(unit.first_key + part.start, LANES), LANES)
            p_QK, kept_QK, keep_QK = probabilities(part)
            ds_QK = p_QK * (only(keep_QK, dp[:, part]) - delta_QL)
            rounded_QK = ds_QK.astype(dtype)
            dv_EL = dot(left_ref[2, rows, here], kept_QK.astype(dtype), NN)
            dk_EL = dot(left_ref[0, rows, here], rounded_QK, NN)
            dv_sum[rows, keys] = jnp.where(fresh, 0, dv_sum[rows, keys]) + dv_EL
            dk_sum[rows, keys] = jnp.where(fresh, 0, dk_sum[rows, keys]) + dk_EL
            da_EQ += dot(kt_ref[rows, part], rounded_QK, NT)
            ds_other_QL += only(unit.other(part), ds_QK)
            score[:, part] = ds_QK
            yield
        da_ref[rows, here] = da_EQ
        other_ref[unit.h, here] = ds_other_QL
        position_gradients(
            unit,
            left_ref[1, rows, here],
            r_ref.at[0, rows],
            dr_ref.at[table, rows],
            db_ref.at[rows, here],
            score,
        )

    pipeline(plan.units, first, second)
    for group, here in plan.each_group():
        small_8L = small_ref[:, here]
        c_QL = factors(plan, q_ref[0, :, here], small_8L)[2]
        ds_other_QL = jnp.zeros_like(c_QL)
        for n in range(LANES // plan.head_dim):
            ds_other_Q1 = jnp.sum(
                other_ref[group * LANES // plan.head_dim + n], axis=1, keepdims=True
            )
            ds_other_QL = jnp.where(lanes_of(plan, n), ds_other_Q1, ds_other_QL)
        db_QL = flip(db_ref[here].T) if plan.rolled else db_ref[here].T
        parts = [
            x * (plan.scale / LN2)
            for x in (da_ref[here].T, db_QL, ds_other_QL * small_8L[OTHER : OTHER + 1])
        ]
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


def masked_scores(
    unit: Unit, q_ref: Any, k_ref: Any, r_ref: Any, small_ref: Any, score: Any
) -> Callable[[int], jax.Array]:
    """The scores of one head, [Q, 128], by number of the part of the keys; `score` as in
    `position_scores`.
    """
    plan, dtype, small_8L = unit.plan, k_ref.dtype, small_ref[:, unit.lanes]
    a_QL, b_QL, c_QL = (
        only(unit.lane_1L, x) for x in factors(plan, q_ref[0, unit.here, unit.lanes], small_8L)
    )
    a_QL, other_QL = a_QL.astype(dtype), other_segment(c_QL, small_8L)
    position = position_scores(unit, b_QL.astype(dtype), r_ref, score)

    def scores(t: int) -> jax.Array:
        part = plan.parts[t]
        score_QK = (
            position(t)
            + dot(a_QL, k_ref[0, part, unit.lanes], NT)
            + only(unit.other(part), other_QL)
        )
        return jnp.where(unit.visible(part), score_QK, -FAR)

    return scores


Probabilities = Callable[[slice], tuple[jax.Array, jax.Array, jax.Array | bool]]
"""Of a part of the keys: all, with 0 for those that dropout drops, and which it keeps; [Q, 128]."""


def computed(unit: Unit, score: Any, log_ref: Any, factor: float) -> Probabilities:
    """From the scores. They carry ln 2 and dropout's factor."""
    on_8 = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0) == unit.h % (
        LANES // unit.plan.head_dim
    )
    log_1Q = jnp.sum(only(on_8, log_ref[0, unit.group, :, unit.here]), axis=0, keepdims=True)
    log_QL = wide(jnp.broadcast_to(log_1Q, (SUBLANES, unit.plan.strip)).T[:, :1]) - math.log2(
        factor * LN2
    )

    def compute(part: slice) -> tuple[jax.Array, jax.Array, jax.Array | bool]:
        p_QK, keep_QK = jnp.exp2(score[:, part] - log_QL), unit.kept(part)
        return p_QK, only(keep_QK, p_QK), keep_QK

    return compute


def saved(unit: Unit, weight_ref: Any) -> Probabilities:
    """From the weights of the forward pass: without a factor of each query, which do carries."""

    def read(part: slice) -> tuple[jax.Array, jax.Array, jax.Array]:
        weight_QK = weight_ref[0, unit.h, unit.here, part].astype(jnp.float32)
        return jnp.abs(weight_QK), jnp.maximum(weight_QK, 0), weight_QK > 0

    return read


def pipeline(units: int, first: Stage, second: Stage) -> None:
    """first(unit, slot) and second(unit, slot) of all units in order, second of one beside first of
    the next.

    The compiler does not look beyond a turn of the loop, and there mixes what is near in the
    program: `first` is mostly products, `second` mostly arithmetic. So they take turns, from one
    yield to the next. The slot is where first leaves its results, known when compiling.
    """

    def beside(*stages: Iterator[None]) -> None:
        for _ in itertools.zip_longest(*stages):
            pass

    beside(first(0, 0))

    @pl.loop(0, (units - 1) // 2)
    def _turn(m: Any) -> None:
        for slot in (0, 1):
            beside(second(2 * m + slot, slot), first(2 * m + slot + 1, 1 - slot))

    for n in range((units - 1) // 2 * 2, units):
        beside(second(n, n % 2), *[first(n + 1, (n + 1) % 2)] * (n + 1 < units))


def factors(
    plan: TpuPlan, q_QL: jax.Array, small_8L: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """a, b and c times the scale / ln 2, float32 [Q, L]."""
    a_QL, b_QL, c_QL = (
        (q_QL.astype(jnp.float32) + small_8L[n : n + 1]) * (plan.scale / LN2) for n in range(3)
    )
    return a_QL, b_QL, c_QL


def other_segment(c_QL: jax.Array, small_8L: jax.Array) -> jax.Array:
    """What a key in another segment adds to the score."""
    return wide(jnp.sum(c_QL * small_8L[OTHER : OTHER + 1], axis=1, keepdims=True))
