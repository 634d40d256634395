"""The position term of the fused attention on TPU: scores of a unit, and the gradients of the
position keys and of b.

For key j, the query at position t needs row T - 1 - t + j of the position keys. A window is S
consecutive values of the start T - 1 - t, from a multiple of S on. A window needs S + K rows, and
the query with the start w S + e takes K of their scores from column e on (`moved`). Queries in
order have one window per strip, of S = max(strip, 128); queries at chosen positions loop over the
windows from the first to the last of the strip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.packing import NN, NT, dot
from xlnet_jax.kernels.tpu_units import LANES, SUBLANES, Unit, only


def position_scores(unit: Unit, b_QL: jax.Array, score: Any) -> Callable[[int], jax.Array]:
    """Returns b . r of one head, [Q, 128], as a function of the number of a part of the keys;
    `score` [Q, K] is scratch memory that joins several windows.
    """
    plan = unit.plan
    tiles = (plan.window + plan.key_block) // LANES

    def scores(row: Any) -> Callable[[int], jax.Array]:
        def tile(t: int) -> jax.Array | None:
            return (
                dot(b_QL, unit.inputs.r[0, unit.lanes, pl.ds(row + t * LANES, LANES)], NN)
                if t < tiles
                else None
            )

        return moved(tile, unit, 1)

    def visit(row: Any, inside_QL: Any) -> None:
        shifted = scores(row)
        for t, part in enumerate(plan.parts):
            score[:, part] = jnp.where(inside_QL, shifted(t), score[:, part])

    if plan.one_window:
        return scores(unit.row(unit.windows[0]))
    unit.each_window(visit)
    return lambda t: score[:, plan.parts[t]]


def position_gradients(
    unit: Unit, b_EQ: jax.Array, r_ref: Any, dr_ref: Any, db_ref: Any, ds_ref: Any
) -> None:
    """Adds the gradient of the position keys to dr_ref [E, N]; writes the gradient of b, [E, Q], or
    with `plan.skips` adds it.
    """
    plan = unit.plan

    def visit(row: Any, inside_QL: Any) -> None:
        def tile(t: int) -> jax.Array | None:
            if not 0 <= t < len(plan.parts):
                return None
            return (
                ds_ref[:, plan.parts[t]]
                if inside_QL is None
                else only(inside_QL, ds_ref[:, plan.parts[t]])
            )

        shifted, db_EQ = moved(tile, unit, -1), 0.0
        for t in range((plan.window + plan.key_block) // LANES):
            rows = pl.ds(row + t * LANES, LANES)
            ds_QN = shifted(t).astype(b_EQ.dtype)
            dr_ref[:, rows] += dot(b_EQ, ds_QN, NN)
            db_EQ += dot(r_ref[:, rows], ds_QN, NT)
        if plan.one_window and not plan.skips:
            db_ref[...] = db_EQ
        else:
            db_ref[...] += db_EQ

    if not plan.one_window and not plan.skips:
        db_ref[...] = jnp.zeros_like(db_ref)
    if plan.one_window:
        visit(unit.row(unit.windows[0]), None)
    else:
        unit.each_window(visit)


def moved(
    tile: Callable[[int], jax.Array | None], unit: Unit, sign: int
) -> Callable[[int], jax.Array]:
    """Moves row q of tiles [Q, 128] side by side by its offset e[q] in the window. Returns a
    function of the number of a tile.

    Args:
      tile: function of the number of a tile; None stands for zeros.
      sign: 1: row q from column e[q] on; -1: the transpose, row q after e[q] zeros. With -1 and
        offsets that fall by 1 per row, the rows inside every 8 are reversed (`flip`).

    Rows rotate inside a tile, and a select joins neighbouring tiles; selects move whole tiles.
    """
    plan = unit.plan
    backward = plan.rolled and sign < 0
    lane_QL = jax.lax.broadcasted_iota(jnp.int32, (plan.strip, LANES), 1)
    start_QL = unit.start_QL & LANES - 1
    to_QL = lane_QL + sign * (flip(start_QL) if backward else start_QL)
    same_QL = to_QL < LANES if sign > 0 else to_QL >= 0
    offset_QL = unit.start_QL & (plan.window - 1)

    def select(
        which: jax.Array, one: jax.Array | None, other: jax.Array | None
    ) -> jax.Array | None:
        if one is None and other is None:
            return None
        return jnp.where(which, 0.0 if one is None else one, 0.0 if other is None else other)

    @functools.cache
    def turned(t: int) -> jax.Array | None:
        """Returns tile t with each row rotated by its offset modulo 128."""
        x_QL = tile(t)
        if x_QL is None:
            return None
        if not plan.rolled:
            return jnp.take_along_axis(x_QL, to_QL & LANES - 1, axis=1)
        # A strided roll rotates later rows by more, but offsets fall by 1 per row: so a roll to the
        # right needs reversed rows.
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
    parts = [
        jnp.take_along_axis(x[n : n + SUBLANES], at, axis=0) for n in range(0, len(x), SUBLANES)
    ]
    return jnp.concatenate(parts, axis=0)
