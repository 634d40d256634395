"""Fused attention on TPU, v4 and later: no [queries, keys] array leaves the chip's vector
memory.

Exception: with `Arguments.save` and all keys in one block, the forward pass saves the weights of
the softmax and of dropout, so that the backward pass does not compute them again.

Interface and results are as for `xla.attend`, without the probabilities. `packing` has the formulas
of the forward and backward pass, `tpu_kernels` the work of one program on the units of `tpu_units`.
This module pads the arguments, packs the integers, chooses the blocks, and connects the forward and
the backward pass.

Arrays stay [B, rows, H E], as the projections make them. Every sum has a fixed order, so two runs
give equal bits. The gradient cannot be differentiated again.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels import packing
from xlnet_jax.kernels.packing import round_up
from xlnet_jax.kernels.tpu_kernels import backward, forward
from xlnet_jax.kernels.tpu_units import LANES, SUBLANES, TpuInputs, TpuPlan
from xlnet_jax.kernels.xla import Arguments

HEAD_DIMS = (32, 64, LANES)
"""Head widths of the kernels; a head is padded to the next of these widths."""


@dataclasses.dataclass(frozen=True)
class TpuBlocks:
    """Queries and keys in a program: multiples of 128, smaller if a call has fewer of them."""

    queries: int = 512
    """Queries in order."""
    keys: int = 896
    chosen: int = 128
    """Queries at chosen positions."""
    packed: tuple[int, int] = (128, 256)
    """Queries in order and keys, if rows hold several documents: smaller blocks see fewer keys of
    other documents.
    """
    near: tuple[int, int] = (256, 512)
    """The same, if layers may have a window and `keys` are too few for one block: without a window
    these are much faster than smaller blocks, and with it as fast.
    """
    window: int = 512
    """Positions that one product of queries at chosen positions covers, a power of 2."""
    strips: tuple[int, int] = (256, 128)
    """Queries of a unit, for queries in order: forward and backward, powers of 2. Larger strips
    load the matrix unit less often, but keep less in registers: 256 backward on v5e and v5p, and
    512 on any chip, need more bundles.
    """
    rows: int = 12_000
    """Limit for rows of the position keys, or without these of the keys, times groups of 128 lanes
    in a program. A higher limit makes programs larger, so the start and the end of a program cost
    less.
    """
    strided: bool = True
    """Whether shifts are strided rolls, which v4 does not have."""
    vmem_bytes: int = 96 * 2**20
    """Vector memory that the compiler may use; v5e and v6e have 128 MiB."""


def attend(
    a: Arguments, *, blocks: TpuBlocks = TpuBlocks(), interpret: bool = False
) -> tuple[jax.Array, None]:
    """Computes `xla.attend` without probabilities, in float32 or bfloat16 and for E <= 128.

    With `interpret` the kernel runs as plain JAX on any device: slow, for tests.
    """
    (B, Q, H, E), K = a.q_BQHE.shape, a.k_BKHE.shape[1]
    r_SNHE, table_B = packing.position_keys(a)
    plans = plan, _ = plan_passes(a, blocks, interpret)
    Ep, Tp, Kp, Np = plan.head_dim, plan.positions, plan.keys, plan.table_rows
    T, Qp = K - a.memory_len, round_up(Q, plan.query_block)
    heads = round_up(H * Ep, LANES) // Ep

    def lanes(x: jax.Array, padding: tuple[int, int]) -> jax.Array:
        """Pads [B, n, H, E] to [B, n', H' E'] with zeros before and after axis n, after the heads,
        and after the elements of a head.
        """
        pads = ((0, 0), padding, (0, heads - x.shape[2]), (0, Ep - x.shape[3]))
        return jnp.pad(x, pads).reshape(len(x), sum(padding) + x.shape[1], heads * Ep)

    queries, keys = packing.padded_queries(a, Qp), packing.padded_keys(a, Kp)
    first, last, r_SDN, small_8D = None, None, None, None
    if r_SNHE is not None:
        # The windows of each block of queries.
        window_AQ = (
            ((Tp - 1 - queries[2]) // plan.window).reshape(-1, plan.query_block).astype(jnp.int32)
        )
        first, last = window_AQ.min(axis=1), window_AQ.max(axis=1)
        # The kernel's row for the query at t and key j is T - 1 - t + j, with the padded T.
        after = Np - (Tp - T) - r_SNHE.shape[1]
        r_SDN = lanes(r_SNHE.astype(jnp.float32), (Tp - T, after)).swapaxes(1, 2)
        biases = (a.biases[f"{name}_bias"] for name in ("content", "position", "segment"))
        small_8HE = jnp.stack([x.astype(jnp.float32) for x in (*biases, packing.other_segment(a))])
        small_8D = lanes(small_8HE[None], (0, SUBLANES - len(small_8HE)))[0]
    word_BH = jax.lax.bitcast_convert_type(packing.dropout_words(a, heads), jnp.int32)
    seen = None
    if plan.skips:
        seen = packing.first_and_last(
            packing.seen_blocks(a, queries, keys, plan.query_block, plan.key_block)
        )
    o_BQD: Any = _fused(
        plans,
        table_B,
        word_BH.reshape(-1),
        first,
        last,
        None if a.near is None else a.near.size.reshape(1),
        seen,
        lanes(a.q_BQHE, (0, Qp - Q)),
        lanes(a.k_BKHE, (0, Kp - K)),
        lanes(a.v_BKHE, (0, Kp - K)),
        r_SDN,
        small_8D,
        _packed(*queries),
        _packed(*keys),
    )
    return o_BQD[:, :Q].reshape(B, Q, heads, Ep)[:, :, :H, :E], None


def plan_passes(a: Arguments, blocks: TpuBlocks, interpret: bool) -> tuple[TpuPlan, ...]:
    """Returns the plans of the forward and of the backward pass."""
    (_, Q, H, E), K, chosen = a.q_BQHE.shape, a.k_BKHE.shape[1], a.query_position_BQ is not None
    # Without position keys only the queries count.
    T = Q if a.position is None else K - a.memory_len
    Ep = next(width for width in HEAD_DIMS if width >= E)
    queries, keys = (
        blocks.near
        if a.near is not None and blocks.keys < K
        else blocks.packed
        if a.packed is not None
        else (blocks.queries, blocks.keys)
    )
    in_order = min(queries, round_up(T, LANES))
    query_block = min(blocks.chosen, round_up(Q, 16)) if chosen else in_order
    # As few blocks of keys as possible, all of one size.
    key_block = round_up(-(-K // -(-K // keys)), LANES)
    Tp, Kp = round_up(T, in_order), round_up(K, key_block)
    window = min(blocks.window, 1 << (round_up(Tp, LANES) - 1).bit_length())
    # The same for both streams, so that the compiler makes the table once.
    Np = Kp if a.position is None else round_up(Tp, window) + Kp
    saved = a.save and Kp == key_block
    # `blocks.rows` leaves room for saved probabilities of heads of 64 in bfloat16; smaller heads or
    # float32 need more. Without position keys, which are float32, float32 needs more, too.
    itemsize = a.v_BKHE.dtype.itemsize
    room = Np * (max(32 * itemsize // Ep, 1) if saved else 1 if a.position else itemsize // 2)
    groups = next(
        n for n in (8, 4, 2, 1) if H * Ep % (n * LANES) == 0 and n * room <= blocks.rows or n == 1
    )
    return tuple(
        TpuPlan(
            groups=groups,
            table_rows=Np,
            head_dim=Ep,
            scale=E**-0.5,
            query_block=query_block,
            key_block=key_block,
            window=window if chosen else max(strip, LANES),
            strip=min(query_block, LANES) if chosen else strip,
            strided=blocks.strided,
            saved=saved,
            vmem_bytes=blocks.vmem_bytes,
            interpret=interpret,
            **packing.plan_fields(a, Tp, Kp),
        )
        for strip in (math.gcd(in_order, strip) for strip in blocks.strips)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(plans: tuple[TpuPlan, ...], *arguments: jax.Array) -> jax.Array:
    """Computes the output [B, Q, D] from padded arguments, in the order of `TpuInputs`.

    Their shapes: table [B], word [B H], first and last [B blocks], size [1], seen 2 times
    [B, blocks]; q, k and v [B, Q or K, D]; r [S, D, N] and small [8, D], in float32 like their
    gradients; queries and keys [B, 8, Q or K], with zeros in unused rows.
    """
    return _fused_forward(plans, *arguments)[0]


def _fused_forward(plans: tuple[TpuPlan, ...], *arguments: Any) -> tuple[jax.Array, Any]:
    plan, inputs = plans[0], TpuInputs(*arguments)
    if plan.relative:
        inputs = inputs._replace(r=inputs.r.astype(inputs.q.dtype))
    (B, Q, D), lanes, dtype = inputs.q.shape, plan.groups * LANES, inputs.v.dtype
    _, in_specs, log, weights = _specs(plan, lanes_first=False)
    by_head = pltpu.VMEM((plan.heads, plan.query_block, LANES), jnp.float32)
    o_BQD, log_BG8Q, weight_BHQK = _call(
        forward,
        plan,
        (B, D // lanes, Q // plan.query_block, plan.keys // plan.key_block),
        (*["parallel"] * 3, "arbitrary"),
        in_specs=in_specs,
        out_specs=[in_specs[0], log, weights],
        out_shape=[
            jax.ShapeDtypeStruct((B, Q, D), dtype),
            jax.ShapeDtypeStruct((B, D // LANES, SUBLANES, Q), jnp.float32),
            jax.ShapeDtypeStruct((B, D // plan.head_dim, Q, plan.keys), dtype)
            if plan.saved
            else None,
        ],
        scratch_shapes=[
            *_columns_and_mask(plan),
            pltpu.VMEM((2, plan.strip, plan.key_block), jnp.float32),
            pltpu.VMEM((lanes, plan.key_block), dtype),
            pltpu.VMEM((lanes, plan.query_block), jnp.float32),
            by_head,
            by_head,
        ],
    )(*inputs)
    # remat=dots keeps these results, as it keeps products: the backward pass does not run the
    # kernel again.
    o_BQD, *saved = checkpoint_name((o_BQD, log_BG8Q, weight_BHQK), "fused_attention")
    return o_BQD, (inputs, o_BQD, *saved)


def _fused_backward(plans: tuple[TpuPlan, ...], saved: Any, do_BQD: jax.Array) -> tuple[Any, ...]:
    (_, plan), (inputs, o_BQD, log_BG8Q, weight_BHQK) = plans, saved
    (B, Q, D), lanes, dtype = inputs.q.shape, plan.groups * LANES, inputs.k.dtype
    queries, keys = plan.query_block, plan.key_block
    spec, in_specs, log, weights = _specs(plan, lanes_first=True)
    by_query, dr, small = in_specs[0], None, in_specs[4]
    all_keys = spec((1, plan.keys, lanes), lambda b, g, i, j, _: (b, 0, g))
    if plan.relative:
        dr = spec(
            (1 if plan.own_tables else len(inputs.r), lanes, plan.table_rows),
            lambda b, g, i, j, _: (b if plan.own_tables else 0, g, 0),
        )
    by_lane, sum_of_keys = (pltpu.VMEM((lanes, n), jnp.float32) for n in (queries, plan.keys))
    scores = pltpu.VMEM((2, plan.strip, keys), jnp.float32)
    gradients = _call(
        backward,
        plan,
        (D // lanes, B, Q // queries, plan.keys // keys),
        ("parallel", *["arbitrary"] * 3),
        in_specs=[*in_specs, by_query, log, by_query, weights],
        out_specs=[by_query, all_keys, all_keys, dr, small],
        out_shape=[
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (inputs.q, inputs.k, inputs.v)),
            *jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), (inputs.r, inputs.small)
            ),
        ],
        scratch_shapes=[
            *_columns_and_mask(plan),
            scores,
            scores,
            pltpu.VMEM((lanes, keys), dtype),
            pltpu.VMEM((2 + plan.relative, lanes, queries), dtype),
            by_lane,
            by_lane if plan.relative else None,
            pltpu.VMEM((plan.heads, queries, LANES), jnp.float32) if plan.relative else None,
            pltpu.VMEM((queries, lanes), jnp.float32),
            sum_of_keys,
            sum_of_keys,
            pltpu.VMEM((queries, lanes), dtype) if plan.saved else None,
        ],
    )(*inputs, o_BQD, log_BG8Q, do_BQD, weight_BHQK)
    return *[None] * 6, *gradients, None, None


_fused.defvjp(_fused_forward, _fused_backward)


def _specs(plan: TpuPlan, lanes_first: bool) -> tuple[Any, list[pl.BlockSpec], pl.BlockSpec, Any]:
    """Returns a function that makes the spec of a block, from a function of (row, lanes, queries,
    keys, table) that gives its place; then the specs of the inputs, of the logarithms of the sums,
    and of the weights (None if not saved).

    The first two axes of the grid are row and lanes, or with `lanes_first` lanes and row.
    """
    lanes, queries, keys = plan.groups * LANES, plan.query_block, plan.key_block

    def spec(shape: tuple[int, ...], index: Any) -> pl.BlockSpec:
        def place(x: Any, y: Any, i: Any, n: Any, table: Any, *scalars: Any) -> tuple[Any, ...]:
            b, g = (y, x) if lanes_first else (x, y)
            return index(b, g, i, plan.visited(scalars[-1], b, i, n)[0], table)

        return pl.BlockSpec(shape, place)

    by_key, tables = spec((1, keys, lanes), lambda b, g, i, j, _: (b, j, g)), (None, None)
    if plan.relative:
        tables = (
            spec((1, lanes, plan.table_rows), lambda b, g, i, j, table: (table[b], g, 0)),
            spec((SUBLANES, lanes), lambda b, g, i, j, _: (0, g)),
        )
    inputs = [
        spec((1, queries, lanes), lambda b, g, i, j, _: (b, i, g)),
        by_key,
        by_key,
        *tables,
        spec((1, SUBLANES, queries), lambda b, g, i, j, _: (b, 0, i)),
        spec((1, SUBLANES, keys), lambda b, g, i, j, _: (b, 0, j)),
    ]
    log = spec((1, plan.groups, SUBLANES, queries), lambda b, g, i, j, _: (b, g, 0, i))
    weights = (
        spec((1, plan.heads, queries, keys), lambda b, g, i, j, _: (b, g, i, j))
        if plan.saved
        else None
    )
    return spec, inputs, log, weights


def _call(
    body: Any, plan: TpuPlan, grid: tuple[int, ...], order: Any, out_shape: Any, **specs: Any
) -> Any:
    return pl.pallas_call(
        functools.partial(body, plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=6, grid=grid, **specs),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=order, vmem_limit_bytes=plan.vmem_bytes
        ),
        name=f"xlnet_attention_{body.__name__}",
        interpret=plan.interpret,
    )


def _columns_and_mask(plan: TpuPlan) -> list[Any]:
    """Returns the memory of `columns_ref` and `mask_ref` of `Units`."""
    mask = pltpu.VMEM((plan.query_block, plan.key_block), jnp.float32)
    columns = pltpu.VMEM((*plan.columns, plan.strip, LANES), jnp.int32)
    return [columns, None if plan.relative else mask]


def _packed(*rows: jax.Array) -> jax.Array:
    """Stacks arrays [B, n] and zeros to int32 [B, 8, n]."""
    zeros = jnp.zeros_like(rows[0])
    return jnp.stack([*rows, *[zeros] * (SUBLANES - len(rows))], axis=1).astype(jnp.int32)
