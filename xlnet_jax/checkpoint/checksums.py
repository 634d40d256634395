"""Checksums of arrays, the same for every mesh and number of processes, computed where the arrays are.

The checksum of an array is its dtype, its shape, and four sums modulo 2^32 over its elements: of a mixture of the
element's bits with its place in the whole array. A sum has no order, so every device sums its own part. One different
element always changes each of the four sums; several leave all four unchanged with a probability of 2^-128. This
detects accidents, not forgery.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

SALTS = tuple(np.uint32(salt) for salt in (0x9E3779B9, 0x3C6EF372, 0xDAA66D2B, 0x78DDE6E4))
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def of_trees(trees: Any) -> tuple[dict[str, str], list[str]]:
    """The checksum of every array by its path, such as `params/embedding`, and the paths of non-finite arrays.

    All processes of a run must call it together; each gets the answers for the whole arrays. Waits for the devices.
    """
    arrays = {name: array for name, array in by_path(trees).items() if isinstance(array, jax.Array | np.ndarray)}
    if not arrays:
        return {}, []
    sums, finite = jax.device_get(_compiled(_everywhere(arrays))(arrays))
    digits = {name: "".join(f"{word:08x}" for word in words.tolist()) for name, words in sums.items()}
    checksums = {name: f"{form(array)} {digits[name]}" for name, array in arrays.items()}
    return checksums, [name for name in arrays if not finite[name]]


def by_path(trees: Any) -> dict[str, Any]:
    """The leaves of a tree by their path."""
    leaves = jax.tree_util.tree_leaves_with_path(trees)
    return {name_of(path): leaf for path, leaf in leaves}


def name_of(path: Any) -> str:
    """Of a leaf, from its path in JAX's form."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def form(array: Any) -> str:
    """Dtype and shape, such as `float32[2,3]`."""
    return f"{np.dtype(array.dtype).name}[{','.join(map(str, array.shape))}]"


def _everywhere(arrays: dict[str, Any]) -> NamedSharding | None:
    """The sharding of the sums: on every device of the arrays, so that each process can read them."""
    sharding = getattr(next(iter(arrays.values())), "sharding", None)
    return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None


@functools.lru_cache(maxsize=4)
def _compiled(out_sharding: NamedSharding | None) -> Any:
    def sums_and_finite(arrays: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        return jax.tree.map(sums_of, arrays), {name: jnp.isfinite(array).all() for name, array in arrays.items()}

    return jax.jit(sums_and_finite, out_shardings=out_sharding)


def sums_of(array: jax.Array) -> jax.Array:
    """The four sums of an array: uint32 [4]."""
    words = _words(array)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = np.uint32(int(np.prod(words.shape[axis + 1 :], dtype=np.int64)) & 0xFFFFFFFF)
        place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * stride
    place = _mixed(place + np.uint32(1))
    # One sum with a leading axis, and not four: less to compile.
    salts = np.array(SALTS, np.uint32).reshape(-1, *[1] * words.ndim)
    mixed = _mixed(words[None] ^ (place[None] + salts))
    return mixed.sum(axis=tuple(range(1, mixed.ndim)), dtype=jnp.uint32)


def _words(array: jax.Array) -> jax.Array:
    """The bits of every element as uint32; of 64-bit elements two, along a last axis."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    bits = jax.lax.bitcast_convert_type(array, _UNSIGNED[array.dtype.itemsize])
    return bits.astype(jnp.uint32)


def _mixed(word: jax.Array) -> jax.Array:
    """The last steps of MurmurHash3: a permutation of the 32-bit words in which every bit depends on all."""
    word ^= word >> 16
    word *= np.uint32(0x85EBCA6B)
    word ^= word >> 13
    word *= np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
