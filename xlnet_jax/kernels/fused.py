"""Fused attention on the device of the mesh: the kernel for its kind, and the part of the call for each device.

The compiler cannot split a kernel. So the call is inside `shard_map` over all mesh axes that are still the compiler's:
rows over those that split the batch, heads over `tensor`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.mesh import RULES
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import gpu, tpu
from xlnet_jax.kernels.dropout import AttentionDropout

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
    found = re.match(r"NVIDIA [A-Z]+\d+", device_kind)
    return found[0] if found else device_kind


def problem(device_kind: str, head_dim: int, dtype: jnp.dtype) -> str | None:
    """Why there is no kernel for the device or the sizes; None if there is one."""
    return (
        f"there is no kernel for {device_kind}, only for {', '.join(KERNELS)}" if kind(device_kind) not in KERNELS
        else f"model.head_dim={head_dim} is above {tpu.HEAD_DIMS[-1]}" if head_dim > tpu.HEAD_DIMS[-1]
        else f"model.compute_dtype={dtype} is not float32 or bfloat16" if dtype.itemsize > 4
        else None
    )  # fmt: skip


def attend(
    q_BQHE: jax.Array,
    k_BKHE: jax.Array,
    v_BKHE: jax.Array,
    position: tuple[jax.Array, jax.Array, jax.Array],
    biases: Mapping[str, jax.Array],
    segment_2HE: jax.Array,
    limit_BQ: jax.Array,
    rank_BK: jax.Array,
    segment_BQ: jax.Array,
    segment_BK: jax.Array,
    query_position_BQ: jax.Array | None,
    rows_B: jax.Array,
    dropout: AttentionDropout | None,
    max_distance: int | None = None,
) -> tuple[jax.Array, None]:
    """Attention of one stream of one layer: as `xla.attend`, but without the probabilities.

    Raises BadInput if there is no kernel for the device or the sizes.
    """
    device = meshes.device().device_kind
    why_not = problem(device, q_BQHE.shape[-1], q_BQHE.dtype)
    if why_not:
        raise BadInput(f"model.attention=fused: {why_not}; use model.attention=xla")
    kernel = KERNELS[kind(device)]
    free, rows = meshes.free_axes()
    heads = RULES.heads if RULES.heads in free else None

    def local(dropout: AttentionDropout | None, position: tuple, *arguments: Any) -> jax.Array:
        if dropout is not None and heads:
            first_head = dropout.first_head + jax.lax.axis_index(heads) * arguments[0].shape[2]
            dropout = dataclasses.replace(dropout, first_head=first_head)
        return kernel(*arguments[:3], position, *arguments[3:], dropout, max_distance)[0]

    by_head, by_row = PartitionSpec(rows, None, heads), PartitionSpec(rows)
    tables = PartitionSpec(rows if len(position[0]) > 1 else None, None, heads)
    in_specs = (
        PartitionSpec(), (tables, tables, by_row), by_head, by_head, by_head, PartitionSpec(heads),
        PartitionSpec(None, heads), *[by_row] * 6,
    )  # fmt: skip
    if free:
        # Without the check of replication: else the gradients of shared arrays would be summed inside accumulation.
        local = jax.shard_map(local, in_specs=in_specs, out_specs=by_head, axis_names=set(free), check_vma=False)
    o_BQHE = local(
        dropout, position, q_BQHE, k_BKHE, v_BKHE, biases, segment_2HE, limit_BQ, rank_BK, segment_BQ, segment_BK,
        query_position_BQ, rows_B,
    )  # fmt: skip
    return o_BQHE, None
