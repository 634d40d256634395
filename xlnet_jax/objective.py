"""Permutation language modelling: the query stream at every target predicts the token that stands there.

    max  E_z [ sum_t log p(x_{z_t} | x_{z_<t}) ]   over the last targets of the factorisation order z   (XLNet, eq. 5)

Losses are summed, and divided once by the summed weights: a row with fewer real targets weighs less, as it should,
whatever the number of devices (the 2019 code averages the means of the cores).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.model import heads
from xlnet_jax.model.transformer import XLNet


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums:
    """What one segment adds up to."""

    loss: jax.Array
    """Sum of weighted negative log-likelihoods, nats."""
    weight: jax.Array
    """Sum of target weights."""
    memory: Memory
    """For the next segment."""


def sums(
    model: XLNet, params: Any, batch: Batch, memory: Memory, dropout_key: jax.Array | None = None
) -> Sums:  # fmt: skip
    """Runs the model on a segment; without a `dropout_key` dropout is off."""
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    out = model.apply({"params": params}, batch, memory, deterministic=dropout_key is None, rngs=rngs)
    nll_BP = heads.nll(params, out.target_vectors_BPD, batch.target_tokens)
    weight_BP = batch.target_weights.astype(nll_BP.dtype)
    # The inner `where` keeps an unused slot's gradient exactly 0, whatever its likelihood is.
    loss = jnp.sum(jnp.where(weight_BP > 0, nll_BP, 0) * weight_BP)
    return Sums(loss, jnp.sum(weight_BP), out.memory)


def mean_loss(
    params: Any, model: XLNet, batch: Batch, memory: Memory, dropout_key: jax.Array | None = None
) -> tuple[jax.Array, Sums]:
    """Mean over the targets, nats per token, and the sums behind it: what training differentiates."""
    result = sums(model, params, batch, memory, dropout_key)
    return result.loss / jnp.maximum(result.weight, 1), result
