"""The kernels of the fused attention on TPU: the work of one program on a block of queries, keys
and heads.

Formulas: `packing`. Units and letters: `tpu_units`. The position term: `tpu_positions`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.dropout import upscale
from xlnet_jax.kernels.packing import FAR, LN2, NN, NT, dot
from xlnet_jax.kernels.tpu_positions import flip, position_gradients, position_scores
from xlnet_jax.kernels.tpu_units import (
    LANES,
    SUBLANES,
    TpuInputs,
    TpuPlan,
    Unit,
    Units,
    lanes_of,
    only,
    wide,
)

OTHER = 3
"""Row of `TpuInputs.small` with S[1] - S[0], after content, position and segment bias. Only the
difference matters, because a term that all keys of a query share cancels in the softmax.
"""

Stage = Callable[[Any, int], Iterator[None]]
"""Stage of `pipeline`: takes the number of a unit and a slot for results, and yields between pieces
of work.
"""


class ForwardRefs(NamedTuple):
    """References to the results of `forward` and to its scratch memory."""

    o: Any
    log: Any
    """log2(sum of 2^s), [8, Q] with one row per head, FAR for queries that see nothing."""
    weight: Any
    """With `plan.saved` 2^(s - highest), negative where dropout drops it; `log` is then the log2 of
    the sum of 2^(s - highest).
    """
    columns: Any
    mask: Any
    score: Any
    vt: Any
    """The values, transposed."""
    sum: Any
    """Sums of weighted values over the blocks of keys so far, transposed."""
    highest: Any
    """Highest scores so far."""
    total: Any
    """Sums of weights so far."""


def forward(plan: TpuPlan, *references: Any) -> None:
    """Runs one program of the grid (row, lanes, queries, keys), which builds up the softmax over
    the blocks of keys that the queries visit. `references` are `TpuInputs`, then `ForwardRefs`.
    """
    inputs, refs = split(references, ForwardRefs)
    b, g, i, visit = (pl.program_id(n) for n in range(4))
    j, visited = plan.visited(inputs.seen, b, i, visit)
    units = Units(plan, inputs, refs.columns, refs.mask, (b, g, i, j), False)
    pl.when(visited)(functools.partial(add_keys, units, refs, visit))
    pl.when(visit == pl.num_programs(3) - 1)(functools.partial(write_output, plan, refs))


def add_keys(units: Units, refs: ForwardRefs, visit: Any) -> None:
    """Adds a block of keys to the softmax: the work of `forward` at visit number `visit`."""
    plan, inputs, dtype = units.plan, units.inputs, units.inputs.k.dtype
    if plan.skips:
        pl.when(visit == 0)(units.start)
    units.fill_mask()
    refs.vt[...] = inputs.v[0].T

    def first(n: Any, slot: int) -> Iterator[None]:
        unit, score = units.ready(n, slot), refs.score.at[slot]
        at = unit.h, unit.here
        scores = masked_scores(unit, score)
        highest_QL = jnp.full((plan.strip, LANES), -FAR / 2, jnp.float32)
        for t, part in enumerate(plan.parts):
            score_QK = score[:, part] = scores(t)
            highest_QL = jnp.maximum(highest_QL, score_QK)
            yield
        # Above the score of hidden keys, so that their weight is 0 even for a query that has seen
        # no key so far.
        before_QL = jnp.where(visit == 0, -FAR / 2, refs.highest[at])
        highest_QL = jnp.maximum(before_QL, wide(jnp.max(highest_QL, axis=1, keepdims=True)))
        refs.highest[at] = highest_QL
        if plan.keys > plan.key_block:
            shrink_QL = jnp.where(visit == 0, 0, jnp.exp2(before_QL - highest_QL))
            refs.total[at] = only(visit > 0, refs.total[at]) * shrink_QL
            refs.sum[unit.rows, unit.here] = (
                only(visit > 0, refs.sum[unit.rows, unit.here]) * shrink_QL.T[: plan.head_dim]
            )

    def second(n: Any, slot: int) -> Iterator[None]:
        unit, score = units(n, slot), refs.score.at[slot]
        at = unit.h, unit.here
        highest_QL, total_QL, o_EQ = refs.highest[at], 0.0, 0.0
        for part in plan.parts:
            weight_QK = jnp.exp2(score[:, part] - highest_QL)
            total_QL += weight_QK
            keep_QK = unit.kept(part)
            o_EQ += dot(refs.vt[unit.rows, part], only(keep_QK, weight_QK).astype(dtype), NT)
            if plan.saved:
                refs.weight[0, *at, part] = jnp.where(keep_QK, weight_QK, -weight_QK).astype(dtype)
        total_QL = wide(jnp.sum(total_QL, axis=1, keepdims=True))
        if plan.keys > plan.key_block:
            total_QL += refs.total[at]
            o_EQ += refs.sum[unit.rows, unit.here]
        refs.total[at] = total_QL
        refs.sum[unit.rows, unit.here] = o_EQ
        # In one piece: with more of this work beside the products the registers do not suffice.
        yield

    pipeline(plan.units, first, second)


def write_output(plan: TpuPlan, refs: ForwardRefs) -> None:
    """Writes the output and `ForwardRefs.log`, after the last block of keys."""
    heads, lane_1L = LANES // plan.head_dim, jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    for group, here in plan.each_group():
        # One lane per sum and per highest score of a head; then transposed to rows, where a query
        # costs one lane.
        both_QL = jnp.zeros((plan.query_block, LANES), jnp.float32)
        for n, ref in enumerate((refs.total, refs.highest)):
            for h in range(heads):
                both_QL = jnp.where(lane_1L == n * 4 + h, ref[group * heads + h], both_QL)
        both_8Q = both_QL.T[:SUBLANES]
        total_4Q, highest_4Q = both_8Q[:4], 0 if plan.saved else both_8Q[4:]
        refs.log[0, group, :4] = jnp.where(total_4Q == 0, FAR, highest_4Q + jnp.log2(total_4Q))
        scale_4Q = upscale(plan.rate) / jnp.where(total_4Q == 0, 1, total_4Q)
        each = [refs.sum[plan.rows(group * heads + h)] * scale_4Q[h : h + 1] for h in range(heads)]
        refs.o[0, :, here] = jnp.concatenate(each, axis=0).T.astype(refs.o.dtype)


class BackwardRefs(NamedTuple):
    """References to further inputs, to the results of `backward`, and to its scratch memory."""

    o: Any
    log: Any
    """`log` of `forward`."""
    do: Any
    weight: Any
    """`weight` of `forward`; None without `plan.saved`."""
    dq: Any
    dk: Any
    dv: Any
    dr: Any
    dsmall: Any
    columns: Any
    mask: Any
    score: Any
    """Scores, then their gradients."""
    dp: Any
    """Gradients of the probabilities after dropout."""
    kt: Any
    """The keys, transposed."""
    left: Any
    """a, b and do, transposed: left factors of products; without `plan.relative` a and do."""
    da: Any
    db: Any
    """`db`, `other`, `dr` and `dsmall` are None without `plan.relative`."""
    other: Any
    """Sums of the gradients of scores over the keys of another segment."""
    dq_sum: Any
    dk_sum: Any
    dv_sum: Any
    scaled: Any
    """With `plan.saved` do times the factor that makes a weight of `forward` a probability. The
    gradient of a score is then |weight| (x - do . o), where x is do . v for a positive weight, else
    0.
    """


def backward(plan: TpuPlan, *references: Any) -> None:
    """Runs one program of the grid (lanes, row, queries, keys), which computes all gradients in one
    pass and sums them in a fixed order. `references` are `TpuInputs`, then `BackwardRefs`.

    dq is summed over the keys, dk and dv over the queries of a row, dr and the small gradients over
    the rows too.
    """
    inputs, refs = split(references, BackwardRefs)
    g, b, i, visit = (pl.program_id(n) for n in range(4))
    blocks, visits = pl.num_programs(2), pl.num_programs(3)
    j, visited = plan.visited(inputs.seen, b, i, visit)
    first_of_row = (i == 0) & (visit == 0)

    if plan.relative:
        first_of_table = first_of_row if plan.own_tables else first_of_row & (b == 0)
        pl.when(first_of_table)(functools.partial(clear, refs.dr))
        pl.when(first_of_row & (b == 0))(functools.partial(clear, refs.dsmall))
    if plan.skips:
        pl.when(first_of_row)(functools.partial(clear, refs.dk_sum, refs.dv_sum))

    units = Units(plan, inputs, refs.columns, refs.mask, (b, g, i, j), True)
    table = inputs.table[b] if plan.relative and not plan.own_tables else 0
    pl.when(visited)(functools.partial(add_gradients, units, refs, table, visit))

    @pl.when(visit == visits - 1)
    def _finish_block() -> None:
        if plan.skips:
            add_query_gradients(plan, inputs, refs, 0)
        refs.dq[0] = refs.dq_sum[...].astype(refs.dq.dtype)

    @pl.when((i == blocks - 1) & (visit == visits - 1))
    def _finish_row() -> None:
        refs.dk[0] = refs.dk_sum[...].astype(refs.dk.dtype).T
        refs.dv[0] = (refs.dv_sum[...] * (1 / LN2)).astype(refs.dv.dtype).T


def clear(*refs: Any) -> None:
    """Sets all elements of arrays to 0; skips None."""
    for ref in refs:
        if ref is not None:
            ref[...] = jnp.zeros_like(ref)


def add_gradients(units: Units, refs: BackwardRefs, table: Any, visit: Any) -> None:
    """Adds the gradients from a block of keys: the work of `backward` at visit number `visit`.
    `table` is the index of the row's table of position keys.
    """
    plan, inputs = units.plan, units.inputs
    refs.kt[...] = inputs.k[0].T
    if plan.skips:

        @pl.when(visit == 0)
        def _start_block() -> None:
            units.start()
            load_left_factors(plan, inputs, refs)
            clear(refs.da, refs.db, refs.other)
    else:
        load_left_factors(plan, inputs, refs)
    if not plan.saved:
        units.fill_mask()
    do_ref = refs.scaled if plan.saved else refs.do.at[0]

    def first(n: Any, slot: int) -> Iterator[None]:
        unit, score, dp = units.ready(n, slot), refs.score.at[slot], refs.dp.at[slot]
        do_QL = only(unit.lane_1L, do_ref[unit.here, unit.lanes].astype(jnp.float32))
        do_QL = do_QL.astype(inputs.k.dtype)
        scores = None if plan.saved else masked_scores(unit, score)
        for t, part in enumerate(plan.parts):
            if scores:
                score[:, part] = scores(t)
            dp[:, part] = dot(do_QL, inputs.v[0, part, unit.lanes], NT)
            yield

    pipeline(plan.units, first, functools.partial(unit_gradients, units, refs, do_ref, table))
    if not plan.skips:
        add_query_gradients(plan, inputs, refs, visit)


def load_left_factors(plan: TpuPlan, inputs: TpuInputs, refs: BackwardRefs) -> None:
    """Writes `left` and `scaled` of `BackwardRefs`."""
    dtype = inputs.k.dtype
    for group, here in plan.each_group():
        a_QL, *b_QL = factors(plan, inputs.q[0, :, here], small_rows(inputs, here))[:2]
        do_QL = refs.do[0, :, here]
        if plan.saved:
            scale_Q8 = jnp.exp2(math.log2(upscale(plan.rate) * LN2) - refs.log[0, group]).T
            scale_QL = 0.0
            for n in range(LANES // plan.head_dim):
                scale_QL = jnp.where(lanes_of(plan, n), scale_Q8[:, n : n + 1], scale_QL)
            do_QL = refs.scaled[:, here] = (do_QL.astype(jnp.float32) * scale_QL).astype(dtype)
        if plan.rolled:
            b_QL = map(flip, b_QL)
        for n, x_QL in enumerate((a_QL, *b_QL, do_QL)):
            refs.left[n, here] = x_QL.astype(dtype).T


def unit_gradients(
    units: Units, refs: BackwardRefs, do_ref: Any, table: Any, n: Any, slot: int
) -> Iterator[None]:
    """Adds the gradients of a unit: the second stage of `backward`. `table` is the index of the
    row's table of position keys.
    """
    unit, score, dp = units(n, slot), refs.score.at[slot], refs.dp.at[slot]
    plan, (_, _, i, _), rows, here = units.plan, units.program, unit.rows, unit.here
    factor, dtype = upscale(plan.rate), units.inputs.k.dtype
    do_QL, o_QL = (
        x.astype(jnp.float32) for x in (do_ref[here, unit.lanes], refs.o[0, here, unit.lanes])
    )
    weighted_QL = do_QL * o_QL
    delta_QL = wide(jnp.sum(only(unit.lane_1L, weighted_QL), axis=1, keepdims=True)) / factor
    probabilities = (
        saved_probabilities(unit, refs.weight)
        if plan.saved
        else computed_probabilities(unit, score, refs.log)
    )
    # The first strip of a row; with `plan.skips` it does not visit all keys, so `backward` starts
    # their sums.
    fresh = (i == 0) & (n < plan.heads)
    da_EQ, ds_other_QL = 0.0, jnp.zeros_like(delta_QL)
    for part in plan.parts:
        keys = rows, pl.ds(pl.multiple_of(unit.first_key + part.start, LANES), LANES)
        p_QK, kept_QK, keep_QK = probabilities(part)
        ds_QK = p_QK * (only(keep_QK, dp[:, part]) - delta_QL)
        rounded_QK = ds_QK.astype(dtype)
        dv_EL = dot(refs.left[1 + plan.relative, rows, here], kept_QK.astype(dtype), NN)
        dk_EL = dot(refs.left[0, rows, here], rounded_QK, NN)
        for sum_ref, gradient_EL in ((refs.dv_sum, dv_EL), (refs.dk_sum, dk_EL)):
            before_EL = sum_ref[keys]
            before_EL = before_EL if plan.skips else jnp.where(fresh, 0, before_EL)
            sum_ref[keys] = before_EL + gradient_EL
        da_EQ += dot(refs.kt[rows, part], rounded_QK, NT)
        if plan.relative:
            ds_other_QL += only(unit.other(part), ds_QK)
            score[:, part] = ds_QK
        yield
    if plan.skips:  # `backward` adds the sums over all blocks of keys to the gradients.
        da_EQ += refs.da[rows, here]
        if plan.relative:
            ds_other_QL += refs.other[unit.h, here]
    refs.da[rows, here] = da_EQ
    if not plan.relative:
        return
    refs.other[unit.h, here] = ds_other_QL
    position_gradients(
        unit,
        refs.left[1, rows, here],
        units.inputs.r.at[0, rows],
        refs.dr.at[table, rows],
        refs.db.at[rows, here],
        score,
    )


def add_query_gradients(plan: TpuPlan, inputs: TpuInputs, refs: BackwardRefs, visit: Any) -> None:
    """Adds the units' gradients of a, b and c to the gradients of queries and small inputs."""
    for group, here in plan.each_group():
        if not plan.relative:
            dq_QL = refs.da[here].T * (plan.scale / LN2)
            refs.dq_sum[:, here] = only(visit > 0, refs.dq_sum[:, here]) + dq_QL
            continue
        small_8L = inputs.small[:, here]
        c_QL = factors(plan, inputs.q[0, :, here], small_8L)[2]
        ds_other_QL = jnp.zeros_like(c_QL)
        for n in range(LANES // plan.head_dim):
            ds_other_Q1 = jnp.sum(
                refs.other[group * LANES // plan.head_dim + n], axis=1, keepdims=True
            )
            ds_other_QL = jnp.where(lanes_of(plan, n), ds_other_Q1, ds_other_QL)
        db_QL = flip(refs.db[here].T) if plan.rolled else refs.db[here].T
        parts = [
            x * (plan.scale / LN2)
            for x in (refs.da[here].T, db_QL, ds_other_QL * small_8L[OTHER : OTHER + 1])
        ]
        refs.dq_sum[:, here] = only(visit > 0, refs.dq_sum[:, here]) + sum(parts)
        sums = [jnp.sum(x, axis=0, keepdims=True) for x in (*parts, ds_other_QL * c_QL)]
        zeros_4L = jnp.zeros((SUBLANES - len(sums), LANES), jnp.float32)
        refs.dsmall[:, here] += jnp.concatenate([*sums, zeros_4L], axis=0)


def split(references: tuple[Any, ...], others: Callable[..., Any]) -> tuple[TpuInputs, Any]:
    """Names the references of a kernel: the inputs, and the `others`."""
    inputs = len(TpuInputs._fields)
    return TpuInputs(*references[:inputs]), others(*references[inputs:])


def masked_scores(unit: Unit, score: Any) -> Callable[[int], jax.Array]:
    """Returns the scores of one head, [Q, 128], as a function of the number of a part of the keys;
    `score` as in `position_scores`.
    """
    plan, inputs, dtype = unit.plan, unit.inputs, unit.inputs.k.dtype
    small_8L = small_rows(inputs, unit.lanes)
    a_QL, *others = (
        only(unit.lane_1L, x) for x in factors(plan, inputs.q[0, unit.here, unit.lanes], small_8L)
    )
    a_QL, relative = a_QL.astype(dtype), None
    if plan.relative:
        b_QL, c_QL = others
        # A key in another segment adds this to the score.
        other_QL = wide(jnp.sum(c_QL * small_8L[OTHER : OTHER + 1], axis=1, keepdims=True))
        relative = position_scores(unit, b_QL.astype(dtype), score), other_QL

    def content(part: slice) -> jax.Array:
        return dot(a_QL, inputs.k[0, part, unit.lanes], NT)

    def scores(t: int) -> jax.Array:
        part = plan.parts[t]
        if relative is None:
            return content(part) + unit.mask_ref[:, part]
        position, other_QL = relative
        score_QK = position(t) + content(part) + only(unit.other(part), other_QL)
        return jnp.where(unit.visible(part), score_QK, -FAR)

    return scores


Probabilities = Callable[[slice], tuple[jax.Array, jax.Array, jax.Array | bool]]
"""Function of a part of the keys that returns, [Q, 128] each: the probabilities, the probabilities
with 0 where dropout drops them, and where dropout keeps them.
"""


def computed_probabilities(unit: Unit, score: Any, log_ref: Any) -> Probabilities:
    """Computes probabilities from the scores, times ln 2 and dropout's factor."""
    on_8 = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0) == unit.h % (
        LANES // unit.plan.head_dim
    )
    log_1Q = jnp.sum(only(on_8, log_ref[0, unit.group, :, unit.here]), axis=0, keepdims=True)
    log_QL = wide(jnp.broadcast_to(log_1Q, (SUBLANES, unit.plan.strip)).T[:, :1]) - math.log2(
        upscale(unit.plan.rate) * LN2
    )

    def compute(part: slice) -> tuple[jax.Array, jax.Array, jax.Array | bool]:
        p_QK, keep_QK = jnp.exp2(score[:, part] - log_QL), unit.kept(part)
        return p_QK, only(keep_QK, p_QK), keep_QK

    return compute


def saved_probabilities(unit: Unit, weight_ref: Any) -> Probabilities:
    """Reads probabilities from the weights of the forward pass, without the factor of each query,
    which is in `BackwardRefs.scaled`.
    """

    def read(part: slice) -> tuple[jax.Array, jax.Array, jax.Array]:
        weight_QK = weight_ref[0, unit.h, unit.here, part].astype(jnp.float32)
        return jnp.abs(weight_QK), jnp.maximum(weight_QK, 0), weight_QK > 0

    return read


def pipeline(units: int, first: Stage, second: Stage) -> None:
    """Runs first(unit, slot), then second(unit, slot), for all units in order: `second` of a unit
    beside `first` of the next unit.

    The compiler overlaps only operations of one turn of the loop that are near in the program.
    `first` is mostly products, `second` mostly arithmetic, so the two alternate at each yield.
    `first` leaves its results in the slot, a number known at compile time.
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


def small_rows(inputs: TpuInputs, lanes: Any) -> Any:
    """Returns the lanes of `TpuInputs.small`; None without it."""
    return None if inputs.small is None else inputs.small[:, lanes]


def factors(plan: TpuPlan, q_QL: jax.Array, small_8L: jax.Array | None) -> list[jax.Array]:
    """Returns a, b and c times scale / ln 2, float32 [Q, L]; without position keys only a = q."""
    factor = plan.scale / LN2
    if small_8L is None:
        return [q_QL.astype(jnp.float32) * factor]
    return [(q_QL.astype(jnp.float32) + small_8L[n : n + 1]) * factor for n in range(3)]
