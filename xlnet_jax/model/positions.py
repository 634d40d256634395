"""Learned positions, sinusoids, rotary positions, and the sinusoids of relative positions with
their projection for both reading directions.

    R(d) = [sin(d w_0 .. d w_{D/2-1}), cos(d w_0 .. d w_{D/2-1})],   w_m = 10000^(-2m / D)

The distance from query i to key j is d = M + i - j (positive: the key is in the past), negated if
the row's text is reversed. Sine is odd and cosine even, so R(-d) = [-sin, cos]: one projection of
each half serves both directions.

The table has N = K + T - 1 rows, row n for the distance K - 1 - n.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.model.layers import Depth, PrecastKernel, accumulator, parameter, product


def learned(
    module: nn.Module,
    longest: int,
    width: int,
    place_BT: jax.Array | int,
    depth: Depth,
    first: int = 0,
) -> jax.Array:
    """Declares learned positions on `module` and returns them, [B, T, width] in float32.

    Args:
      longest: number of places of a text.
      place_BT: places in the text; a number T stands for the first T places.
      first: row of place 0 in the table.
    """
    table_ND = parameter(
        module, "position_embedding", (first + longest, width), (None, "embed"), "table", depth
    )
    if isinstance(place_BT, int):
        return table_ND[None, first : first + place_BT]
    # The whole table, as in `embeddings.lookup`.
    return nn.with_logical_constraint(table_ND, (None, None))[first + place_BT]


def absolute_sinusoids(place_BT: jax.Array, width: int, dtype: jnp.dtype) -> jax.Array:
    """Returns sin(t w_m) at 2m and cos(t w_m) at 2m + 1, [B, T, width] (Vaswani et al. 2017,
    section 3.5).
    """
    frequency_M = 10000.0 ** (-jnp.arange(0, width, 2).astype(dtype) / width)
    angle_BTM = place_BT[:, :, None].astype(dtype) * frequency_M[None, None]
    return jnp.stack([jnp.sin(angle_BTM), jnp.cos(angle_BTM)], axis=-1).reshape(
        *place_BT.shape, width
    )


class Turns(NamedTuple):
    """Cosines and sines of rotary angles at N positions, [2, B, N, E / 2]: of global layers, and of
    layers with a window.
    """

    cos_2BNF: jax.Array
    sin_2BNF: jax.Array

    def turn(self, x_BNHE: jax.Array, local: jax.Array | int) -> jax.Array:
        """Turns the pairs (m, E / 2 + m) of the elements of each head, in at least float32; `local`
        is 1 in a layer with a window, else 0.
        """
        cos_BN1F, sin_BN1F = (x_2BNF[local][:, :, None] for x_2BNF in self)
        first, second = jnp.split(x_BNHE.astype(cos_BN1F.dtype), 2, axis=-1)
        turned = first * cos_BN1F - second * sin_BN1F, second * cos_BN1F + first * sin_BN1F
        return jnp.concatenate(turned, axis=-1).astype(x_BNHE.dtype)


def turns(config: ModelConfig, position_BN: jax.Array) -> Turns:
    """Returns the rotary angles t theta^(-2m / E) at the positions t (Su et al. 2021, section 3.2).

    As in transformers, the elements of a pair are half a head apart; they are not neighbours.
    """
    dtype = accumulator(jnp.dtype(config.compute_dtype))
    theta_21 = jnp.array([[config.theta], [config.theta_local]], dtype)
    share_1F = jnp.arange(0, config.head_dim, 2).astype(dtype)[None] / config.head_dim
    frequency_2F = theta_21**-share_1F
    angle_2BNF = position_BN[None, :, :, None].astype(dtype) * frequency_2F[:, None, None]
    return Turns(jnp.cos(angle_2BNF), jnp.sin(angle_2BNF))


def sinusoids(config: ModelConfig, segment_len: int, memory_len: int) -> jax.Array:
    """Returns sinusoids of all relative distances, largest first: [N, D],
    N = memory_len + 2 * segment_len - 1, D is sines, then cosines.

    With `clamp_len` distances are clipped to +-clamp_len. At least float32: in bfloat16 nearly half
    of the distances of a published segment would be equal.

    Source: Transformer-XL, appendix B; `relative_positional_encoding` of the original.
    """
    width, clamp_len = config.d_model, config.clamp_len
    dtype = accumulator(jnp.dtype(config.compute_dtype))
    keys = memory_len + segment_len
    distance_N = jnp.arange(keys - 1, -segment_len, -1).astype(dtype)
    if clamp_len > 0:
        distance_N = jnp.clip(distance_N, -clamp_len, clamp_len)
    frequency = 10000.0 ** (-jnp.arange(0, width, 2).astype(dtype) / width)
    angle = distance_N[:, None] * frequency[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def project(
    table_SND: jax.Array, kernel_DHE: jax.Array | PrecastKernel
) -> tuple[jax.Array, jax.Array]:
    """Returns the odd and the even part of the position keys, [S, N, H, E] each:
    even + odd = W_r R(d), and even - odd = W_r R(-d).

    S is 1, or B if each row has its own table. The parts are at least float32, like the sums over
    rows in their gradient.
    """
    S, N, D = table_SND.shape
    table_SNZD = table_SND.reshape(S, N, 2, -1)
    kernel_ZDHE = jax.tree.map(lambda x_DHE: x_DHE.reshape(2, D // 2, *x_DHE.shape[1:]), kernel_DHE)
    odd_SNHE, even_SNHE = product(
        "snzd,zdhe->zsnhe", table_SNZD, kernel_ZDHE, accumulator(table_SND.dtype)
    )
    return odd_SNHE, even_SNHE


def of_directions(odd_1NHE: jax.Array, even_1NHE: jax.Array, direction_B: jax.Array) -> jax.Array:
    """Returns the position keys of each row in its direction, [B, N, H, E].

    They are a product of signs and parts, so the sum over the rows in the gradient is a product
    too, which is much faster on a CPU. Heads are in front, where XLA needs them on a CPU.
    """
    signs_B2 = jnp.stack([direction_B, jnp.ones_like(direction_B)], axis=1).astype(odd_1NHE.dtype)
    parts_ZHNE = jnp.concatenate([odd_1NHE, even_1NHE]).transpose(0, 2, 1, 3)
    return product("bz,zhne->bhne", signs_B2, parts_ZHNE).transpose(0, 2, 1, 3)
