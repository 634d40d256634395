"""Dropout as a function of indices: any block, shard or implementation draws the same masks.

A hash chain that starts at a key decides whether the element with the indices (i, j, ..) is kept:

    h_0 = key        h_{n+1} = mix(h_n ^ (index_n * 0x9E3779B9))        kept <=> h < threshold

in 32-bit unsigned arithmetic; mix is `lowbias32` of Wellons' hash-prospector, a permutation of
32-bit words in which every output bit depends on all input bits. A kept element is multiplied by
2^32 / threshold, the exact inverse of the probability of keeping it, so that its expectation is
unchanged.

mix starts and ends with `fold`, which is linear and its own inverse, so two folds in a row cancel.
The code folds an index before it broadcasts the index over an array, and carries the word fold(h).

The indices are global: row of the global batch, head, position in the segment, key or feature. No
index depends on a block, a shard or a list of targets. In rows of several documents, the number of
the document and the position in it replace row and position, so no index depends on the packing.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

GOLDEN = np.uint32(0x9E3779B9)
"""2^32 divided by the golden ratio, made odd: consecutive indices become distant words."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionDropout:
    """The dropout of attention probabilities in one stream of one layer."""

    key: jax.Array
    """uint32 []: one key per layer and step, for both streams."""
    rate: float = dataclasses.field(metadata={"static": True})
    stream: int = dataclasses.field(metadata={"static": True})
    """0 content, 1 query: a query and the content at its position have different masks."""
    first_head: int | jax.Array = 0
    """Number of the first head of the call, if the call has only some of the heads."""

    def __call__(
        self,
        probability_BHQK: jax.Array,
        rows_BQ: jax.Array,
        position_BQ: jax.Array,
        position_BK: jax.Array,
    ) -> jax.Array:
        """Drops some of the probabilities; the indices are from `xla.Arguments.mask_indices`."""
        H = probability_BHQK.shape[1]
        return drop(
            probability_BHQK,
            self.rate,
            self.key,
            jnp.uint32(self.stream),
            rows_BQ[:, None, :, None],
            (self.first_head + jnp.arange(H))[None, :, None, None],
            position_BQ[:, None, :, None],
            position_BK[:, None, None],
        )


def drop(x: jax.Array, rate: float, key: jax.Array, *indices: jax.Array) -> jax.Array:
    """Replaces a share `rate` of the elements of x by 0 and scales the others; same shape and
    dtype.

    The indices are integers that together broadcast to the shape of x. The hash has the broadcast
    shape of the indices so far. So pass the index that completes the shape last: the other indices
    then cost almost nothing.
    """

    def masked(x: jax.Array, key: jax.Array, *indices: jax.Array) -> jax.Array:
        # Scale in float32: bfloat16 has no number within 0.1 % of 1 / 0.9.
        scaled = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * upscale(rate)
        return jnp.where(keep(rate, fold(key), *indices), scaled, 0).astype(x.dtype)

    # The backward pass draws the mask again: on a TPU this is faster than writing and reading it,
    # on a CPU as fast.
    return jax.checkpoint(masked, prevent_cse=False)(x, key, *indices)


def keep(rate: float, word: jax.Array, *indices: jax.Array) -> jax.Array:
    """Returns where `drop` keeps an element: bool, of the broadcast shape of word and indices."""
    # fold(x) has the high half of x, which decides the comparison unless it equals the high half of
    # the threshold. In that case the XOR with this half unfolds the low half. 2^31 is subtracted
    # from both sides, because vector units compare signed integers.
    bound = threshold(rate)
    return (advance(word, *indices) ^ np.uint32(bound >> 16 | 2**31)).astype(jnp.int32) < np.int32(
        bound - 2**31
    )


def upscale(rate: float) -> float:
    """Returns the factor of a kept element: 1 / (share kept); 1 for the rate 0."""
    return 2**32 / threshold(rate) if rate else 1.0


def threshold(rate: float) -> int:
    """Returns how many of the 2^32 hash values keep an element: at least 1, and never all."""
    return min(max(round((1 - rate) * 2**32), 1), 2**32 - 1)


def draw_key(rng: jax.Array) -> jax.Array:
    """Draws a key for the masks of one place in the model: uint32 []."""
    # Without the dtype JAX draws 64 bits where JAX_ENABLE_X64 is set.
    return jax.random.bits(rng, dtype=jnp.uint32)


def advance(word: jax.Array, *indices: jax.Array) -> jax.Array:
    """Hashes more indices into the word, which starts as fold(key). Returns uint32 of the broadcast
    shape of word and indices.
    """
    for index in indices:
        word = word ^ fold(index.astype(jnp.uint32) * GOLDEN)
        word *= np.uint32(0x7FEB352D)
        word ^= word >> 15
        word *= np.uint32(0x846CA68B)
    return word


def fold(x: jax.Array) -> jax.Array:
    """Returns x ^ (x >> 16) of uint32.

    Raises TypeError for another dtype: nearly every 64-bit hash is above any threshold.
    """
    if x.dtype != jnp.uint32:
        raise TypeError(f"the key of a dropout mask must be uint32, not {x.dtype}; see draw_key")
    return x ^ x >> 16
