"""Attention with learned absolute positions (Vanilla Transformer: Al-Rfou et al. 2018, arXiv 1808.04444).

    x_l' = x_l + P_l        s_ij = E^(-1/2) (W_q x_i') . (W_k x_j')

Every layer adds positions P_l [T, D] of its own to its input, residual included: with many layers a signal that is
added only once is lost on the way. There is no memory, and a segment cannot be longer than in training.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels import xla
from xlnet_jax.kernels.dropout import AttentionDropout, draw_key
from xlnet_jax.model.attention import AttentionInputs
from xlnet_jax.model.layers import Dropout, layer_norm, parameter, product


class AbsoluteAttention(nn.Module):
    """Attention, output projection, residual and LayerNorm of the content stream, as in `RelativeAttention`."""

    config: ModelConfig
    positions: int
    """The longest segment."""
    at_targets: bool = False
    """Only the rows at the targets are computed, from the keys of all."""

    @nn.compact
    def __call__(self, x_BTD: jax.Array, inputs: AttentionInputs, *, deterministic: bool) -> jax.Array:
        """The rows of the content stream, or of its targets."""
        config, dtype, T = self.config, x_BTD.dtype, x_BTD.shape[1]
        kernel = {
            name: parameter(self, name, (config.d_model, config.heads, config.head_dim), ("embed", "heads", "head_dim"))
            for name in ("query", "key", "value", "output")
        }
        table_TD = parameter(self, "position_embedding", (self.positions, config.d_model), (None, "embed"))
        x_BTD = (x_BTD + table_TD[None, :T]).astype(dtype)

        pre, norm = config.norm == "pre", layer_norm("norm", config)
        y_BTD = norm(x_BTD).astype(dtype) if pre else x_BTD
        k_BKHE = product("bkd,dhe->bkhe", y_BTD, kernel["key"])
        v_BKHE = product("bkd,dhe->bkhe", y_BTD, kernel["value"])
        position_BS, rank_BS = inputs.position_BS, inputs.rank_BT
        if self.at_targets:
            position_BS = inputs.target_BP
            x_BTD, y_BTD = (jnp.take_along_axis(x, position_BS[:, :, None], axis=1) for x in (x_BTD, y_BTD))
            rank_BS = jnp.take_along_axis(rank_BS, position_BS, axis=1)
        q_BSHE = product("bsd,dhe->bshe", y_BTD, kernel["query"])
        dropout = None
        if config.attention_dropout and not deterministic:
            dropout = AttentionDropout(draw_key(self.make_rng("dropout")), config.attention_dropout, 0)
        limit_BS = jnp.minimum(rank_BS + 1, NEVER)
        o_BSHE, probability_BHSK = xla.attend(
            xla.Arguments(
                q_BSHE, k_BKHE, v_BKHE, limit_BS, inputs.rank_BK, inputs.segment_BT, inputs.segment_BK, position_BS,
                inputs.rows_B, dropout=dropout,
            )
        )  # fmt: skip
        self.sow("intermediates", "probability_content", probability_BHSK)
        o_BSD = product("bshe,dhe->bsd", o_BSHE, kernel["output"])
        o_BSD = Dropout(config.dropout)(o_BSD, inputs.rows_B, position_BS, deterministic=deterministic)
        return x_BTD + o_BSD if pre else norm(x_BTD + o_BSD).astype(dtype)
