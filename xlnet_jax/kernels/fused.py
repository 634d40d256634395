"""Fused attention on the device of the mesh: the kernel for its kind, and the part of the call for each device.

The compiler cannot split a kernel. So the call is inside `shard_map` over all mesh axes that are still the compiler's:
rows over those that split the batch, heads over `tensor`.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.mesh import RULES
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import gpu, tpu
from xlnet_jax.kernels.xla import Arguments

MIB = 2**20

KERNELS = {
    # v4 cannot roll each row by another number of lanes.
    "TPU v4": functools.partial(
        tpu.attend, blocks=tpu.Blocks(queries=128, rows=2048, strided=False, vmem_bytes=16 * MIB)
    ),
    "TPU v5 lite": tpu.attend,
    "TPU v5": functools.partial(tpu.attend, blocks=tpu.Blocks(rows=6000, vmem_bytes=48 * MIB)),
    "TPU v6 lite": tpu.attend,
    "TPU7x": functools.partial(tpu.attend, blocks=tpu.Blocks(rows=6000, vmem_bytes=48 * MIB)),
    **dict.fromkeys(("NVIDIA A100", "NVIDIA H100", "NVIDIA H200", "NVIDIA GH200"), gpu.attend),
}
"""By the kind of device, as `kind` names it."""


def kind(device_kind: str) -> str:
    """JAX's name for a kind of device; for an NVIDIA GPU only its first two words: one of `NVIDIA H100 80GB HBM3`."""
    family = re.match(r"NVIDIA [A-Z]+\d+", device_kind)
    return family[0] if family else device_kind


def problem(device_kind: str, head_dim: int, dtype: jnp.dtype) -> str | None:
    """Why there is no kernel for the device or the sizes; None if there is one."""
    return (
        f"there is no kernel for {device_kind}, only for {', '.join(KERNELS)}" if kind(device_kind) not in KERNELS
        else f"model.head_dim={head_dim} is above {tpu.HEAD_DIMS[-1]}" if head_dim > tpu.HEAD_DIMS[-1]
        else f"model.compute_dtype={dtype} is not float32 or bfloat16" if dtype.itemsize > 4
        else None
    )  # fmt: skip


def attend(a: Arguments) -> tuple[jax.Array, None]:
    """Attention of one stream of one layer: as `xla.attend`, but without the probabilities.

    Raises BadInput if there is no kernel for the device or the sizes.
    """
    device = meshes.device().device_kind
    why_not = problem(device, a.q_BQHE.shape[-1], a.q_BQHE.dtype)
    if why_not:
        raise BadInput(f"model.attention=fused: {why_not}; use model.attention=xla")
    kernel = KERNELS[kind(device)]
    free, rows = meshes.free_axes()
    heads = RULES.heads if RULES.heads in free else None

    def local(a: Arguments) -> jax.Array:
        if a.dropout is not None and heads:
            first_head = a.dropout.first_head + jax.lax.axis_index(heads) * a.q_BQHE.shape[2]
            a = dataclasses.replace(a, dropout=dataclasses.replace(a.dropout, first_head=first_head))
        return kernel(a)[0]

    if free:
        by_head, by_row = PartitionSpec(rows, None, heads), PartitionSpec(rows)
        tables = PartitionSpec(rows if a.own_tables else None, None, heads)
        specs = Arguments(
            **dict.fromkeys(("q_BQHE", "k_BKHE", "v_BKHE"), by_head),
            **dict.fromkeys(("limit_BQ", "rank_BK", "segment_BQ", "segment_BK", "query_position_BQ", "rows_B"), by_row),
            position=(tables, tables, by_row), biases=PartitionSpec(heads), segment_2HE=PartitionSpec(None, heads),
            dropout=PartitionSpec(), max_distance=a.max_distance,
        )  # fmt: skip
        # Without the check of replication: else the gradients of shared arrays would be summed inside accumulation.
        local = jax.shard_map(local, in_specs=(specs,), out_specs=by_head, axis_names=set(free), check_vma=False)
    return local(a), None
