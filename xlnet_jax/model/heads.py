"""Heads: from vectors of the transformer to predictions. Each declares its own parameters.

A head is above all layers. Training calls only `nll` of the language modelling head, so that a fused or adaptive loss
can replace it.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.kernels import vocabulary_loss
from xlnet_jax.model.layers import accumulator, product

DEPTH = math.inf
"""The depth of a head's parameters: with layer-wise decay they learn at the full rate, as the top layer does."""


class LMHead(nn.Module):
    """The softmax over the vocabulary, tied to the word embedding, with its own bias (`lm_loss` of the original).

    There is no transform layer before it.
    """

    @nn.compact
    def _bias(self, size: int) -> Any:
        return self.param("bias", nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",)), (size,), jnp.float32)

    def __call__(self, table_VD: jax.Array, vectors_BPD: jax.Array) -> jax.Array:
        """Logits [B, P, V], accumulated in at least float32: for tests, generation and export."""
        high = accumulator(vectors_BPD.dtype)
        bias_V = self._bias(len(table_VD))
        logits_BPV = product("bpd,vd->bpv", vectors_BPD, table_VD, high)
        logits_BPV = logits_BPV + bias_V.astype(high)[None, None]
        return nn.with_logical_constraint(logits_BPV, ("batch", None, "vocab"))

    def nll(self, table_VD: jax.Array, vectors_BPD: jax.Array, target_tokens_BP: jax.Array) -> jax.Array:
        """-log p(target) in nats: [B, P], at least float32. Many targets never have all their logits at once."""
        if vocabulary_loss.pays(*target_tokens_BP.shape):
            return vocabulary_loss.nll(table_VD, self._bias(len(table_VD)), vectors_BPD, target_tokens_BP)
        return self.plain_nll(table_VD, vectors_BPD, target_tokens_BP)

    def plain_nll(self, table_VD: jax.Array, vectors_BPD: jax.Array, target_tokens_BP: jax.Array) -> jax.Array:
        """The same from an array of all logits."""
        return plain_nll(self(table_VD, vectors_BPD), target_tokens_BP)


def plain_nll(logits_BPV: jax.Array, target_BP: jax.Array) -> jax.Array:
    """-log p(target) from all logits, [B, P]."""
    # A comparison, not a gather: the vocabulary may be split, and a gather's gradient is a scatter.
    is_target_BPV = jnp.arange(logits_BPV.shape[-1])[None, None] == target_BP[..., None]
    chosen_BP = jnp.where(is_target_BPV, logits_BPV, 0).sum(axis=-1)
    return jax.nn.logsumexp(logits_BPV, axis=-1) - chosen_BP
