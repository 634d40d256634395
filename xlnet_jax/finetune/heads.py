"""Parts of heads, and the head of a classifier, as in transformers.

    summary = Drop(tanh(W h_CLS + b))        logits = V summary + c
    GPT-2:                                   logits = V h_last
    ModernBERT: summary = Drop(LN(act(W h)))     of the mean of a sequence, or of CLS; in the tasks
                                                 of pieces, of every piece

The summary of BERT and ALBERT is their pooler, which the sentence loss of pretraining has trained;
ModernBERT's is its head of pretraining.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.finetune.task import Hidden, Labels
from xlnet_jax.model.heads import transformed
from xlnet_jax.model.layers import HEAD_DEPTH, Dropout, accumulator, parameter, product


def high(x: jax.Array) -> jax.Array:
    """Returns the array in at least float32, the dtype of logits."""
    return x.astype(accumulator(x.dtype))


def dropout_rate(config: ModelConfig) -> float:
    """Returns the dropout rate before the last layer of a head: the rate of the model. ALBERT's
    model has no dropout, so its member has a rate for heads.
    """
    return config.member.parts.sentence_dropout or config.dropout


class Linear(nn.Module):
    """x W + b with kernel [in, out]. The outputs may be two classes only, so they are not split
    over devices.
    """

    config: ModelConfig
    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x_BCD: jax.Array) -> jax.Array:
        """Maps [B, C, in] to [B, C, out], in the dtype of x."""
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
    """The head before its logits, by `parts.summary`: Drop(tanh(W h + b)) with the parameters of a
    `Linear`, or Drop(LN(act(W h + b))) with the parameters of the dense head of pretraining.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, h_BCD: jax.Array, rows_B: jax.Array) -> jax.Array:
        """Returns one vector for each vector, [B, C, D]; `rows_B` as in `Hidden`."""
        config, parts = self.config, self.config.member.parts
        if parts.summary == "head":
            s_BCD = transformed(config, parts, config.d_model, h_BCD)
        else:
            linear = Linear(config, config.d_model)
            nn.share_scope(self, linear)
            s_BCD = jnp.tanh(linear(h_BCD))
        return Dropout(dropout_rate(config))(s_BCD, rows_B)


def pooled(hidden: Hidden, pooling: str) -> jax.Array:
    """Returns one vector for each sequence, [B, C, D], at least float32: `mean` or `max` over all
    pieces with SEP and CLS, or the vector of the piece `cls` or `last`.
    """
    if pooling in ("cls", "last"):
        return high(hidden.cls_BCD if pooling == "cls" else hidden.last_BCD)
    h_BCTD = high(hidden.h_BCTD)
    if pooling == "max":
        return jnp.where(hidden.real_BCT[:, :, :, None], h_BCTD, -jnp.inf).max(axis=2)
    real_BCT = hidden.real_BCT.astype(h_BCTD.dtype)
    return jnp.einsum("bct,bctd->bcd", real_BCT, h_BCTD) / real_BCT.sum(axis=2)[:, :, None]


class Classifier(nn.Module):
    """Computes `outputs` logits for each sequence of a row from the `Summary` of its vector of CLS,
    or of its `pooled` vector with `parts.summary=head`; without CLS, from its last vector.
    """

    config: ModelConfig
    outputs: int
    loss: Any
    """A function from logits_BCO, in at least float32, and `labels["label"]` to loss_B."""
    pooling: str

    def setup(self) -> None:
        """Declares summary/{kernel,bias} and logits/{kernel,bias}; without CLS only
        logits/kernel.
        """
        summarised = self.config.member.cls != "none"
        self.summary = Summary(self.config) if summarised else None
        self.logits = Linear(self.config, self.outputs, use_bias=summarised)

    def __call__(self, hidden: Hidden) -> jax.Array:
        """Returns logits_BCO, at least float32."""
        pools = self.config.member.parts.summary == "head"
        read_BCD = pooled(hidden, self.pooling) if pools else hidden.cls_BCD
        if self.summary:
            read_BCD = self.summary(read_BCD, hidden.rows_B)
        return self.logits(high(read_BCD))

    def losses(self, hidden: Hidden, labels: Labels) -> jax.Array:
        """Returns loss_B."""
        return self.loss(self(hidden), labels["label"])

    def predictions(self, hidden: Hidden) -> Labels:
        """Returns `logits` [B, C, O]."""
        return {"logits": self(hidden)}


def cross_entropy(logits_BCO: jax.Array, label_B: jax.Array) -> jax.Array:
    """Returns -log softmax at the label. The classes are the outputs of one sequence, or the single
    outputs of several sequences.
    """
    logits_BN = logits_BCO.reshape(len(logits_BCO), -1)
    is_label_BN = jnp.arange(logits_BN.shape[1])[None] == label_B[:, None]
    return jax.nn.logsumexp(logits_BN, axis=1) - jnp.where(is_label_BN, logits_BN, 0).sum(axis=1)


def binary_cross_entropy(logits_BCO: jax.Array, label_BO: jax.Array) -> jax.Array:
    """Returns the mean of -log p(label) over the outputs of one sequence; p is a sigmoid, a label
    is 0 or 1.
    """
    logits_BO = logits_BCO[:, 0]
    return (jax.nn.softplus(logits_BO) - logits_BO * label_BO).mean(axis=1)


def squared_error(logits_BCO: jax.Array, label_B: jax.Array) -> jax.Array:
    """Returns (output - label)^2."""
    return (logits_BCO[:, 0, 0] - label_B) ** 2
