"""The inputs of the layers: token vectors, query vectors, and the table of relative positions.

A model with other inputs or another position scheme replaces one of these modules; `XLNet` composes them.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import CompatConfig, ModelConfig
from xlnet_jax.model import positions
from xlnet_jax.model.adaptive import AdaptiveEmbedding, lookup
from xlnet_jax.model.layers import Dropout, accumulator, parameter


class Embedding(nn.Module):
    """h_0 = Drop(embedding of the tokens) and, unless left to right, g_0 = Drop(one learned vector) at the targets."""

    config: ModelConfig
    compat: CompatConfig
    left_to_right: bool = False

    DEPTHS = {"word_embedding": 0, "mask_embedding": 0}

    @nn.compact
    def __call__(
        self, tokens_BT: jax.Array, target_BP: jax.Array | None, rows_B: jax.Array, *, deterministic: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Content stream h_BTD and query stream g_BPD, None without targets; in the compute dtype."""
        config, dtype = self.config, jnp.dtype(self.config.compute_dtype)
        if config.adaptive:
            h_BTD = AdaptiveEmbedding(config, name="word_embedding")(tokens_BT)
        else:
            table_VD = parameter(self, "word_embedding", (config.vocab_size, config.d_model), ("vocab", "embed"))
            h_BTD = lookup(table_VD, tokens_BT, config).astype(dtype)
        mask_D = None
        if not self.left_to_right:
            glorot = glorot_uniform if self.compat.on("glorot_mask_embedding") else None
            mask_D = parameter(self, "mask_embedding", (config.d_model,), ("embed",), glorot)

        h_BTD = Dropout(config.dropout, name="token_dropout")(h_BTD, rows_B, deterministic=deterministic)
        h_BTD = nn.with_logical_constraint(h_BTD, ("batch", None, None))
        if target_BP is None or mask_D is None:
            return h_BTD, None
        g_BPD = jnp.broadcast_to(mask_D, (*target_BP.shape, config.d_model)).astype(dtype)
        drop = Dropout(config.dropout, name="query_dropout")
        return h_BTD, drop(g_BPD, rows_B, target_BP, deterministic=deterministic)


class RelativePositions(nn.Module):
    """The sinusoids of all distances in a segment and its memory; each layer projects them (`positions.project`)."""

    config: ModelConfig
    compat: CompatConfig

    @nn.compact
    def __call__(self, segment_len: int, memory_len: int, rows_B: jax.Array, *, deterministic: bool) -> jax.Array:
        """The table after its dropout, [S, N, D] in at least float32: S is 1, or B if each row has its own mask."""
        config = self.config
        high = accumulator(jnp.dtype(config.compute_dtype))
        table_ND = positions.sinusoids(segment_len, memory_len, config.d_model, config.clamp_len, high)
        # One mask for the whole batch: the table is the same for all its rows.
        masks_S = rows_B if self.compat.on("position_dropout_per_row") else jnp.zeros(1, jnp.int32)
        table_SND = jnp.broadcast_to(table_ND, (len(masks_S), *table_ND.shape))
        return Dropout(config.dropout)(table_SND, masks_S, deterministic=deterministic)


def glorot_uniform(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """TensorFlow's default for a [1, 1, D] variable, as mask_emb of the original, which sets no initialiser."""
    bound = (6 / (1 + shape[-1])) ** 0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)
