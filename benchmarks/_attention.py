"""Both streams of one layer's attention, forward and backward: shapes, function, and memory on a
TPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.aot.compile import out_of_memory
from xlnet_jax.aot.topology import describe
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.kernels.xla import Arguments, differentiated

RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of XLNet-Large at 512 tokens."""

    B: int = 2
    T: int = 512
    M: int = 384
    P: int = 85
    H: int = 16
    E: int = 64


def sizes_of(T: int) -> Sizes:
    """One row of T, memory and targets in about the published shares."""
    return Sizes(B=1, T=T, M=T * 3 // 4, P=T // 6)


def streams(sizes: Sizes, dtype: Any, sharding: Any = None) -> list[Arguments]:
    """Shapes of the arguments of content and query stream; directions and segments differ between
    rows.
    """
    B, T, H, E = sizes.B, sizes.T, sizes.H, sizes.E
    K = sizes.M + T

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def stream(Q: int, chosen: bool) -> Arguments:
        return Arguments(
            q_BQHE=array(dtype, B, Q, H, E),
            k_BKHE=array(dtype, B, K, H, E),
            v_BKHE=array(dtype, B, K, H, E),
            position=(*(array(jnp.float32, 1, K + T - 1, H, E),) * 2, array(jnp.int32, B)),
            biases={
                f"{name}_bias": array(jnp.float32, H, E)
                for name in ("content", "position", "segment")
            },
            segment_2HE=array(jnp.float32, 2, H, E),
            limit_BQ=array(jnp.int32, B, Q),
            rank_BK=array(jnp.int32, B, K),
            segment_BQ=array(jnp.int32, B, Q),
            segment_BK=array(jnp.int32, B, K),
            query_position_BQ=array(jnp.int32, B, Q) if chosen else None,
            rows_B=array(jnp.int32, B),
        )

    return [stream(T, chosen=False), stream(sizes.P, chosen=True)]


def train(attend: Callable[..., Any]) -> Callable[[list[Arguments], jax.Array], Any]:
    """(streams, key) -> outputs and gradients, for a cotangent that is the output itself."""

    def run(both: list[Arguments], key: jax.Array) -> Any:
        results = []
        for number, stream in enumerate(both):
            dropout = AttentionDropout(key, RATE, number)
            results.append(
                differentiated(attend, dataclasses.replace(stream, dropout=dropout))[::2]
            )
        return results

    return run


def lowered(attend: Callable[..., Any], sizes: Sizes, device: Any) -> Any:
    """`train` in bfloat16, lowered for a device that is not here."""
    mesh = Mesh(np.array([device]), ("data",))
    here = NamedSharding(mesh, PartitionSpec())
    key = jax.ShapeDtypeStruct((), jnp.uint32, sharding=here)
    with jax.set_mesh(mesh):
        # A kernel is not for the compiler to split.
        run = jax.shard_map(
            train(attend), in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
        )
        return jax.jit(run).lower(streams(sizes, jnp.bfloat16, here), key)


def temporaries(attend: Callable[..., Any], sizes: Sizes, topology: str, vmem: bool = False) -> int:
    """Bytes of temporaries on one device, also if they do not fit into its HBM.

    The compiler keeps some temporaries of a small program in the chip's vector memory, as many as
    it has room for, and counts only those in HBM.

    Args:
      vmem: allows it to.
    """
    options = {} if vmem else {"xla_vf_vmem_memory_space_assignment": False}
    try:
        compiled = lowered(attend, sizes, describe(topology).devices[0]).compile(
            compiler_options=options
        )
    except jax.errors.JaxRuntimeError as error:
        # The message has the bytes.
        return out_of_memory(str(error))[0]
    return compiled.memory_analysis().temp_size_in_bytes
