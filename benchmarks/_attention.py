"""Both streams of one layer's attention, forward and backward: shapes, function, and memory on a
TPU; the blocks that rows of several documents visit.
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
from xlnet_jax.kernels import packing
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.kernels.packing import round_up
from xlnet_jax.kernels.xla import Arguments, NearKeys, PackedKeys, differentiated

RATE = 0.1
DOCUMENTS = {"one": (2048,), "four": (512,) * 4, "five": (64, 512, 512, 512, 448)}
"""Lengths of the documents in a row, by their number."""


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


def streams(
    sizes: Sizes,
    dtype: Any,
    sharding: Any = None,
    packed: bool = False,
    relative: bool = True,
    near: bool = False,
) -> list[Arguments]:
    """Shapes of the arguments of content and query stream; directions and segments differ between
    rows.

    Args:
      packed: rows hold several documents.
      relative: scores have the position and the segment term.
      near: layers may have a window.
    """
    B, T, H, E = sizes.B, sizes.T, sizes.H, sizes.E
    K = sizes.M + T

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    terms: dict[str, Any] = {}
    if relative:
        terms["position"] = *(array(jnp.float32, 1, K + T - 1, H, E),) * 2, array(jnp.int32, B)
        names = ("content", "position", "segment")
        terms["biases"] = {f"{name}_bias": array(jnp.float32, H, E) for name in names}
        terms["segment_2HE"] = array(jnp.float32, 2, H, E)

    def stream(Q: int, chosen: bool) -> Arguments:
        places = array(jnp.int32, B, Q), array(jnp.int32, B, K)
        return Arguments(
            q_BQHE=array(dtype, B, Q, H, E),
            k_BKHE=array(dtype, B, K, H, E),
            v_BKHE=array(dtype, B, K, H, E),
            **terms,
            near=NearKeys(array(jnp.int32), *places) if near else None,
            limit_BQ=array(jnp.int32, B, Q),
            rank_BK=array(jnp.int32, B, K),
            segment_BQ=array(jnp.int32, B, Q),
            segment_BK=array(jnp.int32, B, K),
            query_position_BQ=array(jnp.int32, B, Q) if chosen else None,
            rows_B=array(jnp.int32, B),
            packed=PackedKeys(*[array(jnp.int32, B, Q)] * 3, array(jnp.int32, B, K))
            if packed
            else None,
        )

    return [stream(T, chosen=False), stream(sizes.P, chosen=True)]


def in_documents(stream: Arguments, lengths: tuple[int, ...]) -> Arguments:
    """The integers of rows of documents of these lengths, with targets in equal distances."""
    (B, Q), T, rng = stream.limit_BQ.shape, sum(lengths), np.random.default_rng(0)
    starts, chosen = np.cumsum([0, *lengths[:-1]]), stream.query_position_BQ is not None
    floor_T, at_Q = np.repeat(starts, lengths), np.arange(Q) * T // Q
    rank_T = np.concatenate(
        [start + rng.permutation(n) for start, n in zip(starts, lengths, strict=True)]
    )

    def rows(x_N: np.ndarray) -> np.ndarray:
        return np.tile(x_N, (B, 1)).astype(np.int32)

    return dataclasses.replace(
        stream,
        limit_BQ=rows(rank_T[at_Q] + (not chosen)),
        rank_BK=rows(rank_T),
        segment_BQ=rows(0 * at_Q),
        segment_BK=rows(0 * rank_T),
        query_position_BQ=rows(at_Q) if chosen else None,
        packed=PackedKeys(
            rows(floor_T[at_Q]),
            rows(floor_T[at_Q]),
            rows((np.arange(T) - floor_T)[at_Q]),
            rows(np.arange(T) - floor_T),
        ),
    )


def in_window(stream: Arguments, size: int) -> Arguments:
    """The integers of rows of one text, in a layer with a window of this size."""
    row = in_documents(stream, (stream.rank_BK.shape[1],))
    near = NearKeys(np.int32(size), row.packed.position_BQ, row.packed.position_BK)
    return dataclasses.replace(row, packed=None, near=near)


def visits(a: Arguments, query_block: int, key_block: int) -> tuple[int, int, int]:
    """How many pairs of blocks the kernels visit: of queries with keys, of keys with queries; and
    all pairs.
    """
    queries = packing.padded_queries(a, round_up(a.limit_BQ.shape[1], query_block))
    keys = packing.padded_keys(a, round_up(a.rank_BK.shape[1], key_block))
    seen_BIJ = packing.seen_blocks(a, queries, keys, query_block, key_block)
    by_queries, by_keys = (
        int(np.sum(last - first + 1))
        for first, last in map(packing.first_and_last, (seen_BIJ, seen_BIJ.swapaxes(1, 2)))
    )
    return by_queries, by_keys, seen_BIJ.size


def train(
    attend: Callable[..., Any], rate: float = RATE
) -> Callable[[list[Arguments], jax.Array], Any]:
    """(streams, key) -> outputs and gradients, for a cotangent that is the output itself. `rate`:
    of dropout.
    """

    def run(both: list[Arguments], key: jax.Array) -> Any:
        results = []
        for number, stream in enumerate(both):
            dropout = AttentionDropout(key, rate, number)
            results.append(
                differentiated(attend, dataclasses.replace(stream, dropout=dropout))[::2]
            )
        return results

    return run


def lowered(
    attend: Callable[..., Any],
    sizes: Sizes,
    device: Any,
    chosen: bool | None = None,
    platform: str = "tpu",
    rate: float = RATE,
    **options: bool,
) -> Any:
    """`train` in bfloat16, lowered for a device that is not here; `chosen`: one stream alone;
    `rate`: of dropout; `options`: of `streams`.
    """
    mesh = Mesh(np.array([device]), ("data",))
    here = NamedSharding(mesh, PartitionSpec())
    key = jax.ShapeDtypeStruct((), jnp.uint32, sharding=here)
    with jax.set_mesh(mesh):
        # A kernel is not for the compiler to split.
        run = jax.shard_map(
            train(attend, rate),
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        both = streams(sizes, jnp.bfloat16, here, **options)
        both = both if chosen is None else both[chosen : chosen + 1]
        return jax.jit(run).trace(both, key).lower(lowering_platforms=(platform,))


def temporaries(
    attend: Callable[..., Any], sizes: Sizes, topology: str, vmem: bool = False, **options: bool
) -> int:
    """Bytes of temporaries on one device, also if they do not fit into its HBM.

    The compiler keeps some temporaries of a small program in the chip's vector memory, as many as
    it has room for, and counts only those in HBM.

    Args:
      vmem: allows it to.
      options: of `streams`.
    """
    flags = {} if vmem else {"xla_vf_vmem_memory_space_assignment": False}
    device = describe(topology).devices[0]
    try:
        compiled = lowered(attend, sizes, device, **options).compile(compiler_options=flags)
    except jax.errors.JaxRuntimeError as error:
        # The message has the bytes.
        return out_of_memory(str(error))[0]
    return compiled.memory_analysis().temp_size_in_bytes
