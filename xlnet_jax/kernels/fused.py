"""Fused attention: the kernel for each kind of device, its call on a mesh, and its comparison with
XLA.

The compiler cannot split a kernel. So the call is inside `shard_map` over all mesh axes that the
compiler still controls: rows are split over the axes of the batch, heads over `tensor`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from xlnet_jax.config import ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.mesh import RULES
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import gpu, tpu, xla
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.kernels.xla import Arguments, NearKeys

MIB = 2**20
UNITS = 16
"""Largest permitted difference between fused and XLA, in units of bfloat16's roundoff, relative to
the largest element. Both round, and on TPU XLA rounds even float32 factors to bfloat16; a wrong
shift or mask causes a difference of hundreds of units.
"""

KERNELS = {
    # v4 cannot roll each row by a different number of lanes.
    "TPU v4": functools.partial(
        tpu.attend,
        blocks=tpu.TpuBlocks(
            queries=128, rows=2048, near=(128, 256), strided=False, vmem_bytes=16 * MIB
        ),
    ),
    "TPU v5 lite": tpu.attend,
    "TPU v5": functools.partial(tpu.attend, blocks=tpu.TpuBlocks(rows=3000, vmem_bytes=48 * MIB)),
    "TPU v6 lite": functools.partial(tpu.attend, blocks=tpu.TpuBlocks(strips=(256, 256))),
    "TPU7x": functools.partial(
        tpu.attend, blocks=tpu.TpuBlocks(strips=(256, 256), rows=3000, vmem_bytes=48 * MIB)
    ),
    **dict.fromkeys(("NVIDIA A100", "NVIDIA H100", "NVIDIA H200", "NVIDIA GH200"), gpu.attend),
}
"""Kernels by the name from `device_family`; each implements `attend`."""


def device_family(device_kind: str) -> str:
    """Shortens JAX's name for a kind of NVIDIA GPU, so `NVIDIA H100 80GB HBM3` to `NVIDIA H100`;
    returns other names unchanged.
    """
    family = re.match(r"NVIDIA [A-Z]+\d+", device_kind)
    return family[0] if family else device_kind


def why_no_kernel(device_kind: str, head_dim: int, dtype: jnp.dtype) -> str | None:
    """Returns why no kernel supports the device or the sizes; None if a kernel does."""
    return (
        f"there is no kernel for {device_kind}, only for {', '.join(KERNELS)}"
        if device_family(device_kind) not in KERNELS
        else f"model.head_dim={head_dim} is above {tpu.HEAD_DIMS[-1]}"
        if head_dim > tpu.HEAD_DIMS[-1]
        else f"model.compute_dtype={dtype} is not float32 or bfloat16"
        if dtype.itemsize > 4
        else None
    )


def attend(a: Arguments) -> tuple[jax.Array, None]:
    """Computes `xla.attend` without probabilities. Raises BadInput if no kernel supports the device
    or the sizes.
    """
    device = meshes.device().device_kind
    why_not = why_no_kernel(device, a.q_BQHE.shape[-1], a.q_BQHE.dtype)
    if why_not:
        raise BadInput(f"model.attention=fused: {why_not}; use model.attention=xla")
    kernel = KERNELS[device_family(device)]
    free, rows = meshes.free_axes()
    heads = RULES.heads if RULES.heads in free else None

    def local(a: Arguments) -> jax.Array:
        if a.dropout is not None and heads:
            first_head = a.dropout.first_head + jax.lax.axis_index(heads) * a.q_BQHE.shape[2]
            a = dataclasses.replace(
                a, dropout=dataclasses.replace(a.dropout, first_head=first_head)
            )
        return kernel(a)[0]

    if free:
        by_head, by_row = PartitionSpec(rows, None, heads), PartitionSpec(rows)
        tables = PartitionSpec(rows if a.own_tables else None, None, heads)
        specs = Arguments(
            **dict.fromkeys(("q_BQHE", "k_BKHE", "v_BKHE"), by_head),
            **dict.fromkeys(
                ("limit_BQ", "rank_BK", "segment_BQ", "segment_BK", "query_position_BQ", "rows_B"),
                by_row,
            ),
            packed=by_row,
            near=NearKeys(PartitionSpec(), by_row, by_row) if a.near else None,
            position=(tables, tables, by_row) if a.position else None,
            biases=PartitionSpec(heads),
            segment_2HE=PartitionSpec(None, heads),
            dropout=PartitionSpec(),
            max_distance=a.max_distance,
            save=a.save,
        )
        # check_vma=True would sum the gradients of shared arrays inside gradient accumulation.
        local = jax.shard_map(
            local, in_specs=(specs,), out_specs=by_head, axis_names=set(free), check_vma=False
        )
    return local(a), None


def compare(config: ModelConfig, device: Any) -> float:
    """Returns the largest difference between fused and XLA in both streams, in units of bfloat16's
    roundoff; infinity for NaN.
    """
    kernel = KERNELS[device_family(device.device_kind)]
    if kernel is gpu.attend:
        # Few programs, as with many rows: each adds up the gradients of several blocks of queries.
        blocks = gpu.blocks_of(config.head_dim, jnp.dtype(config.compute_dtype))
        kernel = functools.partial(kernel, blocks=blocks._replace(programs=8))
    run = jax.jit(lambda attend, case: xla.differentiated(attend, case)[::2], static_argnums=0)
    unit, differences = float(jnp.finfo(jnp.bfloat16).eps), []
    for chosen in (False, True):
        case = jax.device_put(_case(config, chosen), device)
        ours, theirs = (
            jax.tree.leaves(jax.device_get(run(attend, case))) for attend in (kernel, xla.attend)
        )
        differences += [
            np.max(np.abs(np.float32(x) - np.float32(y))) / max(np.max(np.abs(np.float32(y))), 1)
            for x, y in zip(ours, theirs, strict=True)
        ]
    return float(np.nan_to_num(np.max(differences) / unit, nan=np.inf))


def _case(config: ModelConfig, chosen: bool) -> Arguments:
    """Returns random arguments: padded lengths; queries in order or at chosen positions; two
    directions and segments, or the window of the model.
    """
    rng, dtype = np.random.default_rng(0), jnp.dtype(config.compute_dtype)
    # With a window several blocks of queries and of keys, some of which see nothing of each other.
    B, T, M, H, E = 2, 700 if config.window else 250, 20, 2, config.head_dim
    K, Q = M + T, 37 if chosen else T
    integers = functools.partial(rng.integers, dtype=np.int32)
    rank_BK = integers(-1, T, (B, K))
    at_BQ = (
        np.sort(integers(0, T, (B, Q)), axis=1)
        if chosen
        else np.arange(B * T, dtype=np.int32).reshape(B, T) % T
    )

    def normal(*shape: int, dtype: Any = dtype) -> np.ndarray:
        return rng.standard_normal(shape, np.float32).astype(dtype)

    wide = functools.partial(normal, dtype=np.float32)
    terms: dict[str, Any] = {}
    if config.member.parts.positions == "relative":
        tables = wide(1, K + T - 1, H, E), wide(1, K + T - 1, H, E)
        terms = {
            "position": (*tables, np.array([1, -1], np.int32)),
            "biases": {f"{name}_bias": wide(H, E) for name in ("content", "position", "segment")},
            "segment_2HE": wide(2, H, E),
        }
    elif config.window:
        place_BK = np.arange(B * K, dtype=np.int32).reshape(B, K) % K - M
        terms = {"near": NearKeys(np.int32(min(config.window // 2, 64)), at_BQ, place_BK)}
    return Arguments(
        q_BQHE=normal(B, Q, H, E),
        k_BKHE=normal(B, K, H, E),
        v_BKHE=normal(B, K, H, E),
        limit_BQ=np.take_along_axis(rank_BK, at_BQ, 1),
        rank_BK=rank_BK,
        segment_BQ=integers(0, 2, (B, Q)),
        segment_BK=integers(0, 2, (B, K)),
        query_position_BQ=at_BQ if chosen else None,
        rows_B=np.arange(B, dtype=np.int32),
        dropout=AttentionDropout(jnp.uint32(1), config.attention_dropout, 1)
        if config.attention_dropout
        else None,
        save=config.saves_probabilities,
        **terms,
    )
