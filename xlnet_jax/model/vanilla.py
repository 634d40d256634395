"""Auxiliary losses of the Vanilla Transformer (Al-Rfou et al. 2018, arXiv 1808.04444).

Every layer, not only the last, predicts the next tokens from its own content stream, and every
position predicts several tokens. Each pair of layer and target has its own softmax. Only training
computes these losses, and inference needs none of their parameters. The batch has the weights of
the losses (`batch.Auxiliary`).

The model has no memory, and a segment cannot be longer than in training: evaluation slides one
token at a time.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import Batch
from xlnet_jax.config import ModelConfig
from xlnet_jax.model.heads import plain_nll, weighed
from xlnet_jax.model.layers import HEAD_DEPTH, accumulator, parameter, product


class AuxiliaryHeads(nn.Module):
    """A matrix [V, D] for each further target of the last layer, and for each target of each layer
    below.
    """

    config: ModelConfig
    further: int
    """A, the number of targets besides the next token."""

    @nn.compact
    def __call__(self, streams_LBTD: jax.Array, vectors_BTD: jax.Array, batch: Batch) -> jax.Array:
        """Returns the weighted sum of all auxiliary losses of each row [B], nats, in at least
        float32.

        `streams_LBTD` is the content stream after every layer, `vectors_BTD` the last layer's
        stream after the final dropout; all positions of the batch have a target.
        """
        config, auxiliary = self.config, batch.auxiliary
        assert auxiliary is not None
        size, axes = (config.vocab_size, config.d_model), ("vocab", "embed")
        tokens_BAT = jnp.concatenate([batch.target_tokens[:, None], auxiliary.tokens], axis=1)

        @jax.checkpoint
        def losses(
            vectors_BTD: jax.Array,
            kernel_AVD: jax.Array,
            tokens_BAT: jax.Array,
            weight_BA: jax.Array,
        ) -> jax.Array:
            # One target after the other, and computed again in the backward pass: the logits of all
            # targets would take much memory.
            loss_B = jnp.zeros(len(vectors_BTD), accumulator(vectors_BTD.dtype))
            for target in range(len(kernel_AVD)):
                logits_BTV = product(
                    "bpd,vd->bpv", vectors_BTD, kernel_AVD[target], loss_B.dtype, config.on_cpu
                )
                nll_BT = plain_nll(logits_BTV, tokens_BAT[:, target])
                weight_BT = batch.target_weights * weight_BA[:, target, None]
                loss_B += weighed(nll_BT, weight_BT).sum(axis=1)
            return loss_B

        loss_B = jnp.zeros(len(vectors_BTD), accumulator(vectors_BTD.dtype))
        if self.further:
            further_AVD = parameter(
                self, "further", (self.further, *size), (None, *axes), "kernel", HEAD_DEPTH
            )
            loss_B += losses(
                vectors_BTD, further_AVD, auxiliary.tokens, auxiliary.weights[:, -1, 1:]
            )
        if not config.layer_losses:
            return loss_B
        below = (config.layers - 1, 1 + self.further, *size)
        layers_LAVD = parameter(
            self, "layers", below, ("layers", None, *axes), "kernel", HEAD_DEPTH
        )
        inputs = streams_LBTD[:-1], layers_LAVD, jnp.moveaxis(auxiliary.weights, 1, 0)[:-1]

        def layer(
            loss_B: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, None]:
            stream_BTD, kernel_AVD, weight_BA = inputs
            return loss_B + losses(stream_BTD, kernel_AVD, tokens_BAT, weight_BA), None

        return jax.lax.scan(layer, loss_B, inputs)[0]
