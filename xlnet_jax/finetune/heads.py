"""Parts of task heads. All of them compute in the dtype of their input and return at least float32."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.finetune.task import Hidden
from xlnet_jax.model.layers import Dropout, accumulator, parameter, product


class Linear(nn.Module):
    """x W + b with kernel [in, out], both float32; few outputs, so no axis splits them."""

    config: ModelConfig
    features: int
    bias: bool = True

    @nn.compact
    def __call__(self, *inputs_BQD: jax.Array) -> jax.Array:
        """[B, Q, in] -> [B, Q, out], accumulated in at least float32.

        Several inputs are one, concatenated along the last axis, but not stored so: each has its own Q, and the result
        has all combinations, [B, Q of the first, Q of the second, out].
        """
        width = sum(x.shape[-1] for x in inputs_BQD)
        kernel = parameter(self, "kernel", (width, self.features), ("embed", None))
        high, parts, first = accumulator(inputs_BQD[0].dtype), [], 0
        for x_BQD in inputs_BQD:
            last = first + x_BQD.shape[-1]
            parts.append(product("bqd,dc->bqc", x_BQD, kernel[first:last], high))
            first = last
        y = parts[0] if len(parts) == 1 else parts[0][:, :, None] + parts[1][:, None]
        if self.bias:
            bias = parameter(self, "bias", (self.features,), (None,), nn.initializers.zeros)
            y = y + bias.reshape((1,) * (y.ndim - 1) + (-1,))
        return y


def summary_logits(config: ModelConfig, features: int, hidden: Hidden, *, deterministic: bool) -> jax.Array:
    """Drop(tanh(h W + b)) W' + b' of the vector h at CLS: [B, C, features] of C sequences each, at least float32.

    Call it in a compact method of a head, which gets the parameters `summary` and `logits`, as in transformers'
    XLNetForSequenceClassification.
    """
    x_BCD = hidden.h_BCTD[:, :, -1]
    x_BCD = jnp.tanh(Linear(config, config.d_model, name="summary")(x_BCD)).astype(x_BCD.dtype)
    x_BCD = Dropout(config.dropout, name="summary_dropout")(x_BCD, hidden.rows_B, deterministic=deterministic)
    return Linear(config, features, name="logits")(x_BCD)


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] over the last axis; `label` has the other axes."""
    is_label = jnp.arange(logits.shape[-1]).reshape((1,) * label.ndim + (-1,)) == label[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(is_label, logits, 0).sum(axis=-1)
