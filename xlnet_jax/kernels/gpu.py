"""Fused relative attention on NVIDIA GPUs, in Pallas on Triton: no [queries, keys] array is in
global memory.

Interface and results are as for `xla.attend`, without the probabilities, which are never stored.
`packing` has the formulas of the forward and backward pass, `gpu_kernels` the work of one program.
This module pads the arguments, packs the integers, and connects the forward and the backward pass.

Arrays stay [B, rows, H, E], as the projections make them. Every sum has a fixed order, so two runs
give equal bits. The gradient cannot be differentiated again.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.kernels import packing
from xlnet_jax.kernels.gpu_kernels import GpuPlan, backward_keys, backward_queries, forward
from xlnet_jax.kernels.packing import LN2, round_up
from xlnet_jax.kernels.xla import Arguments

HEAD_DIMS = (16, 32, 64, 128)
"""Head widths of the kernels; a head is padded to the next of these widths."""


class GpuBlocks(NamedTuple):
    """Numbers of queries and keys in a program: powers of 2, at least 16."""

    queries: int
    """Queries in order; at most `keys`."""
    chosen: int
    """Queries at chosen positions; at most `keys`."""
    keys: int
    programs: int = 256
    """Least number of programs that compute the gradient of the queries, if the call has enough
    blocks of queries: an H100 runs 264 programs at a time. Each program has its own part of the
    gradient of the position keys, in float32.
    """


BLOCKS = {
    128: GpuBlocks(queries=64, chosen=32, keys=64),
    256: GpuBlocks(queries=32, chosen=32, keys=32),
    512: GpuBlocks(queries=16, chosen=16, keys=32),
}
"""Blocks by the largest number of bytes of a head, for every card. They have the largest tiles
whose forward pass in bfloat16 does not spill registers when compiled for an H100
(`benchmarks/gpu_compile.py`). The matrix unit of an H100 takes four warps and 64 rows at once. The
tiles use less shared memory than the 163 KiB of an A100. Other tiles were not tried on a card.
"""


def blocks_of(head_dim: int, dtype: jnp.dtype) -> GpuBlocks:
    """Returns the default blocks of `attend`."""
    return next(blocks for size, blocks in BLOCKS.items() if size >= head_dim * dtype.itemsize)


def attend(
    a: Arguments, *, blocks: GpuBlocks | None = None, interpret: bool = False
) -> tuple[jax.Array, None]:
    """Computes `xla.attend` without probabilities, in float32 or bfloat16 and for E <= 128.

    With `interpret` the kernel runs as plain JAX on any device: slow, for tests.
    """
    (_, Q, H, E), K, M, dtype = a.q_BQHE.shape, a.k_BKHE.shape[1], a.memory_len, a.q_BQHE.dtype
    T, chosen = K - M, a.query_position_BQ is not None
    Ep = next(width for width in HEAD_DIMS if width >= E)
    blocks = blocks or blocks_of(Ep, dtype)
    query_block, tile = blocks.chosen if chosen else blocks.queries, blocks.keys
    Tp, Kp, Qp = round_up(T, tile), round_up(K, tile), round_up(Q, query_block)
    plan = GpuPlan(
        queries=query_block,
        tile=tile,
        programs=blocks.programs,
        interpret=interpret,
        **packing.plan_fields(a, Tp, Kp),
    )
    queries, keys = packing.padded_queries(a, Qp), packing.padded_keys(a, Kp)
    seen = None, None
    if plan.skips:
        seen_BIJ = packing.seen_blocks(a, queries, keys, query_block, tile)
        seen = tuple(packing.first_and_last(x) for x in (seen_BIJ, seen_BIJ.swapaxes(1, 2)))
    queries[2] = Tp - 1 - queries[2]
    r_SNHE, table_B = packing.position_keys(a)
    integers = (
        table_B,
        packing.dropout_words(a, H),
        *(jnp.stack(x, axis=1).astype(jnp.int32) for x in (queries, keys)),
        None if a.near is None else jnp.asarray(a.near.size, jnp.int32)[None],
        *seen,
    )

    def query(name: str) -> jax.Array:
        q_BQHE = a.q_BQHE.astype(jnp.float32)
        if plan.relative:
            q_BQHE += a.biases[f"{name}_bias"].astype(jnp.float32)[None, None]
        return q_BQHE * (E**-0.5 / LN2)

    def pad(x: jax.Array, padding: tuple[int, int]) -> jax.Array:
        """Pads [B, n, H, E] with zeros before and after axis n, and after each head's elements."""
        return jnp.pad(x, ((0, 0), padding, (0, 0), (0, Ep - x.shape[3])))

    b_BQHE, other_BHQ = None, None
    if r_SNHE is not None:
        other_HE, exact = packing.other_segment(a).astype(jnp.float32), jax.lax.Precision.HIGHEST
        other_BHQ = jnp.einsum("bqhe,he->bhq", query("segment"), other_HE, precision=exact)
        other_BHQ = jnp.pad(other_BHQ, ((0, 0), (0, 0), (0, Qp - Q)))
        b_BQHE = pad(query("position").astype(dtype), (0, Qp - Q))
        # The kernel's row for the query at t and key j is T - 1 - t + j, with the padded T.
        r_SNHE = pad(r_SNHE.astype(jnp.float32), (Tp - T, Kp - K + 1))
    o_BQHE: Any = _fused(
        plan,
        pad(query("content").astype(dtype), (0, Qp - Q)),
        b_BQHE,
        other_BHQ,
        pad(a.k_BKHE, (0, Kp - K)),
        pad(a.v_BKHE, (0, Kp - K)),
        r_SNHE,
        integers,
    )
    return o_BQHE[:, :Q, :, :E], None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(plan: GpuPlan, *arguments: Any) -> jax.Array:
    """Computes the output [B, Q, H, E] from padded a, b, other, k, v, r and the integers. The
    gradient of r is in float32. Without the position and the segment term b, other and r are None.
    """
    return _fused_forward(plan, *arguments)[0]


def _fused_forward(plan: GpuPlan, *arguments: Any) -> tuple[jax.Array, Any]:
    a_BQHE, b_BQHE, other_BHQ, k_BKHE, v_BKHE, r_SNHE, integers = arguments
    B, Q, H, _ = a_BQHE.shape
    if r_SNHE is not None:
        r_SNHE = r_SNHE.astype(a_BQHE.dtype)
    inputs = *integers, a_BQHE, b_BQHE, other_BHQ, k_BKHE, v_BKHE, r_SNHE
    o_BQHE = jax.ShapeDtypeStruct(a_BQHE.shape, v_BKHE.dtype)
    log_BHQ = jax.ShapeDtypeStruct((B, H, Q), jnp.float32)
    o_BQHE, log_BHQ = _call(forward, plan, (Q // plan.queries, H, B), [o_BQHE, log_BHQ], inputs)
    # remat=dots keeps these results, as it keeps products: the backward pass does not run the
    # kernel again.
    o_BQHE, log_BHQ = checkpoint_name((o_BQHE, log_BHQ), "fused_attention")
    return o_BQHE, (inputs, o_BQHE, log_BHQ)


def _fused_backward(plan: GpuPlan, saved: Any, do_BQHE: jax.Array) -> tuple[Any, ...]:
    inputs, o_BQHE, log_BHQ = saved
    table_B, *_, a_BQHE, b_BQHE, other_BHQ, k_BKHE, v_BKHE, r_SNHE = inputs
    B, Q, H, _ = a_BQHE.shape
    delta_BHQ = jnp.einsum("bqhe,bqhe->bhq", do_BQHE, o_BQHE, preferred_element_type=jnp.float32)
    inputs = *inputs, do_BQHE, log_BHQ, delta_BHQ
    blocks = Q // plan.queries
    groups, dr_GNHE, dr_SNHE = blocks, None, None
    if plan.relative:
        groups = next(
            (n for n in range(1, blocks) if blocks % n == 0 and n * B * H >= plan.programs), blocks
        )
        dr_GNHE = jax.ShapeDtypeStruct((B * groups, *r_SNHE.shape[1:]), jnp.float32)
    da_BQHE, db_BQHE, dother_BHQ, dr_GNHE = _call(
        backward_queries, plan, (groups, H, B), [a_BQHE, b_BQHE, other_BHQ, dr_GNHE], inputs
    )
    if plan.relative:
        dr_SNHE = dr_GNHE.reshape(B, groups, *r_SNHE.shape[1:]).sum(axis=1) * plan.unit
        if not plan.own_tables:
            of_table_SB = jnp.arange(len(r_SNHE))[:, None] == table_B[None]
            part_SBNHE = jnp.where(of_table_SB[:, :, None, None, None], dr_SNHE[None], 0)
            dr_SNHE = jnp.sum(part_SBNHE, axis=1)
    dk_BKHE, dv_BKHE = _call(backward_keys, plan, (plan.key_blocks, H, B), [k_BKHE, v_BKHE], inputs)
    return da_BQHE, db_BQHE, dother_BHQ, dk_BKHE, dv_BKHE, dr_SNHE, None


_fused.defvjp(_fused_forward, _fused_backward)


def _call(body: Any, plan: GpuPlan, grid: tuple[int, ...], results: list[Any], inputs: Any) -> Any:
    name = f"xlnet_attention_{body.__name__}_{'chosen' if plan.chosen else 'in_order'}"
    # A stage is a tile whose loads are in flight; with 2 stages `backward_keys` would spill more
    # registers.
    return plan.call(body, name, grid, results, inputs, stages=1 if body is backward_keys else 2)
