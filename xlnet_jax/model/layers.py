"""Parts of every layer: parameters with logical axes, LayerNorm, dropout, dense layers and the feed-forward part."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels.dropout import drop


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """dtype of softmax, LayerNorm, positions, logits and loss: float32, or float64 if the computation is float64."""
    return jnp.promote_types(dtype, jnp.float32)


def parameter(
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: jnp.dtype,
    initializer: Callable[..., jax.Array] | None = None,
) -> jax.Array:
    """Declares a float32 parameter with logical `axes`, normal(0, init_std) by default; returns it in `dtype`."""
    config: ModelConfig = module.config  # type: ignore[attr-defined]
    init = nn.with_logical_partitioning(initializer or nn.initializers.normal(config.init_std), axes)
    value: Any = module.param(name, init, shape, jnp.float32)
    if dtype == jnp.bfloat16:
        # The same rounding, as an operation in float32. If the TPU compiler sees only the conversion, it converts the
        # parameters of all layers before the scan over layers, and keeps those copies for the whole step.
        value = jax.lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)
    return value.astype(dtype)


def layer_norm(name: str, config: ModelConfig) -> nn.LayerNorm:
    """LayerNorm in at least float32; every device holds its two vectors whole."""
    return nn.LayerNorm(
        name=name,
        epsilon=config.layer_norm_epsilon,
        dtype=accumulator(jnp.dtype(config.compute_dtype)),
        use_fast_variance=False,
        scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("norm",)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)),
    )


ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}


class Dropout(nn.Module):
    """Dropout whose masks are functions of (key, row, position, feature); see `kernels.dropout`.

    Every call draws a key from the rng `dropout`. So the masks of a row are the same in any micro-batch and shard, and
    do not depend on the target slot of a position.
    """

    rate: float

    @nn.compact
    def __call__(
        self, x_BQF: jax.Array, rows_B: jax.Array, position_BQ: jax.Array | None = None, *, deterministic: bool
    ) -> jax.Array:
        """Drops elements of x.

        Args:
          rows_B: row numbers in the global batch.
          position_BQ: positions in the segment along the second axis; None: 0, 1, 2 and so on.
        """
        if deterministic or not self.rate:
            return x_BQF
        _, Q, F = x_BQF.shape
        position_BQ = jnp.arange(Q)[None] if position_BQ is None else position_BQ
        key = jax.random.bits(self.make_rng("dropout"))
        indices = rows_B[:, None, None], position_BQ[:, :, None], jnp.arange(F)[None, None]
        return drop(x_BQF, self.rate, key, *indices)


class Dense(nn.Module):
    """x W + b with kernel [in, out]."""

    config: ModelConfig
    features: int
    axes: tuple[str, str]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in] -> [..., out]."""
        kernel = parameter(self, "kernel", (x.shape[-1], self.features), self.axes, x.dtype)
        bias = parameter(self, "bias", (self.features,), self.axes[1:], x.dtype, nn.initializers.zeros)
        return jnp.dot(x, kernel) + jnp.expand_dims(bias, tuple(range(x.ndim - 1)))


class FeedForward(nn.Module):
    """LN( x + Drop( W2 Drop(act(W1 x + b1)) + b2 ) ): post-norm, shared by both streams."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        other_BPD: jax.Array | None,
        rows_B: jax.Array,
        target_BP: jax.Array,
        *,
        deterministic: bool,
    ) -> tuple:
        """The content stream and the query stream (or None) through the same weights."""
        config = self.config
        inner = Dense(config, config.d_ff, ("embed", "ff"), name="inner")
        outer = Dense(config, config.d_model, ("ff", "embed"), name="outer")
        norm = layer_norm("norm", config)

        def apply(x: jax.Array, position_BQ: jax.Array | None) -> jax.Array:
            y = ACTIVATIONS[config.activation](inner(x))
            y = Dropout(config.activation_dropout)(y, rows_B, position_BQ, deterministic=deterministic)
            y = Dropout(config.dropout)(outer(y), rows_B, position_BQ, deterministic=deterministic)
            return norm(x + y).astype(x.dtype)

        return apply(x_BTD, None), None if other_BPD is None else apply(other_BPD, target_BP)
