"""The bodies of the fused attention on GPU: what one program does for one row of the batch and one head.

Formulas: `packing`. Scores are computed in tiles of Q queries and S keys, on Triton. Four kernels: the output; the
gradients of a, b and c; those of the keys and values; those of the position keys. The last three compute the scores
again, each in its own order, so that a program owns what it sums: no atomics, and two runs give equal bits.

The position term. A query with the start s = T - 1 - t meets key j at row s + j of the position keys. With the window
w = s // S and e = s % S, the tile of key block j needs the row blocks w + j and w + j + 1. Their products with b become
the scores of the tile in two moves: column m is taken of the first product where m >= e, and of the second elsewhere;
then the columns of every query turn by its e (`turn`). Queries in order have one window per block of queries; queries
at chosen positions visit the windows from the first to the last of their block.

Scores are in units of ln 2, so that the exponential is a power of 2: a, b and c come with the scale / ln 2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir

from xlnet_jax.kernels import packing
from xlnet_jax.kernels.dropout import keep, upscale
from xlnet_jax.kernels.packing import FAR, LN2

NT, NN, TN = ((1,), (1,)), ((1,), (0,)), ((0,), (0,))
"""Contractions of two matrices: a b', a b and a' b."""

take_p = Primitive("xlnet_take")
"""x[q, index[q, m]]. In interpret mode it is `take_along_axis`; for Triton see `lower_take`."""
take_p.def_abstract_eval(lambda x, index: ShapedArray(index.shape, x.dtype))
mlir.register_lowering(
    take_p, mlir.lower_fun(lambda x, index: jnp.take_along_axis(x, index, axis=1), multiple_results=False)
)


@functools.cache
def lower_take() -> None:
    """Makes `take_p` Triton's gather; before the first compilation for a GPU.

    Private (checked with JAX 0.10.2 and 0.12.0): Pallas has no public name for a gather, nor for a lowering to Triton.
    """
    from jax._src.lib import triton
    from jax._src.pallas.triton import lowering

    lowering.register_lowering(take_p)(lambda _, x, index: triton.dialect.gather(x, index, axis=1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(packing.Call):
    """The static facts of a call, after padding.

    `queries` and `tile` are powers of 2, `queries` at most `tile`; T and K are multiples of `tile`.
    """

    queries: int
    """Q: in a block."""
    tile: int
    """S: keys in a block, positions in a window."""
    interpret: bool
    """Runs as plain JAX, on any device."""

    def dot(self, a: jax.Array, b: jax.Array, contraction: tuple[tuple[int], tuple[int]]) -> jax.Array:
        """The product in float32. Float32 factors are split into three of TF32: a few roundoffs more."""
        exact = jax.lax.Precision.HIGHEST if self.interpret else jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
        precision = exact if b.dtype == jnp.float32 else None
        return jax.lax.dot_general(a, b, (contraction, ((), ())), precision, jnp.float32)

    @property
    def key_blocks(self) -> int:
        """Number of tiles over the keys."""
        return self.keys // self.tile

    @property
    def windows(self) -> int:
        """Number of windows over the positions."""
        return self.positions // self.tile


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The references that all kernels read: whole arrays."""

    table_B: Any
    """Number of the row's position keys."""
    word_BH: Any
    """uint32: word of dropout after row and head."""
    queries_B3Q: Any
    """Limit, segment, start."""
    keys_B2K: Any
    """Rank, segment."""
    a_BQHE: Any
    """With the scale / ln 2, as b and `other`."""
    b_BQHE: Any
    other_BHQ: Any
    """What a key in another segment adds to the score, more than one in the same: c . (S[1] - S[0]). Only the
    difference matters, because what all keys of a query have in common cancels in the softmax."""
    k_BKHE: Any
    v_BKHE: Any
    r_SNHE: Any


class Queries:
    """One block of queries of one row and head, loaded. Letters: Q queries, S columns of a tile, E head width."""

    def __init__(self, plan: Plan, inputs: Inputs, b: Any, h: Any, i: Any) -> None:
        self.plan, self.inputs, self.b, self.h = plan, inputs, b, h
        here = self.here = pl.ds(i * plan.queries, plan.queries)
        self.a_QE, self.b_QE = inputs.a_BQHE[b, here, h, :], inputs.b_BQHE[b, here, h, :]
        self.other_Q1 = inputs.other_BHQ[b, h, here][:, None]
        self.limit_Q1, self.segment_Q1, start_Q1 = (inputs.queries_B3Q[b, n, here][:, None] for n in range(3))
        self.at_Q1 = plan.positions - 1 - start_Q1
        shift = plan.tile.bit_length() - 1
        self.window_Q1, self.e_Q1 = start_Q1 >> shift, start_Q1 & plan.tile - 1
        if plan.chosen:
            self.first, self.last = jnp.min(self.window_Q1), jnp.max(self.window_Q1)
        else:
            self.first = self.last = plan.windows - 1 - i * plan.queries // plan.tile
        self.column_1S = jnp.arange(plan.tile)[None]
        self.is_first_QS = self.column_1S >= self.e_Q1

    def by_row(self, n: Any) -> jax.Array:
        """b . r of one block of rows of the position keys, [Q, S]."""
        return self.plan.dot(self.b_QE, self.rows(n), NT)

    def rows(self, n: Any) -> jax.Array:
        """One block of rows of the position keys, [S, E]."""
        inputs = self.inputs
        table = self.b if self.plan.own_tables else inputs.table_B[self.b]
        return inputs.r_SNHE[table, pl.ds(n * self.plan.tile, self.plan.tile), self.h, :].astype(self.b_QE.dtype)

    def keys(self, j: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Of one block: the number, the rank and the segment of each key, [1, S], and the keys [S, E]."""
        keys = pl.ds(j * self.plan.tile, self.plan.tile)
        rank_1S, segment_1S = (self.inputs.keys_B2K[self.b, n, keys][None] for n in range(2))
        return j * self.plan.tile + self.column_1S, rank_1S, segment_1S, self.inputs.k_BKHE[self.b, keys, self.h, :]

    def values(self, j: Any) -> jax.Array:
        """The values of one block of keys, [S, E]."""
        return self.inputs.v_BKHE[self.b, pl.ds(j * self.plan.tile, self.plan.tile), self.h, :]

    def turn(self, x_QS: jax.Array, sign: int) -> jax.Array:
        """Column m of query q is the column (m + sign e) mod S of x."""
        return take_p.bind(x_QS, (self.column_1S + sign * self.e_Q1) & self.plan.tile - 1)

    def each_window(self, visit: Callable[[Any, Any], Any], start: Any) -> Any:
        """visit(window, carry) of all windows of the block."""
        if not self.plan.chosen:
            return visit(self.first, start)
        return jax.lax.fori_loop(self.first, self.last + 1, visit, start)

    def position_scores(self, j: Any) -> jax.Array:
        """b . r of a tile."""

        def visit(w: Any, sum_QS: jax.Array) -> jax.Array:
            both_QS = jnp.where(self.is_first_QS, self.by_row(w + j), self.by_row(w + j + 1))
            return jnp.where(self.window_Q1 == w, both_QS, sum_QS) if self.plan.chosen else both_QS

        return self.turn(self.each_window(visit, jnp.zeros(self.is_first_QS.shape, jnp.float32)), 1)

    def scores(self, sum_QS: jax.Array, number: jax.Array, rank: jax.Array, segment: jax.Array) -> jax.Array:
        """The scores of the sums of a . k and b . r, -FAR where hidden; the keys' integers are [1, S] or [Q, S]."""
        visible_QS = rank < self.limit_Q1
        if self.plan.farthest is not None:
            visible_QS &= self.at_Q1 - number <= self.plan.farthest
        score_QS = sum_QS + jnp.where(segment == self.segment_Q1, 0.0, self.other_Q1)
        return jnp.where(visible_QS, score_QS, -FAR)

    def dropped(self, x_QS: jax.Array, number: jax.Array) -> jax.Array:
        """x with dropout, without its factor."""
        if not self.plan.rate:
            return x_QS
        return jnp.where(keep(self.plan.rate, self.inputs.word_BH[self.b, self.h], self.at_Q1, number), x_QS, 0.0)


class Gradients:
    """What the three kernels of the gradient have in common, for one block of queries."""

    def __init__(self, queries: Queries, do_BQHE: Any, log_BHQ: Any, delta_BHQ: Any) -> None:
        b, h, here = queries.b, queries.h, queries.here
        self.queries, self.do_QE = queries, do_BQHE[b, here, h, :]
        self.log_Q1, self.delta_Q1 = log_BHQ[b, h, here][:, None], delta_BHQ[b, h, here][:, None]

    def __call__(self, score_QS: jax.Array, dp_QS: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The probabilities, and the gradient of the scores / ln 2."""
        p_QS = jnp.exp2(score_QS - self.log_Q1)
        dp_QS = self.queries.dropped(dp_QS * upscale(self.queries.plan.rate), number)
        return p_QS, p_QS * (dp_QS - self.delta_Q1)


def forward(plan: Plan, *refs: Any) -> None:
    """The output of one block of queries, and the logarithm of their sums of exponentials."""
    *inputs, o_BQHE, log_BHQ = refs
    i, h, b = (pl.program_id(n) for n in range(3))
    queries = Queries(plan, Inputs(*inputs), b, h, i)
    Q, E = queries.a_QE.shape

    def visit(j: Any, carry: Any) -> Any:
        highest_Q, total_Q, o_QE = carry
        *integers, k_SE = queries.keys(j)
        score_QS = queries.scores(queries.position_scores(j) + plan.dot(queries.a_QE, k_SE, NT), *integers)
        new_Q = jnp.maximum(highest_Q, jnp.max(score_QS, axis=1))
        p_QS, shrink_Q = jnp.exp2(score_QS - new_Q[:, None]), jnp.exp2(highest_Q - new_Q)
        v_SE = queries.values(j)
        o_QE = o_QE * shrink_Q[:, None] + plan.dot(queries.dropped(p_QS, integers[0]).astype(v_SE.dtype), v_SE, NN)
        return new_Q, total_Q * shrink_Q + jnp.sum(p_QS, axis=1), o_QE

    # Above -FAR: so a query that sees nothing has the total 0.
    start = jnp.full(Q, -FAR / 2, jnp.float32), jnp.zeros(Q, jnp.float32), jnp.zeros((Q, E), jnp.float32)
    highest_Q, total_Q, o_QE = jax.lax.fori_loop(0, plan.key_blocks, visit, start)
    blind_Q = total_Q == 0
    total_Q = jnp.where(blind_Q, 1.0, total_Q)
    o_BQHE[b, queries.here, h, :] = (o_QE * (upscale(plan.rate) / total_Q)[:, None]).astype(o_BQHE.dtype)
    log_BHQ[b, h, queries.here] = jnp.where(blind_Q, 0.0, highest_Q + jnp.log(total_Q) / LN2)


def backward_queries(plan: Plan, *refs: Any) -> None:
    """The gradients of a, b and `other` of one block of queries."""
    *inputs, do_BQHE, log_BHQ, delta_BHQ, da_BQHE, db_BQHE, dother_BHQ = refs
    i, h, b = (pl.program_id(n) for n in range(3))
    queries = Queries(plan, Inputs(*inputs), b, h, i)
    gradients = Gradients(queries, do_BQHE, log_BHQ, delta_BHQ)

    def visit(j: Any, carry: Any) -> Any:
        da_QE, db_QE, dother_Q = carry
        *integers, k_SE = queries.keys(j)
        score_QS = queries.scores(queries.position_scores(j) + plan.dot(queries.a_QE, k_SE, NT), *integers)
        _, ds_QS = gradients(score_QS, plan.dot(gradients.do_QE, queries.values(j), NT), integers[0])
        dother_Q += jnp.sum(jnp.where(integers[2] == queries.segment_Q1, 0.0, ds_QS), axis=1)
        da_QE += plan.dot(ds_QS.astype(k_SE.dtype), k_SE, NN)
        ds_QS = queries.turn(ds_QS, -1).astype(k_SE.dtype)

        def window(w: Any, db_QE: jax.Array) -> jax.Array:
            window_QS = jnp.where(queries.window_Q1 == w, ds_QS, 0) if plan.chosen else ds_QS
            db_QE += plan.dot(jnp.where(queries.is_first_QS, window_QS, 0), queries.rows(w + j), NN)
            return db_QE + plan.dot(jnp.where(queries.is_first_QS, 0, window_QS), queries.rows(w + j + 1), NN)

        return da_QE, queries.each_window(window, db_QE), dother_Q

    zeros_QE = jnp.zeros(queries.a_QE.shape, jnp.float32)
    start = zeros_QE, zeros_QE, jnp.zeros(plan.queries, jnp.float32)
    da_QE, db_QE, dother_Q = jax.lax.fori_loop(0, plan.key_blocks, visit, start)
    da_BQHE[b, queries.here, h, :] = (da_QE * LN2).astype(da_BQHE.dtype)
    db_BQHE[b, queries.here, h, :] = (db_QE * LN2).astype(db_BQHE.dtype)
    dother_BHQ[b, h, queries.here] = dother_Q * LN2


def backward_keys(plan: Plan, *refs: Any) -> None:
    """The gradients of one block of keys and values."""
    *inputs, do_BQHE, log_BHQ, delta_BHQ, dk_BKHE, dv_BKHE = refs
    j, h, b = (pl.program_id(n) for n in range(3))
    inputs = Inputs(*inputs)

    def visit(i: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dk_SE, dv_SE = carry
        queries = Queries(plan, inputs, b, h, i)
        gradients = Gradients(queries, do_BQHE, log_BHQ, delta_BHQ)
        *integers, k_SE = queries.keys(j)
        score_QS = queries.scores(queries.position_scores(j) + plan.dot(queries.a_QE, k_SE, NT), *integers)
        do_QE = gradients.do_QE
        p_QS, ds_QS = gradients(score_QS, plan.dot(do_QE, queries.values(j), NT), integers[0])
        dv_SE += plan.dot(queries.dropped(p_QS, integers[0]).astype(do_QE.dtype), do_QE, TN)
        return dk_SE + plan.dot(ds_QS.astype(do_QE.dtype), queries.a_QE, TN), dv_SE

    zeros_SE = jnp.zeros((plan.tile, dk_BKHE.shape[-1]), jnp.float32)
    blocks = inputs.a_BQHE.shape[1] // plan.queries
    dk_SE, dv_SE = jax.lax.fori_loop(0, blocks, visit, (zeros_SE, zeros_SE))
    keys = pl.ds(j * plan.tile, plan.tile)
    dk_BKHE[b, keys, h, :] = (dk_SE * LN2).astype(dk_BKHE.dtype)
    dv_BKHE[b, keys, h, :] = (dv_SE * upscale(plan.rate)).astype(dv_BKHE.dtype)


def backward_rows(plan: Plan, *refs: Any) -> None:
    """The gradient of one block n of rows of a table of position keys, from all rows of the batch that use it.

    The query with the window w and the offset e meets these rows in the key blocks n - w, columns below S - e, and
    n - w - 1, the other columns. So a tile is made of two blocks of keys, and one product with r has all its scores.
    """
    *inputs, do_BQHE, log_BHQ, delta_BHQ, dr_SNHE = refs
    n, h, table = (pl.program_id(axis) for axis in range(3))
    inputs = Inputs(*inputs)
    B, Qp = inputs.a_BQHE.shape[:2]
    blocks, per_window = Qp // plan.queries, plan.tile // plan.queries

    def tile(queries: Queries, w: Any, dr_SE: jax.Array, gradients: Gradients) -> jax.Array:
        is_first_QS = queries.column_1S < plan.tile - queries.e_Q1

        def both(block: Any) -> list[jax.Array]:
            """Numbers, ranks, segments, and the products with the keys and the values."""
            inside = jnp.clip(block, 0, plan.key_blocks - 1)
            number_1S, rank_1S, segment_1S, k_SE = queries.keys(inside)
            rank_1S = jnp.where(inside == block, rank_1S, jnp.iinfo(jnp.int32).max)
            products = plan.dot(queries.a_QE, k_SE, NT), plan.dot(gradients.do_QE, queries.values(inside), NT)
            return [number_1S, rank_1S, segment_1S, *products]

        number_QS, rank_QS, segment_QS, sum_QS, dp_QS = (
            jnp.where(is_first_QS, x, y) for x, y in zip(both(n - w), both(n - w - 1), strict=True)
        )
        sum_QS += queries.turn(queries.by_row(n), 1)
        score_QS = queries.scores(sum_QS, number_QS, rank_QS, segment_QS)
        score_QS = jnp.where(queries.window_Q1 == w, score_QS, -FAR)
        _, ds_QS = gradients(score_QS, dp_QS, number_QS)
        return dr_SE + plan.dot(queries.turn(ds_QS, -1).astype(queries.b_QE.dtype), queries.b_QE, TN)

    def row(b: Any, dr_SE: jax.Array) -> jax.Array:
        def block(i: Any, dr_SE: jax.Array) -> jax.Array:
            queries = Queries(plan, inputs, b, h, i)
            gradients = Gradients(queries, do_BQHE, log_BHQ, delta_BHQ)
            if not plan.chosen:
                return tile(queries, queries.first, dr_SE, gradients)
            first, last = jnp.maximum(queries.first, n - plan.key_blocks), jnp.minimum(queries.last, n)
            return jax.lax.fori_loop(first, last + 1, lambda w, dr_SE: tile(queries, w, dr_SE, gradients), dr_SE)

        first, end = jnp.int32(0), jnp.int32(blocks)
        if not plan.chosen:  # The blocks whose window w has n - key_blocks <= w <= n.
            first = jnp.clip((plan.windows - 1 - n) * per_window, 0, blocks)
            end = jnp.clip((plan.windows - n + plan.key_blocks) * per_window, 0, blocks)
        if not plan.own_tables:
            end = jnp.where(inputs.table_B[b] == table, end, first)
        return jax.lax.fori_loop(first, end, block, dr_SE)

    dr_SE = jnp.zeros((plan.tile, dr_SNHE.shape[-1]), jnp.float32)
    dr_SE = row(table, dr_SE) if plan.own_tables else jax.lax.fori_loop(0, B, row, dr_SE)
    dr_SNHE[table, pl.ds(n * plan.tile, plan.tile), h, :] = dr_SE * LN2
