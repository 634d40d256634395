"""From vectors at the targets to negative log-likelihoods.

The softmax is tied to the word embedding and has a bias of its own; there is no transform layer in between
(`lm_loss` of the original). Training asks only for `nll`, so that a fused or adaptive loss fits behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.model.layers import accumulator


def logits(params: Mapping[str, Any], vectors_BPD: jax.Array) -> jax.Array:
    """[B, P, V], accumulated in at least float32: for tests, generation and export."""
    high = accumulator(vectors_BPD.dtype)
    table_VD = params["word_embedding"].astype(vectors_BPD.dtype)
    logits_BPV = jnp.einsum("bpd,vd->bpv", vectors_BPD, table_VD, preferred_element_type=high)
    logits_BPV = logits_BPV + params["lm_bias"].astype(high)[None, None]
    return nn.with_logical_constraint(logits_BPV, ("batch", None, "vocab"))


def nll(params: Mapping[str, Any], vectors_BPD: jax.Array, target_tokens_BP: jax.Array) -> jax.Array:
    """-log p(target) in nats: [B, P], at least float32."""
    logits_BPV = logits(params, vectors_BPD)
    chosen_BP1 = jnp.take_along_axis(logits_BPV, target_tokens_BP[..., None], axis=-1)
    return jax.nn.logsumexp(logits_BPV, axis=-1) - chosen_BP1[..., 0]
