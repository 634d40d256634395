"""The bodies of the fused attention on TPU: what one program does with a block of queries, keys and heads.

Formulas: `packing`. Units and letters: `tpu_units`.

The position term. The query at position t meets key j at row T - 1 - t + j of the position keys. A window is S
consecutive values of the start T - 1 - t, from a multiple of S on; it needs S + K rows, and the query with the start
w S + e takes K of their scores from column e on (`moved`). Queries in order have S = 128 and one window per strip;
queries at chosen positions take the windows from the first to the last of the strip in turn.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.dropout import upscale
from xlnet_jax.kernels.packing import FAR, LN2
from xlnet_jax.kernels.tpu_units import LANES, NN, NT, SUBLANES, Plan, Unit, Units, dot, lanes_of, only, wide

OTHER = 3
"""Row of the small inputs [8, L] after content, position and segment bias: the vector S of another segment minus that
of the same one. Only their difference matters: what all keys of a query have in common cancels in the softmax."""

Stage = Callable[[Any, int], Iterator[None]]
"""Of `pipeline`: unit and slot."""


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

    def first(n: Any, slot: int) -> Iterator[None]:
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
            yield
        # Above the score of hidden keys: so their weight is 0 even for a query that has seen nothing so far.
        before_QL = jnp.where(j == 0, -FAR / 2, highest_ref[unit.h, unit.here])
        highest_QL = jnp.maximum(before_QL, wide(jnp.max(highest_QL, axis=1, keepdims=True)))
        highest_ref[unit.h, unit.here] = highest_QL
        if plan.keys > plan.key_block:
            shrink_QL = jnp.where(j == 0, 0, jnp.exp2(before_QL - highest_QL))
            total_ref[unit.h, unit.here] = only(j > 0, total_ref[unit.h, unit.here]) * shrink_QL
            sum_ref[unit.rows, unit.here] = only(j > 0, sum_ref[unit.rows, unit.here]) * shrink_QL.T[: plan.head_dim]

    def second(n: Any, slot: int) -> Iterator[None]:
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
        # In one piece: with more of it beside the products the registers do not suffice.
        yield

    pipeline(plan.units, first, second)

    @pl.when(j == pl.num_programs(3) - 1)
    def _finish() -> None:
        heads, lane_1L = LANES // plan.head_dim, jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        for group, here in plan.each_group():
            # Sums and highest scores of the heads on as many lanes; then on rows, where a query costs one lane.
            both_QL = jnp.zeros((plan.query_block, LANES), jnp.float32)
            for n, ref in enumerate((total_ref, highest_ref)):
                for h in range(heads):
                    both_QL = jnp.where(lane_1L == n * 4 + h, ref[group * heads + h], both_QL)
            both_8Q = both_QL.T[:SUBLANES]
            total_4Q, highest_4Q = both_8Q[:4], both_8Q[4:]
            log_ref[0, group, :4] = jnp.where(total_4Q == 0, FAR, highest_4Q + jnp.log2(total_4Q))
            scale_4Q = factor / jnp.where(total_4Q == 0, 1, total_4Q)
            each = [sum_ref[plan.rows(group * heads + h)] * scale_4Q[h : h + 1] for h in range(heads)]
            o_ref[0, :, here] = jnp.concatenate(each, axis=0).T.astype(o_ref.dtype)


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

    def first(n: Any, slot: int) -> Iterator[None]:
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
            yield

    def second(n: Any, slot: int) -> Iterator[None]:
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
            yield
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


def position_scores(unit: Unit, b_QL: jax.Array, r_ref: Any, score: Any) -> Callable[[int], jax.Array]:
    """b . r of one head, [Q, 128], by number of the part of the keys; several windows use score [Q, K]."""
    plan = unit.plan
    tiles = (plan.window + plan.key_block) // LANES

    def scores(row: Any) -> Callable[[int], jax.Array]:
        def tile(t: int) -> jax.Array | None:
            return dot(b_QL, r_ref[0, unit.lanes, pl.ds(row + t * LANES, LANES)], NN) if t < tiles else None

        return moved(tile, unit, 1)

    def visit(row: Any, inside_QL: Any) -> None:
        shifted = scores(row)
        for t, part in enumerate(plan.parts):
            score[:, part] = jnp.where(inside_QL, shifted(t), score[:, part])

    if plan.one_window:
        return scores(unit.row(unit.windows[0]))
    unit.each_window(visit)
    return lambda t: score[:, plan.parts[t]]


def position_gradients(unit: Unit, b_EQ: jax.Array, r_ref: Any, dr_ref: Any, db_ref: Any, ds_ref: Any) -> None:
    """Adds the gradient of the position keys to dr_ref [E, N]; writes that of b, [E, Q]."""
    plan = unit.plan

    def visit(row: Any, inside_QL: Any) -> None:
        def tile(t: int) -> jax.Array | None:
            if not 0 <= t < len(plan.parts):
                return None
            return ds_ref[:, plan.parts[t]] if inside_QL is None else only(inside_QL, ds_ref[:, plan.parts[t]])

        shifted, db_EQ = moved(tile, unit, -1), 0.0
        for t in range((plan.window + plan.key_block) // LANES):
            rows = pl.ds(row + t * LANES, LANES)
            ds_QN = shifted(t).astype(b_EQ.dtype)
            dr_ref[:, rows] += dot(b_EQ, ds_QN, NN)
            db_EQ += dot(r_ref[:, rows], ds_QN, NT)
        if inside_QL is None:
            db_ref[...] = db_EQ
        else:
            db_ref[...] += db_EQ

    if plan.one_window:
        visit(unit.row(unit.windows[0]), None)
    else:
        db_ref[...] = jnp.zeros_like(db_ref)
        unit.each_window(visit)


def moved(tile: Callable[[int], jax.Array | None], unit: Unit, sign: int) -> Callable[[int], jax.Array]:
    """Tiles [Q, 128] side by side, of which row q is moved by its offset e[q] in the window; by number.

    Args:
      tile: the tile of a number, None for zeros.
      sign: 1: row q from column e[q] on; -1: the transpose of that, row q after e[q] zeros, where the offsets fall by 1
        per row with the rows of each 8 reversed (`flip`).

    Inside a tile rows turn, and a select joins neighbours; whole tiles move by selects.
    """
    plan = unit.plan
    backward = plan.rolled and sign < 0
    lane_QL = jax.lax.broadcasted_iota(jnp.int32, (plan.strip, LANES), 1)
    start_QL = unit.start_QL & LANES - 1
    to_QL = lane_QL + sign * (flip(start_QL) if backward else start_QL)
    same_QL = to_QL < LANES if sign > 0 else to_QL >= 0
    offset_QL = unit.start_QL & (plan.window - 1)

    def select(which: jax.Array, one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
        if one is None and other is None:
            return None
        return jnp.where(which, 0.0 if one is None else one, 0.0 if other is None else other)

    @functools.cache
    def turned(t: int) -> jax.Array | None:
        """The tile of a number, each row turned by its offset modulo 128."""
        x_QL = tile(t)
        if x_QL is None:
            return None
        if not plan.rolled:
            return jnp.take_along_axis(x_QL, to_QL & LANES - 1, axis=1)
        # A strided roll turns later rows by more. Offsets fall by 1 per row: to the right, it needs reversed rows.
        if not backward:
            return pltpu.roll(x_QL, unit.start + 1, 1, stride=1, stride_axis=0)
        x_QL, last = flip(x_QL), 2 * LANES - SUBLANES - unit.start
        parts = [
            pltpu.roll(x_QL[n : n + SUBLANES], (last - n) % LANES, 1, stride=1, stride_axis=0)
            for n in range(0, len(x_QL), SUBLANES)
        ]
        return jnp.concatenate(parts, axis=0)

    @functools.cache
    def level(n: int, t: int) -> Any:
        if n == 0:
            return select(same_QL, turned(t), turned(t + sign))
        far = offset_QL & LANES << (n - 1) != 0
        return select(far, level(n - 1, t + sign * 2 ** (n - 1)), level(n - 1, t))

    return functools.partial(level, (plan.window // LANES - 1).bit_length())


def flip(x: jax.Array) -> jax.Array:
    """Reverses the rows inside every 8 sublanes: a gather within a register. Its own inverse."""
    at = SUBLANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, x.shape[1]), 0)
    parts = [jnp.take_along_axis(x[n : n + SUBLANES], at, axis=0) for n in range(0, len(x), SUBLANES)]
    return jnp.concatenate(parts, axis=0)


def pipeline(units: int, first: Stage, second: Stage) -> None:
    """first(unit, slot) and second(unit, slot) of all units in order, second of one beside first of the next.

    The compiler does not look beyond a turn of the loop, and there mixes what is near in the program: `first` is mostly
    products, `second` mostly arithmetic. So they take turns, from one yield to the next. The slot is where first leaves
    its results, known when compiling.
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


def factors(plan: Plan, q_QL: jax.Array, small_8L: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """a, b and c times the scale / ln 2, float32 [Q, L]."""
    a_QL, b_QL, c_QL = ((q_QL.astype(jnp.float32) + small_8L[n : n + 1]) * (plan.scale / LN2) for n in range(3))
    return a_QL, b_QL, c_QL


def other_segment(c_QL: jax.Array, small_8L: jax.Array) -> jax.Array:
    """What a key in another segment adds to the score."""
    return wide(jnp.sum(c_QL * small_8L[OTHER : OTHER + 1], axis=1, keepdims=True))
