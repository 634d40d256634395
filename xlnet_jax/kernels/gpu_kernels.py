"""The kernels of the fused attention on GPU: the work of a program on one row of the batch and one
head.

Formulas: `packing`. Scores are computed in tiles of Q queries and S keys. The first kernel computes
the output; the second the gradients of a, b, c and of the position keys; the third the gradients of
the keys and values. The last two compute the scores again, each in its own order, so that only one
program adds to each sum: no atomics, and two runs give equal bits. Each program has its own part of
the gradient of the position keys in global memory; `gpu` adds up these parts.

The position term. For key j, a query with the start s = T - 1 - t needs row s + j of the position
keys. With the window w = s // S and e = s % S, the tile of key block j needs the row blocks w + j
and w + j + 1. Their products with b become the scores of the tile in two steps: column m is taken
from the first product where m >= e, and from the second elsewhere; then the columns of every query
rotate by its e (`turn`). Queries in order have one window per block of queries; queries at chosen
positions loop over the windows from the first to the last of their block. The gradients of the
scores rotate back; then column m belongs to the row block w + j where m >= e, and to the next block
elsewhere.

Scores are in units of ln 2, so that the exponential is a power of 2: a, b and c come with the scale
/ ln 2.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels import packing
from xlnet_jax.kernels.dropout import advance, keep, upscale
from xlnet_jax.kernels.gpu_triton import Triton
from xlnet_jax.kernels.packing import FAR, LN2, NN, NT, TN


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuPlan(packing.Plan, Triton):
    """Static sizes and options of a call, after padding.

    `queries` and `tile` are powers of 2, `queries` at most `tile`; T and K are multiples of `tile`.
    """

    queries: int
    """Q: queries in a block."""
    tile: int
    """S: keys in a block, positions in a window."""
    programs: int
    """Least number of programs that compute the gradient of the queries."""

    @property
    def unit(self) -> float:
        """Unit of the gradients of scores that `Gradients.tile` returns."""
        return LN2 * upscale(self.rate)

    @property
    def key_blocks(self) -> int:
        """Number of tiles over the keys."""
        return self.keys // self.tile

    @property
    def windows(self) -> int:
        """Number of windows over the positions."""
        return self.positions // self.tile

    def visits(self, seen: Any, b: Any, n: Any, blocks: int) -> tuple[Any, Any]:
        """Returns the bounds of a loop over the blocks that block n sees, out of `blocks`; `seen`:
        `GpuInputs.seen_keys` or `seen_queries`.
        """
        return (seen[0][b, n], seen[1][b, n] + 1) if self.skips else (0, blocks)


class GpuInputs(NamedTuple):
    """References to whole arrays, which all kernels read. Without the position and the segment
    term `table_B`, `b_BQHE`, `other_BHQ` and `r_SNHE` are None.
    """

    table_B: Any
    """Index of each row's table of position keys."""
    word_BH: Any
    """uint32: dropout's hash word after row and head; with documents the number of the head."""
    queries_BNQ: Any
    """Limit, segment, start; with documents also dropout's hash word after the document, the floor,
    and the position in the document. With a window the position in `xla.NearKeys` is in place of
    the segment.
    """
    keys_BNK: Any
    """Rank, segment; with documents also the position in the document. With a window as above."""
    size_1: Any
    """`xla.NearKeys.size`; None without a window."""
    seen_keys: Any
    """With documents or a window the first and the last block of keys that each block of queries
    sees.
    """
    seen_queries: Any
    """With documents or a window the first and the last block of queries that see each block of
    keys.
    """
    a_BQHE: Any
    """a times scale / ln 2; b and `other` have the same factor."""
    b_BQHE: Any
    other_BHQ: Any
    """c . (S[1] - S[0]), added to the scores of keys in another segment. Only S[1] - S[0] matters,
    because a term that all keys of a query share cancels in the softmax.
    """
    k_BKHE: Any
    v_BKHE: Any
    r_SNHE: Any


class Tile(NamedTuple):
    """A block of queries with a block of keys."""

    score_QS: jax.Array
    """-FAR where a query does not see a key."""
    number_1S: jax.Array
    """Dropout's index of the keys: their numbers, or their positions in their documents."""
    segment_1S: jax.Array
    k_SE: jax.Array
    r_SE: Any
    """The first block of position keys; None without the position term."""


class Queries:
    """One block of queries of one row and head, loaded. Letters: Q queries, S columns of a tile, E
    head width.

    `stays`: the program keeps the block while it loops over keys.
    """

    def __init__(
        self, plan: GpuPlan, inputs: GpuInputs, b: Any, h: Any, i: Any, *, stays: bool = True
    ) -> None:
        self.plan, self.inputs, self.b, self.h, self.i = plan, inputs, b, h, i
        here = self.here = pl.ds(i * plan.queries, plan.queries)
        self.a_QE = inputs.a_BQHE[b, here, h, :]
        if plan.relative:
            self.b_QE = inputs.b_BQHE[b, here, h, :]
            self.other_Q1 = inputs.other_BHQ[b, h, here][:, None]
        self.limit_Q1, self.segment_Q1, start_Q1, *of_documents = (
            inputs.queries_BNQ[b, n, here][:, None] for n in range(6 if plan.packed else 3)
        )
        if plan.packed:
            word_Q1, self.floor_Q1, place_Q1 = of_documents
            self.word_Q1 = advance(word_Q1.astype(jnp.uint32), inputs.word_BH[b, h], place_Q1)
        if plan.near:
            at_Q1, size = self.segment_Q1, inputs.size_1[0]
            self.nearest_Q1, self.farthest_Q1 = at_Q1 - size, at_Q1 + size
        if stays and not plan.chosen:  # The same values without a register per query.
            start_Q1 = plan.positions - 1 - i * plan.queries - jnp.arange(plan.queries)[:, None]
        self.at_Q1 = plan.positions - 1 - start_Q1
        if plan.relative:
            self.set_windows(start_Q1)

    def set_windows(self, start_Q1: jax.Array) -> None:
        """Sets the windows of the position term."""
        plan, shift = self.plan, self.plan.tile.bit_length() - 1
        self.window_Q1, self.e_Q1 = start_Q1 >> shift, start_Q1 & plan.tile - 1
        if plan.chosen:
            self.first, self.last = jnp.min(self.window_Q1), jnp.max(self.window_Q1)
        else:
            self.first = self.last = plan.windows - 1 - self.i * plan.queries // plan.tile
        window = self.window_Q1 if plan.chosen else self.first
        self.offset_QS = jnp.where(jnp.arange(plan.tile)[None] >= self.e_Q1, window, window + 1)

    def rows(self, n: Any) -> jax.Array:
        """Reads one block of rows of the position keys, [S, E]."""
        inputs = self.inputs
        table = self.b if self.plan.own_tables else inputs.table_B[self.b]
        return inputs.r_SNHE[table, pl.ds(n * self.plan.tile, self.plan.tile), self.h, :].astype(
            self.b_QE.dtype
        )

    def tile(self, j: Any, log_Q1: jax.Array | float = 0.0) -> Tile:
        """Computes the tile of one block of keys; `log_Q1` is subtracted from its scores."""
        plan, keys = self.plan, pl.ds(j * self.plan.tile, self.plan.tile)
        rank_1S, segment_1S = (self.inputs.keys_BNK[self.b, n, keys][None] for n in range(2))
        number_1S = j * plan.tile + jnp.arange(plan.tile)[None]
        k_SE = self.inputs.k_BKHE[self.b, keys, self.h, :]
        r_SE = self.rows(self.first + j) if plan.relative else None
        position_QS = None if r_SE is None else self.position_scores(j, r_SE)
        score_QS = plan.dot(self.a_QE, k_SE, NT)
        if position_QS is not None:
            score_QS = position_QS + score_QS
        visible_QS = rank_1S < self.limit_Q1
        if plan.farthest is not None:
            visible_QS &= self.at_Q1 - number_1S <= plan.farthest
        if plan.packed:
            visible_QS &= rank_1S >= self.floor_Q1
            number_1S = self.inputs.keys_BNK[self.b, 2, keys][None]
        if plan.near:  # Positions are in place of the segments.
            visible_QS &= (segment_1S >= self.nearest_Q1) & (segment_1S <= self.farthest_Q1)
        score_QS += (
            jnp.where(segment_1S == self.segment_Q1, -log_Q1, self.other_Q1 - log_Q1)
            if plan.relative
            else -log_Q1
        )
        return Tile(jnp.where(visible_QS, score_QS, -FAR), number_1S, segment_1S, k_SE, r_SE)

    @property
    def visits(self) -> tuple[Any, Any]:
        """The bounds of a loop over the blocks of keys that the queries see."""
        return self.plan.visits(self.inputs.seen_keys, self.b, self.i, self.plan.key_blocks)

    def values(self, j: Any) -> jax.Array:
        """Reads the values of one block of keys, [S, E]."""
        return self.inputs.v_BKHE[self.b, pl.ds(j * self.plan.tile, self.plan.tile), self.h, :]

    def position_scores(self, j: Any, first_SE: jax.Array) -> jax.Array:
        """Computes b . r of a tile; `first_SE`: its block of position keys `rows(first + j)`."""

        def visit(n: Any, sum_QS: jax.Array, r_SE: jax.Array | None = None) -> jax.Array:
            product_QS = self.plan.dot(self.b_QE, self.rows(n + j) if r_SE is None else r_SE, NT)
            return jnp.where(self.offset_QS == n, product_QS, sum_QS)

        sum_QS = visit(
            self.first, self.plan.dot(self.b_QE, self.rows(self.last + 1 + j), NT), first_SE
        )
        if self.plan.chosen:
            sum_QS = jax.lax.fori_loop(self.first + 1, self.last + 1, visit, sum_QS)
        return self.plan.turn(sum_QS, self.e_Q1)

    def dropped(self, x_QS: jax.Array, number: jax.Array) -> jax.Array:
        """Drops elements of x, without scaling the kept elements."""
        if not self.plan.rate:
            return x_QS
        indices = (
            (self.word_Q1,)
            if self.plan.packed
            else (self.inputs.word_BH[self.b, self.h], self.at_Q1)
        )
        return jnp.where(keep(self.plan.rate, *indices, number), x_QS, 0.0)


class Gradients:
    """A block of queries with the inputs of the backward pass."""

    def __init__(self, queries: Queries, do_BQHE: Any, log_BHQ: Any, delta_BHQ: Any) -> None:
        b, h, here = queries.b, queries.h, queries.here
        self.queries, self.do_QE = queries, do_BQHE[b, here, h, :]
        self.log_Q1 = log_BHQ[b, h, here][:, None]
        self.delta_Q1 = delta_BHQ[b, h, here][:, None] / upscale(queries.plan.rate)

    def tile(self, j: Any) -> tuple[Tile, jax.Array, jax.Array]:
        """Returns the tile of one block of keys, its probabilities, and the gradients of its scores
        in units of ln 2 upscale(rate).
        """
        tile, plan = self.queries.tile(j, self.log_Q1), self.queries.plan
        dp_QS = plan.dot(self.do_QE, self.queries.values(j), NT)
        p_QS = plan.exp2(tile.score_QS)
        return tile, p_QS, p_QS * (self.queries.dropped(dp_QS, tile.number_1S) - self.delta_Q1)


def forward(plan: GpuPlan, *refs: Any) -> None:
    """Writes the output of a block of queries and the logarithm of their sums of exponentials."""
    *inputs, o_BQHE, log_BHQ = refs
    i, h, b = (pl.program_id(n) for n in range(3))
    queries = Queries(plan, GpuInputs(*inputs), b, h, i)
    Q, E = queries.a_QE.shape

    def visit(j: Any, carry: Any) -> Any:
        highest_Q, total_Q, o_QE = carry
        tile = queries.tile(j)
        new_Q = jnp.maximum(highest_Q, jnp.max(tile.score_QS, axis=1))
        p_QS, shrink_Q = plan.exp2(tile.score_QS - new_Q[:, None]), plan.exp2(highest_Q - new_Q)
        v_SE = queries.values(j)
        o_QE = o_QE * shrink_Q[:, None] + plan.dot(
            queries.dropped(p_QS, tile.number_1S).astype(v_SE.dtype), v_SE, NN
        )
        return new_Q, total_Q * shrink_Q + jnp.sum(p_QS, axis=1), o_QE

    # Above -FAR, so the total of a query that sees no key is 0.
    start = (
        jnp.full(Q, -FAR / 2, jnp.float32),
        jnp.zeros(Q, jnp.float32),
        jnp.zeros((Q, E), jnp.float32),
    )
    highest_Q, total_Q, o_QE = jax.lax.fori_loop(*queries.visits, visit, start)
    blind_Q = total_Q == 0
    total_Q = jnp.where(blind_Q, 1.0, total_Q)
    o_BQHE[b, queries.here, h, :] = (o_QE * (upscale(plan.rate) / total_Q)[:, None]).astype(
        o_BQHE.dtype
    )
    log_BHQ[b, h, queries.here] = jnp.where(blind_Q, 0.0, highest_Q + jnp.log(total_Q) / LN2)


class PositionSums(NamedTuple):
    """Part of the gradient of the position keys that belongs to one program."""

    plan: GpuPlan
    dr_GNHE: Any
    group: Any
    h: Any

    def rows(self, n: Any) -> Any:
        """Returns the index of one block of rows."""
        return self.group, pl.ds(n * self.plan.tile, self.plan.tile), self.h, slice(None)

    def clear(self, n: Any, _: None) -> None:
        """Sets one block of rows to zeros."""
        width = self.dr_GNHE.shape[-1]
        self.dr_GNHE[self.rows(n)] = jnp.zeros((self.plan.tile, width), jnp.float32)

    def add(self, n: Any, part_QS: jax.Array, b_QE: jax.Array) -> None:
        """Adds the gradients of scores times b to one block of rows."""
        self.dr_GNHE[self.rows(n)] += self.plan.dot(part_QS, b_QE, TN)
        self.plan.barrier()


def backward_queries(plan: GpuPlan, *refs: Any) -> None:
    """Writes the gradients of a, b and `other` of some blocks of queries, and the gradient of the
    position keys, summed over these queries; without the position term only the gradient of a.
    """
    *inputs, do_BQHE, log_BHQ, delta_BHQ, da_BQHE, db_BQHE, dother_BHQ, dr_GNHE = refs
    g, h, b = (pl.program_id(n) for n in range(3))
    sums = PositionSums(plan, dr_GNHE, pl.num_programs(0) * b + g, h)
    if plan.relative:
        jax.lax.fori_loop(0, plan.windows + plan.key_blocks, sums.clear, None)
        plan.barrier()

    def block(i: Any, _: None) -> None:
        queries = Queries(plan, GpuInputs(*inputs), b, h, i)
        gradients = Gradients(queries, do_BQHE, log_BHQ, delta_BHQ)
        write_query_gradients(gradients, sums, da_BQHE, db_BQHE, dother_BHQ)

    per_group = da_BQHE.shape[1] // plan.queries // pl.num_programs(0)
    jax.lax.fori_loop(g * per_group, (g + 1) * per_group, block, None)


def write_query_gradients(
    gradients: Gradients, sums: PositionSums, da_BQHE: Any, db_BQHE: Any, dother_BHQ: Any
) -> None:
    """Writes the gradients of a, b and `other` of one block of queries, and adds the gradient of
    the position keys to `sums`; without the position term writes only the gradient of a.

    For queries in order, one addition gives a block of position keys its sum over these queries:
    from one tile and from the rotated gradients of the previous tile.
    """
    queries, plan = gradients.queries, gradients.queries.plan

    def row_block(n: Any, r_SE: jax.Array, part_QS: jax.Array, db_QE: jax.Array) -> jax.Array:
        """Adds the gradients of some scores to the sums of a block of position keys and of b."""
        sums.add(n, part_QS, queries.b_QE)
        return db_QE + plan.dot(part_QS, r_SE, NN)

    def visit(j: Any, carry: Any) -> Any:
        da_QE, db_QE, dother_Q, before_QS = carry
        tile, _, ds_QS = gradients.tile(j)
        k_SE = tile.k_SE
        if plan.relative:
            other_QS = jnp.where(tile.segment_1S == queries.segment_Q1, 0.0, ds_QS)
            dother_Q += jnp.sum(other_QS, axis=1)
        da_QE += plan.dot(ds_QS.astype(k_SE.dtype), k_SE, NN)
        if not plan.relative:
            return da_QE, None, None, None
        ds_QS = plan.turn(ds_QS, -queries.e_Q1).astype(k_SE.dtype)

        def offset(n: Any, db_QE: jax.Array) -> jax.Array:
            return row_block(
                n + j, queries.rows(n + j), jnp.where(queries.offset_QS == n, ds_QS, 0), db_QE
            )

        if plan.chosen:
            db_QE = jax.lax.fori_loop(queries.first, queries.last + 2, offset, db_QE)
            return da_QE, db_QE, dother_Q, None
        part_QS = jnp.where(queries.offset_QS == queries.first, ds_QS, before_QS)
        return da_QE, row_block(queries.first + j, tile.r_SE, part_QS, db_QE), dother_Q, ds_QS

    zeros_QE = jnp.zeros(queries.a_QE.shape, jnp.float32)
    before_QS = (
        jnp.zeros(queries.offset_QS.shape, zeros_QE.dtype).astype(queries.a_QE.dtype)
        if plan.relative and not plan.chosen
        else None
    )
    relative = (zeros_QE, jnp.zeros(plan.queries, jnp.float32)) if plan.relative else (None, None)
    begin, end = queries.visits
    da_QE, db_QE, dother_Q, before_QS = jax.lax.fori_loop(
        begin, end, visit, (zeros_QE, *relative, before_QS)
    )
    if before_QS is not None:
        n = queries.first + end
        part_QS = jnp.where(queries.offset_QS == queries.first, 0, before_QS)
        db_QE = row_block(n, queries.rows(n), part_QS, db_QE)
    at = queries.b, queries.here, queries.h, slice(None)
    da_BQHE[at] = (da_QE * plan.unit).astype(da_BQHE.dtype)
    if plan.relative:
        db_BQHE[at] = (db_QE * plan.unit).astype(db_BQHE.dtype)
        dother_BHQ[queries.b, queries.h, queries.here] = dother_Q * plan.unit


def backward_keys(plan: GpuPlan, *refs: Any) -> None:
    """Writes the gradients of one block of keys and values."""
    *inputs, do_BQHE, log_BHQ, delta_BHQ, dk_BKHE, dv_BKHE = refs
    j, h, b = (pl.program_id(n) for n in range(3))
    inputs = GpuInputs(*inputs)

    def visit(i: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dk_SE, dv_SE = carry
        queries = Queries(plan, inputs, b, h, i, stays=False)
        gradients = Gradients(queries, do_BQHE, log_BHQ, delta_BHQ)
        tile, p_QS, ds_QS = gradients.tile(j)
        do_QE = gradients.do_QE
        dv_SE += plan.dot(queries.dropped(p_QS, tile.number_1S).astype(do_QE.dtype), do_QE, TN)
        return dk_SE + plan.dot(ds_QS.astype(do_QE.dtype), queries.a_QE, TN), dv_SE

    zeros_SE = jnp.zeros((plan.tile, dk_BKHE.shape[-1]), jnp.float32)
    visits = plan.visits(inputs.seen_queries, b, j, inputs.a_BQHE.shape[1] // plan.queries)
    dk_SE, dv_SE = jax.lax.fori_loop(*visits, visit, (zeros_SE, zeros_SE))
    keys = pl.ds(j * plan.tile, plan.tile)
    dk_BKHE[b, keys, h, :] = (dk_SE * plan.unit).astype(dk_BKHE.dtype)
    dv_BKHE[b, keys, h, :] = (dv_SE * upscale(plan.rate)).astype(dv_BKHE.dtype)
