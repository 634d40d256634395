"""What only the Vanilla Transformer has (Al-Rfou et al. 2018, arXiv 1808.04444), beside its positions in every layer.

Every layer predicts the next tokens from its own content stream, not only the last one, and every position several
tokens, each pair of layer and target with a softmax of its own. Only training computes these auxiliary losses, and
inference needs none of their parameters. The batch says which of them count (`batch.Auxiliary`).

There is no memory, and a segment cannot be longer than in training: evaluation slides one token at a time, and computes
the last layer only for that token.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import Batch
from xlnet_jax.config import ModelConfig
from xlnet_jax.model.attention import AttentionInputs, content_stream
from xlnet_jax.model.heads import plain_nll
from xlnet_jax.model.layers import accumulator, parameter, product
from xlnet_jax.model.transformer import Layer, XLNet, empty_memory


class AuxiliaryHeads(nn.Module):
    """A matrix [V, D] for each further target of the last layer, and for each target of each layer below."""

    config: ModelConfig
    further: int
    """A: targets beside the next token."""

    @nn.compact
    def __call__(self, streams_LBTD: jax.Array, vectors_BTD: jax.Array, batch: Batch) -> jax.Array:
        """The weighted sum of all auxiliary losses of each row [B], nats, in at least float32.

        Args:
          streams_LBTD: content stream after every layer; all positions have a target.
          vectors_BTD: what predicts the next token: the last of them after the final dropout.
          batch: with its `auxiliary`.
        """
        config, auxiliary = self.config, batch.auxiliary
        assert auxiliary is not None
        size, axes = (config.vocab_size, config.d_model), ("vocab", "embed")
        tokens_BAT = jnp.concatenate([batch.target_tokens[:, None], auxiliary.tokens], axis=1)

        @jax.checkpoint
        def losses(vectors_BTD: jax.Array, kernel_AVD: jax.Array, tokens_BAT: jax.Array, weight_BA: jax.Array
                   ) -> jax.Array:  # fmt: skip
            # One target after the other, and computed again backward: the logits of all would take much memory.
            loss_B = jnp.zeros(len(vectors_BTD), accumulator(vectors_BTD.dtype))
            for target in range(len(kernel_AVD)):
                logits_BTV = product("bpd,vd->bpv", vectors_BTD, kernel_AVD[target], accumulator(vectors_BTD.dtype))
                nll_BT = plain_nll(logits_BTV, tokens_BAT[:, target])
                weight_BT = batch.target_weights * weight_BA[:, target, None]
                # The `where` keeps the gradient of a loss that does not count exactly 0.
                loss_B += (jnp.where(weight_BT != 0, nll_BT, 0) * weight_BT).sum(axis=1)
            return loss_B

        loss_B = jnp.zeros(len(vectors_BTD), accumulator(vectors_BTD.dtype))
        if self.further:
            further_AVD = parameter(self, "further", (self.further, *size), (None, *axes))
            loss_B += losses(vectors_BTD, further_AVD, auxiliary.tokens, auxiliary.weights[:, -1, 1:])
        if not config.layer_losses:
            return loss_B
        below = (config.layers - 1, 1 + self.further, *size)
        layers_LAVD = parameter(self, "layers", below, ("layers", None, *axes))
        inputs = streams_LBTD[:-1], layers_LAVD, jnp.moveaxis(auxiliary.weights, 1, 0)[:-1]

        def layer(loss_B: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            stream_BTD, kernel_AVD, weight_BA = inputs
            return loss_B + losses(stream_BTD, kernel_AVD, tokens_BAT, weight_BA), None

        return jax.lax.scan(layer, loss_B, inputs)[0]


def target_vectors(model: XLNet, params: Any, batch: Batch) -> jax.Array:
    """What predicts the targets, [B, P, D], without dropout and memory: the last layer computes only their rows."""
    config, below = model.config, model.config.layers - 1
    lower = last = params["layers"]
    if not config.share_layers:
        lower, last = jax.tree.map(lambda x: x[:below], lower), jax.tree.map(lambda x: x[below], last)
    at_BP, rows_B = batch.target_positions, jnp.arange(len(batch.tokens))
    lower_model = model.clone(config=dataclasses.replace(config, layers=below))
    out: Any = lower_model.apply(
        {"params": {**params, "layers": lower}}, dataclasses.replace(batch, target_positions=at_BP[:, :0]),
        empty_memory(lower_model.config, len(rows_B), 0), deterministic=True,
    )  # fmt: skip
    rank_BP, segment_BP = (jnp.take_along_axis(x, at_BP, axis=1) for x in (batch.rank, batch.segments))
    inputs = AttentionInputs(
        rows_B, batch.direction, batch.rank, batch.segments, (content_stream(rank_BP, segment_BP, at_BP),), at_BP,
        only_BP=at_BP,
    )  # fmt: skip
    layer = Layer(config, model.parts, model.reuse_len, True)
    none_BMD = empty_memory(config, len(rows_B), 0).hidden_LBMD[0]
    return layer.apply({"params": last}, out.hidden_BTD, none_BMD, inputs, None)[0]  # type: ignore[index]
