"""Checksums of arrays, computed on the devices of the arrays; equal for every mesh and number of
processes.

The checksum of an array is its dtype, its shape, and four sums modulo 2^32. Each sum adds the
hashes of all elements. The hash of an element depends on its bits and its position in the whole
array. A sum has no order, so every device sums its own part. One changed element always changes
each of the four sums; several changed elements leave all four sums unchanged with a probability of
2^-128. The checksum detects accidents, not forgery.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xlnet_jax.distributed import mesh as meshes

SALTS = np.array([0x9E3779B9, 0x3C6EF372, 0xDAA66D2B, 0x78DDE6E4], np.uint32)
_PART = 2**18  # elements
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def of_trees(
    trees: Any, shapes: dict[str, tuple[int, ...]] | None = None
) -> tuple[dict[str, str], list[str]]:
    """The checksum of every array by its path, such as `params/embedding`, and the paths of
    non-finite arrays.

    All processes of a run must call this function together; each gets the results of the whole
    arrays. Waits for the devices. An array with an entry in `shapes` is cut to this shape, from its
    first elements.
    """
    arrays = by_path(trees)
    shapes = {name: array.shape for name, array in arrays.items()} | (shapes or {})
    in_memory = {name: np.asarray(array) for name, array in arrays.items() if _in_memory(array)}
    on_devices = {name: array for name, array in arrays.items() if name not in in_memory}
    sums = {}
    finite = {}
    if on_devices:
        compiled = _compiled(_everywhere(on_devices), tuple(shapes.items()))
        sums, finite = jax.device_get(meshes.settled(compiled(on_devices)))
    for name, array in in_memory.items():
        sums[name], finite[name] = sums_in_memory(_first(array, shapes[name]))
    checksums = {
        name: f"{form(array, shapes[name])} {sums[name].astype('>u4').tobytes().hex()}"
        for name, array in arrays.items()
    }
    return checksums, [name for name in arrays if not finite[name]]


def _in_memory(array: Any) -> bool:
    """Whether an array is in the memory of this process, whole and without another device."""
    if isinstance(array, np.ndarray):
        return True
    return array.is_fully_addressable and [
        device.platform for device in array.sharding.device_set
    ] == ["cpu"]


def sums_in_memory(array: np.ndarray) -> tuple[np.ndarray, bool]:
    """`sums_of` an array and whether it is finite, computed in parts: XLA for CPUs would need five
    times the memory of the array.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    sums = np.zeros(len(SALTS), np.uint32)
    finite = True
    at = 1
    for part in np.split(flat, range(_PART, len(flat), _PART)):
        finite &= bool(np.isfinite(part).all())
        words = (
            part if part.dtype == bool else part.view(np.dtype(_UNSIGNED[part.dtype.itemsize]))
        ).astype(np.uint32)
        position = _mixed(np.arange(at, at + len(words)).astype(np.uint32))
        sums += _summed(words, position)
        at += len(words)
    return sums, finite


def by_path(trees: Any) -> dict[str, Any]:
    """The leaves of a tree by their path."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(trees)}


def name_of(path: Any) -> str:
    """The name of a leaf with this path in JAX's form, such as `params/embedding`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def form(array: Any, shape: tuple[int, ...] | None = None) -> str:
    """Dtype and shape of an array, such as `float32[2,3]`; `shape` replaces its shape."""
    return f"{np.dtype(array.dtype).name}[{','.join(map(str, shape or array.shape))}]"


def _first(array: Any, shape: tuple[int, ...]) -> Any:
    """An array cut to `shape`, from its first elements."""
    return array[tuple(map(slice, shape))]


def _everywhere(arrays: dict[str, Any]) -> NamedSharding | None:
    """The sharding of the sums: whole on every device of the arrays, because each process reads the
    sums.
    """
    sharding = next(iter(arrays.values())).sharding
    return (
        NamedSharding(sharding.mesh, PartitionSpec())
        if isinstance(sharding, NamedSharding)
        else None
    )


@functools.lru_cache(maxsize=4)
def _compiled(
    out_sharding: NamedSharding | None, shapes: tuple[tuple[str, tuple[int, ...]], ...]
) -> Any:
    def sums_and_finite(
        arrays: dict[str, jax.Array],
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        arrays = {name: _first(arrays[name], shape) for name, shape in shapes if name in arrays}
        return jax.tree.map(sums_of, arrays), {
            name: jnp.isfinite(array).all() for name, array in arrays.items()
        }

    return jax.jit(sums_and_finite, out_shardings=out_sharding)


def sums_of(array: jax.Array) -> jax.Array:
    """The four sums of an array: uint32 [4]."""
    is_bool = array.dtype == jnp.bool_
    bits = (
        array if is_bool else jax.lax.bitcast_convert_type(array, _UNSIGNED[array.dtype.itemsize])
    )
    # A 64-bit element is two words, along a last axis.
    words = bits.astype(jnp.uint32)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = np.uint32(int(np.prod(words.shape[axis + 1 :], dtype=np.int64)) & 0xFFFFFFFF)
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * stride
    position = _mixed(position + np.uint32(1))
    return _summed(words, position)


def _summed(words: Any, position: Any) -> Any:
    """The four sums of words and their hashed positions."""
    # One sum with a leading axis, not four sums: less to compile.
    mixed = _mixed(words[None] ^ (position[None] + SALTS.reshape(-1, *[1] * words.ndim)))
    return mixed.sum(axis=tuple(range(1, mixed.ndim)), dtype=np.uint32)


def _mixed(word: Any) -> Any:
    """The last steps of MurmurHash3: a permutation of the 32-bit words in which every bit of the
    result depends on all bits.
    """
    word ^= word >> 16
    word *= np.uint32(0x85EBCA6B)
    word ^= word >> 13
    word *= np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
