"""Two-stream relative attention (XLNet, section 2.3; Transformer-XL, section 3.3).

For query i and key j of one head of width E

    s_ij = E^(-1/2) [ (q_i + u) . k_j  +  (q_i + v) . W_r R(d_ij)  +  (q_i + w) . S[seg_i != seg_j] ]

where u, v, w are the content, position and segment bias. Both streams share all weights; keys and values come from the
content stream (and the memory) alone. The content stream may see ranks up to its own, the query stream only below.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.model import positions
from xlnet_jax.model.layers import Dropout, accumulator, layer_norm, parameter


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Keys:
    """What all layers know of the keys and of the queries, per example: K = M + T keys, P targets."""

    row_B: jax.Array
    """The rows' numbers in the global batch: they key the dropout masks."""
    table_SND: jax.Array
    """Sinusoids after their dropout; S is 1, or B where every row has its own mask."""
    direction_B: jax.Array
    rank_BT: jax.Array
    rank_BK: jax.Array
    segment_BT: jax.Array
    segment_BK: jax.Array
    target_BP: jax.Array
    """Positions of the query stream's rows."""


def relative_scores(
    q_BTHE: jax.Array,
    k_BKHE: jax.Array,
    position_BHTK: jax.Array,
    segment_2HE: jax.Array,
    content_bias_HE: jax.Array,
    segment_bias_HE: jax.Array,
    same_segment_BTK: jax.Array,
) -> jax.Array:
    """The three terms of s_ij, scaled: [B, H, T, K] in at least float32; `position_BHTK` comes already shifted."""
    high = accumulator(q_BTHE.dtype)
    content = jnp.einsum("bthe,bkhe->bhtk", q_BTHE + content_bias_HE[None, None], k_BKHE, preferred_element_type=high)
    either_BHT2 = jnp.einsum(
        "bthe,she->bhts", q_BTHE + segment_bias_HE[None, None], segment_2HE, preferred_element_type=high
    )
    segment = jnp.where(same_segment_BTK[:, None], either_BHT2[..., :1], either_BHT2[..., 1:])
    return (content + position_BHTK + segment) * q_BTHE.shape[-1] ** -0.5


def masked_softmax(score_BHTK: jax.Array, visible_BTK: jax.Array) -> jax.Array:
    """Softmax over the visible keys; a row that sees nothing gets probabilities (and gradients) of exactly 0."""
    visible = visible_BTK[:, None]
    highest = jnp.max(jnp.where(visible, score_BHTK, -jnp.inf), axis=-1, keepdims=True)
    highest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0))
    # The inner `where` keeps exp finite at hidden keys: an infinity there would turn their zero gradient into a NaN.
    weight = jnp.where(visible, jnp.exp(jnp.where(visible, score_BHTK - highest, 0)), 0)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)


class RelativeAttention(nn.Module):
    """Attention, output projection, residual and LayerNorm (post-norm), for both streams."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        h_BTD: jax.Array,
        g_BPD: jax.Array | None,
        memory_BMD: jax.Array,
        keys: Keys,
        tied_biases: dict[str, jax.Array] | None,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Content stream h and, if there are targets, query stream g; same shapes out."""
        config, dtype = self.config, h_BTD.dtype
        heads = (config.heads, config.head_dim)
        kernel = {
            name: parameter(self, name, (config.d_model, *heads), ("embed", "heads", "head_dim"), dtype)
            for name in ("query", "key", "value", "position", "output")
        }
        segment_2HE = parameter(self, "segment_embedding", (2, *heads), (None, "heads", "head_dim"), dtype)
        bias = tied_biases or attention_biases(self, config, dtype)
        norm = layer_norm("norm", config)

        cat_BKD = jnp.concatenate([memory_BMD, h_BTD], axis=1)
        k_BKHE = jnp.einsum("bkd,dhe->bkhe", cat_BKD, kernel["key"])
        v_BKHE = jnp.einsum("bkd,dhe->bkhe", cat_BKD, kernel["value"])
        r_BNHE = positions.project(keys.table_SND.astype(dtype), kernel["position"], keys.direction_B)
        K, T = cat_BKD.shape[1], h_BTD.shape[1]
        exists_BK = keys.rank_BK != NEVER

        def finish(x_BTD: jax.Array, q_BTHE: jax.Array, position_BHTK: jax.Array, segment: jax.Array,
                   visible_BTK: jax.Array, stream: str) -> jax.Array:  # fmt: skip
            same_BTK = segment[:, :, None] == keys.segment_BK[:, None, :]
            score_BHTK = relative_scores(
                q_BTHE, k_BKHE, position_BHTK, segment_2HE, bias["content_bias"], bias["segment_bias"], same_BTK
            )
            probability_BHTK = masked_softmax(score_BHTK, visible_BTK & exists_BK[:, None])
            self.sow("intermediates", f"probability_{stream}", probability_BHTK)
            drop = Dropout(config.attention_dropout)
            dropped = drop(probability_BHTK, keys.row_B, deterministic=deterministic)
            o_BTHE = jnp.einsum("bhtk,bkhe->bthe", dropped.astype(dtype), v_BKHE)
            o_BTD = jnp.einsum("bthe,dhe->btd", o_BTHE, kernel["output"])
            o_BTD = Dropout(config.dropout)(o_BTD, keys.row_B, deterministic=deterministic)
            return norm(x_BTD + o_BTD).astype(dtype)

        high = accumulator(dtype)
        position_bias_11HE = bias["position_bias"][None, None]
        q_BTHE = jnp.einsum("btd,dhe->bthe", h_BTD, kernel["query"])
        all_BHTN = jnp.einsum("bthe,bnhe->bhtn", q_BTHE + position_bias_11HE, r_BNHE, preferred_element_type=high)
        visible_BTK = keys.rank_BK[:, None, :] <= keys.rank_BT[:, :, None]
        new_h_BTD = finish(
            h_BTD, q_BTHE, positions.shift(all_BHTN, K), keys.segment_BT, visible_BTK, "content"
        )  # fmt: skip
        if g_BPD is None:
            return new_h_BTD, None

        q_BPHE = jnp.einsum("bpd,dhe->bphe", g_BPD, kernel["query"])
        all_BPHN = jnp.einsum("bphe,bnhe->bphn", q_BPHE + position_bias_11HE, r_BNHE, preferred_element_type=high)
        position_BHPK = positions.windows(all_BPHN, keys.target_BP, K, T).transpose(0, 2, 1, 3)
        rank_BP = jnp.take_along_axis(keys.rank_BT, keys.target_BP, axis=1)
        segment_BP = jnp.take_along_axis(keys.segment_BT, keys.target_BP, axis=1)
        visible_BPK = keys.rank_BK[:, None, :] < rank_BP[:, :, None]
        return new_h_BTD, finish(g_BPD, q_BPHE, position_BHPK, segment_BP, visible_BPK, "query")


def attention_biases(module: nn.Module, config: ModelConfig, dtype: jnp.dtype) -> dict[str, jax.Array]:
    """Declares u, v and w [H, E] on `module`: one set per layer, or one for all layers (`untie_biases`)."""
    return {
        name: parameter(module, name, (config.heads, config.head_dim), ("heads", "head_dim"), dtype)
        for name in ("content_bias", "position_bias", "segment_bias")
    }
