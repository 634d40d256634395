"""Parts of heads, and the head of a classifier, as transformers has them.

    summary = Drop(tanh(W h_CLS + b))        logits = V summary + c
    GPT-2:                                   logits = V h_last

BERT's and ALBERT's summary is their pooler, which their second loss has pretrained.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.finetune.task import Hidden, Labels
from xlnet_jax.model.layers import HEAD_DEPTH, Dropout, accumulator, parameter, product


def high(x: jax.Array) -> jax.Array:
    """In at least float32, as logits are computed."""
    return x.astype(accumulator(x.dtype))


def dropout_rate(config: ModelConfig) -> float:
    """Of what the last layer of a head reads: that of the model, but ALBERT, which has none, has
    one here.
    """
    return config.member.parts.sentence_dropout or config.dropout


class Linear(nn.Module):
    """x W + b with kernel [in, out]; the outputs are not split over devices, as they may be two
    classes.
    """

    config: ModelConfig
    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x_BCD: jax.Array) -> jax.Array:
        """[B, C, in] -> [B, C, out], in the dtype of x."""
        shape = x_BCD.shape[-1], self.features
        kernel_DO = parameter(self, "kernel", shape, ("embed", None), "kernel", HEAD_DEPTH)
        y_BCO = product("bcd,do->bco", x_BCD, kernel_DO)
        if self.use_bias:
            bias_O = parameter(
                self,
                "bias",
                shape[1:],
                (None,),
                "vector",
                HEAD_DEPTH,
                nn.initializers.zeros,
                decays=False,
            )
            y_BCO = y_BCO + bias_O[None, None].astype(y_BCO.dtype)
        return y_BCO


class Summary(nn.Module):
    """Drop(tanh(W h + b)) of the vector of CLS; its parameters are those of a `Linear`."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: Hidden, *, deterministic: bool) -> jax.Array:
        """[B, C, D]: one for each sequence."""
        linear = Linear(self.config, self.config.d_model)
        nn.share_scope(self, linear)
        s_BCD = jnp.tanh(linear(hidden.cls_BCD))
        return Dropout(dropout_rate(self.config))(s_BCD, hidden.rows_B, deterministic=deterministic)


class Classifier(nn.Module):
    """`outputs` numbers for each sequence of a row, from its `Summary`, or from its last vector
    alone.
    """

    config: ModelConfig
    outputs: int
    loss: Any
    """(logits_BCO in at least float32, labels["label"]) -> loss_B."""

    def setup(self) -> None:
        """The parameters: summary/{kernel,bias}, logits/{kernel,bias}; without CLS
        logits/kernel.
        """
        summarised = self.config.member.cls != "none"
        self.summary = Summary(self.config) if summarised else None
        self.logits = Linear(self.config, self.outputs, use_bias=summarised)

    def __call__(self, hidden: Hidden, *, deterministic: bool) -> jax.Array:
        """logits_BCO, at least float32."""
        read_BCD = (
            self.summary(hidden, deterministic=deterministic) if self.summary else hidden.cls_BCD
        )
        return self.logits(high(read_BCD))

    def losses(self, hidden: Hidden, labels: Labels, *, deterministic: bool) -> jax.Array:
        """loss_B."""
        return self.loss(self(hidden, deterministic=deterministic), labels["label"])

    def predictions(self, hidden: Hidden) -> dict[str, jax.Array]:
        """`logits` [B, C, O]."""
        return {"logits": self(hidden, deterministic=True)}


def cross_entropy(logits_BCO: jax.Array, label_B: jax.Array) -> jax.Array:
    """-log softmax at the label; the classes are the outputs of one sequence, or one of each
    sequence.
    """
    logits_BN = logits_BCO.reshape(len(logits_BCO), -1)
    is_label_BN = jnp.arange(logits_BN.shape[1])[None] == label_B[:, None]
    return jax.nn.logsumexp(logits_BN, axis=1) - jnp.where(is_label_BN, logits_BN, 0).sum(axis=1)


def binary_cross_entropy(logits_BCO: jax.Array, label_BO: jax.Array) -> jax.Array:
    """The mean over the outputs of one sequence of -log p(label), 0 or 1; p is a sigmoid."""
    logits_BO = logits_BCO[:, 0]
    return (jax.nn.softplus(logits_BO) - logits_BO * label_BO).mean(axis=1)


def squared_error(logits_BCO: jax.Array, label_B: jax.Array) -> jax.Array:
    """(output - label)^2."""
    return (logits_BCO[:, 0, 0] - label_B) ** 2
