"""Dropout as a function of indices: any block, shard or implementation draws the same masks.

A hash chain that starts at a key decides whether the element with the indices (i, j, ..) is kept:

    h_0 = key        h_{n+1} = mix(h_n ^ (index_n * 0x9E3779B9))        kept <=> h < threshold

in 32-bit unsigned arithmetic; mix is `lowbias32` of Wellons' hash-prospector, a permutation of the
words in which every bit depends on all. A kept element is multiplied by 2^32 / threshold, the
inverse of the exact share of hash values that keep it, so that the expectation is the element
itself.

mix starts and ends with `fold`, which is linear and its own inverse, so two folds in a row cancel.
The code folds an index before the index spreads over an array, and carries the word fold(h).

The indices are global: row of the global batch, head, position in the segment, key or feature. None
of them depends on a block, a shard or a list of targets.
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
    """The number of the first head, if the call has a part of the heads."""

    def __call__(
        self, probability_BHQK: jax.Array, rows_B: jax.Array, position_BQ: jax.Array
    ) -> jax.Array:
        """The probabilities with some of them dropped; `position_BQ`: the queries' positions in the
        segment.
        """
        _, H, _, K = probability_BHQK.shape
        return drop(
            probability_BHQK,
            self.rate,
            self.key,
            jnp.uint32(self.stream),
            rows_B[:, None, None, None],
            (self.first_head + jnp.arange(H))[None, :, None, None],
            position_BQ[:, None, :, None],
            jnp.arange(K)[None, None, None, :],
        )


def drop(x: jax.Array, rate: float, key: jax.Array, *indices: jax.Array) -> jax.Array:
    """x with a share `rate` of its elements replaced by 0 and the others scaled; same shape and
    dtype.

    The indices are integers that together broadcast to the shape of x. The hash has the shape of
    the indices so far: give the index that fills the shape last, and all others cost almost
    nothing.
    """

    def masked(x: jax.Array, key: jax.Array, *indices: jax.Array) -> jax.Array:
        # Scale in float32: bfloat16 has no number within 0.1 % of 1 / 0.9.
        scaled = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * upscale(rate)
        return jnp.where(keep(rate, fold(key), *indices), scaled, 0).astype(x.dtype)

    # The backward pass draws the mask again: on a TPU faster than to write and to read it, on a CPU
    # as fast.
    return jax.checkpoint(masked, prevent_cse=False)(x, key, *indices)


def keep(rate: float, word: jax.Array, *indices: jax.Array) -> jax.Array:
    """Where `drop` keeps an element: bool, of the shape that word and indices broadcast to."""
    # fold(x) has the high half of x. It decides, unless it equals the high half of the threshold;
    # then the low half is unfolded by that known number. Both sides are less 2^31, because vector
    # units compare signed integers.
    bound = threshold(rate)
    return (advance(word, *indices) ^ np.uint32(bound >> 16 | 2**31)).astype(jnp.int32) < np.int32(
        bound - 2**31
    )


def upscale(rate: float) -> float:
    """The factor of a kept element: 1 / share kept; 1 for the rate 0."""
    return 2**32 / threshold(rate) if rate else 1.0


def threshold(rate: float) -> int:
    """The number of the 2^32 hash values that keep an element: at least 1, and never all."""
    return min(max(round((1 - rate) * 2**32), 1), 2**32 - 1)


def draw_key(rng: jax.Array) -> jax.Array:
    """A key for the masks of one place of the model: uint32 []."""
    # Without the dtype JAX draws 64 bits where JAX_ENABLE_X64 is set.
    return jax.random.bits(rng, dtype=jnp.uint32)


def advance(word: jax.Array, *indices: jax.Array) -> jax.Array:
    """Hashes more indices into the word, which starts as fold(key): uint32, of their broadcast
    shape.
    """
    for index in indices:
        word = word ^ fold(index.astype(jnp.uint32) * GOLDEN)
        word *= np.uint32(0x7FEB352D)
        word ^= word >> 15
        word *= np.uint32(0x846CA68B)
    return word


def fold(x: jax.Array) -> jax.Array:
    """x ^ x / 2^16 of uint32.

    Raises TypeError for another dtype: nearly every hash of 64 bits is above every threshold.
    """
    if x.dtype != jnp.uint32:
        raise TypeError(f"the key of a dropout mask must be uint32, not {x.dtype}; see draw_key")
    return x ^ x >> 16
