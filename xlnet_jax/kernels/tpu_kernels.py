"""The bodies of the fused attention on TPU: what one program does for one block of queries, keys and heads.

Formulas: `reference`. A program handles 128 lanes of the model width: 128 / E heads, whose queries, keys and values are
where the projections put them. It goes through its queries in strips of up to 128, head by head, and through its keys
in parts of 128: an array of a strip and a part is 16 registers.

Products. The matrix unit takes one row of the left factor per cycle, 128 wide. Where a head is contracted, the lanes of
the others are set to 0 in one factor. Where a head comes out, it is on the rows of the left factor, transposed: so a
head of 64 costs 64 cycles, and the large factor, queries times keys, is never transposed.

The position term. The query at position t meets key j at row T - 1 - t + j of the position keys. A window is S
consecutive values of the start T - 1 - t, from a multiple of S on; it needs S + K rows, and the query with the start
w S + e takes K of their scores from column e on (`moved`). Queries in order have S = 128 and one window per strip;
queries at chosen positions take the windows from the first to the last of the strip in turn.

Scores are in units of ln 2, so that the exponential is a power of 2: a, b and c carry the scale / ln 2. The gradient of
a score carries ln 2, so that the products with a, b and c need no factor.

Letters: Q queries of a strip, K keys of the block, L = 128 lanes, S positions of a window.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.dropout import bits, keep, upscale

LANES, SUBLANES = 128, 8
FAR = 1e30
"""Stands for infinity, whose differences are NaN."""
OTHER = 3
"""Row of the small inputs [8, L] after content, position and segment bias: the vector S of another segment minus that
of the same one. Only their difference matters: what all keys of a query have in common cancels in the softmax."""
NT, NN = ((1,), (1,)), ((1,), (0,))
"""Contractions of two matrices: a b' and a b."""
LN2 = math.log(2)


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
    groups: int
    """Of 128 lanes, in a program."""
    query_block: int
    key_block: int
    window: int
    """S, a power of 2; 128 for queries in order."""
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
        """Heads in a program."""
        return self.groups * LANES // self.head_dim

    def each_group(self) -> Iterator[tuple[int, slice]]:
        """Number and lanes of each group."""
        return ((n, slice(n * LANES, (n + 1) * LANES)) for n in range(self.groups))

    @property
    def strip(self) -> int:
        """Queries of a strip."""
        return min(self.query_block, LANES)

    @property
    def rolled(self) -> bool:
        """The offset in the window falls by 1 per row, and the chip can use that."""
        return self.strided and not self.chosen

    @property
    def one_window(self) -> bool:
        """The queries of a strip are in one window."""
        return not self.chosen or self.positions <= self.window

    @property
    def parts(self) -> list[slice]:
        """The parts of a block of keys."""
        return [slice(n, n + LANES) for n in range(0, self.key_block, LANES)]

    @property
    def units(self) -> int:
        """Pairs of a strip and a head in a program."""
        return self.query_block // self.strip * self.heads


@dataclasses.dataclass(frozen=True)
class Unit:
    """One head of a strip, and the keys of the block; L are the 128 lanes that the head is in."""

    plan: Plan
    h: Any
    here: Any
    """The strip in the block of queries."""
    start: Any
    """The position of the first query of the strip minus T, modulo 128."""
    columns_ref: Any
    """int32 [4, Q, 128]: limit, segment, position, hash of dropout up to the query."""
    keys_ref: Any
    first_key: Any
    windows: tuple[Any, Any]
    """The first and the last."""

    @property
    def group(self) -> Any:
        """Number of the 128 lanes that the head is in."""
        return self.h * self.plan.head_dim // LANES

    @property
    def lanes(self) -> Any:
        """The 128 lanes that the head is in."""
        return pl.ds(pl.multiple_of(self.group * LANES, LANES), LANES)

    @property
    def lane_1L(self) -> jax.Array:
        """Bool: the lanes of the head in its 128."""
        return lanes_of(self.plan, self.h % (LANES // self.plan.head_dim))

    @property
    def rows(self) -> Any:
        """The head in the rows of a transposed array."""
        return pl.ds(pl.multiple_of(self.h * self.plan.head_dim, self.plan.head_dim), self.plan.head_dim)

    def visible(self, part: slice) -> jax.Array:
        """Bool [Q, 128]."""
        visible_QK = self.keys_ref[0, 0:1, part] < self.columns_ref[0]
        if self.plan.farthest is not None:
            visible_QK &= self.columns_ref[2] - self._key(part) <= self.plan.farthest
        return visible_QK

    def other(self, part: slice) -> jax.Array:
        """Bool [Q, 128]: the key is in another segment."""
        return self.keys_ref[0, 1:2, part] != self.columns_ref[1]

    def kept(self, part: slice) -> jax.Array | bool:
        """Where dropout keeps a probability, bool [Q, 128]."""
        return keep(self.plan.rate, self.columns_ref[3].astype(jnp.uint32), self._key(part)) if self.plan.rate else True

    @property
    def start_QL(self) -> jax.Array:
        """The row of the position keys for key 0."""
        return self.plan.positions - 1 - self.columns_ref[2]

    def _key(self, part: slice) -> jax.Array:
        return self.first_key + part.start + jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)

    def row(self, window: Any) -> Any:
        """The first row of the position keys for a window."""
        return pl.multiple_of(window * self.plan.window + self.first_key, LANES)

    def each_window(self, visit: Callable[[Any, Any], None]) -> None:
        """visit(first row of the position keys, which queries [Q, 128] are in the window), by window."""
        window_QL = self.start_QL >> self.plan.window.bit_length() - 1

        @pl.loop(self.windows[0], self.windows[1] + 1)
        def _window(w: Any) -> None:
            visit(self.row(w), window_QL[:, :1] == w)


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of a program, by number: the heads of the first strip, then those of the next."""

    plan: Plan
    scalars: tuple[Any, Any, Any]
    """Hash of dropout up to row and head, first and last window of each block."""
    columns_ref: Any
    """int32 [2 slots, 4, Q, 128]; see `Unit`."""
    queries_ref: Any
    """Rows: limit, segment, position."""
    keys_ref: Any
    """Rows: rank, segment."""
    program: tuple[Any, Any, Any, Any]
    """Numbers of row, lanes, queries, keys."""
    groups_first: bool
    """The grid's first axis is the lanes, its second the row."""

    def prepare(self, n: Any, slot: int) -> Unit:
        """Fills the columns of the slot and returns the unit."""
        plan, (b, g, *_), unit = self.plan, self.program, self(n, slot)
        rows_8Q = self.queries_ref[0, :, unit.here]
        if plan.rate:
            group = (b * pl.num_programs(0 if self.groups_first else 1) + g) * plan.heads
            word_1Q = bits(self.scalars[0][group + unit.h].astype(jnp.uint32), rows_8Q[2:3]).astype(jnp.int32)
            rows_8Q = jnp.where(jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0) == 3, word_1Q, rows_8Q)
        columns_Q8 = rows_8Q.T
        for m in range(4):
            unit.columns_ref[m] = wide(columns_Q8[:, m : m + 1])
        return unit

    def __call__(self, n: Any, slot: int) -> Unit:
        """Unit n, with its columns in the slot."""
        plan, (_, first_ref, last_ref), (b, _, i, j) = self.plan, self.scalars, self.program
        s, h = n // plan.heads, n % plan.heads
        one_strip = plan.query_block == plan.strip
        here = pl.ds(0 if one_strip else pl.multiple_of(s * plan.strip, plan.strip), plan.strip)
        block = b * pl.num_programs(2) + i
        windows = first_ref[block], last_ref[block]
        if not plan.chosen:
            windows = ((plan.positions - 1 - s * plan.strip - i * plan.query_block) // LANES,) * 2
        start = 0
        if plan.strip < LANES:
            start = i * plan.query_block + s * plan.strip - plan.positions & LANES - 1
        return Unit(
            plan, h, here, start, self.columns_ref.at[slot], self.keys_ref,
            j * plan.key_block, windows,
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
    factor, dtype = upscale(plan.rate) if plan.rate else 1.0, k_ref.dtype
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
    factor, dtype = upscale(plan.rate) if plan.rate else 1.0, k_ref.dtype
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
            there = pl.ds(pl.multiple_of(unit.first_key + part.start, LANES), LANES)
            p_QK = jnp.exp2(score[:, part] - log_QL)
            keep_QK = unit.kept(part)
            ds_QK = p_QK * (only(keep_QK, dp[:, part]) - delta_QL)
            rounded_QK = ds_QK.astype(dtype)
            dv_EL = dot(left_ref[2, rows, here], only(keep_QK, p_QK).astype(dtype), NN)
            dk_EL = dot(left_ref[0, rows, here], rounded_QK, NN)
            dv_sum[rows, there] = jnp.where(fresh, 0, dv_sum[rows, there]) + dv_EL
            dk_sum[rows, there] = jnp.where(fresh, 0, dk_sum[rows, there]) + dk_EL
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


def pipeline(units: int, first: Callable[[Any, int], None], second: Callable[[Any, int], None]) -> None:
    """first(unit, slot) and second(unit, slot) of all units in order, second of one beside first of the next.

    The compiler does not look beyond a turn of the loop, and there mixes the two: `first` is mostly products, `second`
    mostly arithmetic. The slot is where first leaves its results, known when compiling.
    """
    first(0, 0)

    @pl.loop(0, (units - 1) // 2)
    def _turn(m: Any) -> None:
        for slot in (0, 1):
            second(2 * m + slot, slot)
            first(2 * m + slot + 1, 1 - slot)

    for n in range((units - 1) // 2 * 2, units):
        if n + 1 < units:
            first(n + 1, (n + 1) % 2)
        second(n, n % 2)


def factors(plan: Plan, q_QL: jax.Array, small_8L: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """a, b and c times the scale / ln 2, float32 [Q, L]."""
    a_QL, b_QL, c_QL = ((q_QL.astype(jnp.float32) + small_8L[n : n + 1]) * (plan.scale / LN2) for n in range(3))
    return a_QL, b_QL, c_QL


def only(which: jax.Array | bool, x: jax.Array) -> jax.Array:
    """x, and 0 elsewhere."""
    return jnp.where(which, x, 0)


def other_segment(c_QL: jax.Array, small_8L: jax.Array) -> jax.Array:
    """What a key in another segment adds to the score."""
    return wide(jnp.sum(c_QL * small_8L[OTHER : OTHER + 1], axis=1, keepdims=True))


def position_scores(unit: Unit, b_QL: jax.Array, r_ref: Any, score: Any) -> Callable[[int], jax.Array]:
    """b . r of one head, [Q, 128], by number of the part of the keys; several windows use score [Q, K]."""
    plan = unit.plan
    tiles = (plan.window + plan.key_block) // LANES

    def scores(row: Any) -> Callable[[int], jax.Array]:
        def tile(t: int) -> jax.Array | None:
            return dot(b_QL, r_ref[0, unit.lanes, pl.ds(row + t * LANES, LANES)], NN) if t < tiles else None

        return moved(tile, unit, 1)

    def visit(row: Any, inside_QL: Any) -> None:
        found = scores(row)
        for t, part in enumerate(plan.parts):
            score[:, part] = jnp.where(inside_QL, found(t), score[:, part])

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

        found, db_EQ = moved(tile, unit, -1), 0.0
        for t in range((plan.window + plan.key_block) // LANES):
            there = pl.ds(row + t * LANES, LANES)
            ds_QN = found(t).astype(b_EQ.dtype)
            dr_ref[:, there] += dot(b_EQ, ds_QN, NN)
            db_EQ += dot(r_ref[:, there], ds_QN, NT)
        if inside_QL is None:
            db_ref[...] = db_EQ
        else:
            db_ref[...] += db_EQ

    if plan.one_window:
        visit(unit.row(unit.windows[0]), None)
    else:
        db_ref[...] = jnp.zeros_like(db_ref)
        unit.each_window(visit)


def wide(x_Q1: jax.Array) -> jax.Array:
    """[Q, 128]; spread once, as each time costs an instruction per register."""
    return jnp.broadcast_to(x_Q1, (len(x_Q1), LANES))


def dot(a: jax.Array, b: jax.Array, contraction: tuple[tuple[int], tuple[int]]) -> jax.Array:
    """The product in float32; float32 factors are not rounded to bfloat16."""
    precision = jax.lax.Precision.HIGHEST if b.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, (contraction, ((), ())), precision, jnp.float32)


def lanes_of(plan: Plan, h: Any) -> jax.Array:
    """Bool [1, 128]: the lanes of head h of a group."""
    lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return (lane_1L >= h * plan.head_dim) & (lane_1L < (h + 1) * plan.head_dim)


class Move:
    """Moves row q of tiles [Q, 128] by its offset e[q] in the window, modulo 128; then a select joins neighbours.

    A strided roll turns later rows by more. Offsets fall by 1 per row: to the right, it reverses the rows of each 8.
    """

    def __init__(self, unit: Unit, sign: int) -> None:
        self.unit, self.sign = unit, sign
        lane_QL = jax.lax.broadcasted_iota(jnp.int32, (unit.plan.strip, LANES), 1)
        self.to_QL = lane_QL + sign * self.ordered(unit.start_QL & LANES - 1)
        self.same_QL = self.to_QL < LANES if sign > 0 else self.to_QL >= 0

    def turn(self, x_QL: jax.Array) -> jax.Array:
        """The tile turned, its rows in the order of `ordered`."""
        unit = self.unit
        if not unit.plan.rolled:
            return jnp.take_along_axis(x_QL, self.to_QL & LANES - 1, axis=1)
        if self.sign > 0:
            return pltpu.roll(x_QL, unit.start + 1, 1, stride=1, stride_axis=0)
        x_QL, last = self.ordered(x_QL), 2 * LANES - SUBLANES - unit.start
        parts = [
            pltpu.roll(x_QL[n : n + SUBLANES], (last - n) % LANES, 1, stride=1, stride_axis=0)
            for n in range(0, len(x_QL), SUBLANES)
        ]
        return jnp.concatenate(parts, axis=0)

    def ordered(self, x_QL: jax.Array) -> jax.Array:
        """The rows in the order of the turned tiles; twice is the first order."""
        return flip(x_QL) if self.unit.plan.rolled and self.sign < 0 else x_QL


def flip(x: jax.Array) -> jax.Array:
    """Reverses the rows inside every 8 sublanes: a gather within a register. Its own inverse."""
    at = SUBLANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, x.shape[1]), 0)
    parts = [jnp.take_along_axis(x[n : n + SUBLANES], at, axis=0) for n in range(0, len(x), SUBLANES)]
    return jnp.concatenate(parts, axis=0)


def moved(tile: Callable[[int], jax.Array | None], unit: Unit, sign: int) -> Callable[[int], jax.Array]:
    """Tiles [Q, 128] side by side, of which row q is moved by its offset e[q] in the window; by number.

    Args:
      tile: the tile of a number, None for zeros.
      sign: 1: row q from column e[q] on; -1: the transpose of that, row q after e[q] zeros, rows as `Move.ordered`.

    Inside a tile `Move`; whole tiles move by selects.
    """
    plan, move = unit.plan, Move(unit, sign)
    offset_QL = unit.start_QL & (plan.window - 1)

    def select(which: jax.Array, one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
        if one is None and other is None:
            return None
        return jnp.where(which, 0.0 if one is None else one, 0.0 if other is None else other)

    @functools.cache
    def turned(t: int) -> jax.Array | None:
        x = tile(t)
        return None if x is None else move.turn(x)

    @functools.cache
    def level(n: int, t: int) -> Any:
        if n == 0:
            return select(move.same_QL, turned(t), turned(t + sign))
        far = offset_QL & LANES << (n - 1) != 0
        return select(far, level(n - 1, t + sign * 2 ** (n - 1)), level(n - 1, t))

    return functools.partial(level, (plan.window // LANES - 1).bit_length())
