"""Two-stream relative attention (XLNet, section 2.3; Transformer-XL, section 3.3).

For query i and key j of one head of width E

    s_ij = E^(-1/2) [ (q_i + u) . k_j  +  (q_i + v) . W_r R(d_ij)  +  (q_i + w) . S[seg_i != seg_j] ]

where u, v, w are the content, position and segment bias. Both streams share all weights; keys and values come
only from the content stream and the memory. The content stream sees ranks up to its own, the query stream lower ones.
This module holds the weights; `attend` of an implementation in `kernels/` computes scores, softmax and weighted sum.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.kernels import fused, xla
from xlnet_jax.kernels.dropout import AttentionDropout, draw_key
from xlnet_jax.model import positions
from xlnet_jax.model.cache import Kept, join
from xlnet_jax.model.layers import Dropout, layer_norm, parameter, product

IMPLEMENTATIONS = {"auto": xla.attend, "xla": xla.attend, "fused": fused.attend}
"""By the value of `model.attention`. All return the same, `fused` without probabilities, with the same dropout. What
runs or compiles the model decides on `auto` before (`implementation`)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """What all layers need to know about keys and queries, per example: K = M + T keys, P targets."""

    rows_B: jax.Array
    """Row numbers in the global batch: they key the dropout masks."""
    table_SND: jax.Array | None
    """Sinusoids after their dropout; S is 1, or B if every row has its own mask. None: position keys are cached, or
    positions are absolute."""
    direction_B: jax.Array
    rank_BT: jax.Array
    rank_BK: jax.Array
    segment_BT: jax.Array
    segment_BK: jax.Array
    target_BP: jax.Array
    """Positions of the query stream's rows."""
    position_BS: jax.Array
    """Where dropout draws for the rows of both streams: position for content, T + position for queries."""
    place_BT: jax.Array | None = None
    """Positions of the content rows in a cached segment; None: the first T."""
    slot_BT: jax.Array | None = None
    """Their slots; None: they follow the memory."""
    limit_BP: jax.Array | None = None
    """The query stream's rows see lower ranks; None: than those of their positions."""


class RelativeAttention(nn.Module):
    """Attention, output projection, residual and LayerNorm, for both streams; pre-norm: LayerNorm of what enters.

    Without `segments` there is neither S nor w: if all positions are of one segment, that term is the same for all keys
    of a query, and the softmax does not change.
    """

    config: ModelConfig
    segments: bool = True

    @nn.compact
    def __call__(
        self,
        x_BSD: jax.Array,
        memory: jax.Array | Kept,
        inputs: AttentionInputs,
        tied_biases: dict[str, jax.Array] | None,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
        """The rows of both streams; see `transformer.Layer`. The memory_BMD is finite.

        With the keys and values of earlier tokens in its place, also those of the content rows.
        """
        config, dtype, T = self.config, x_BSD.dtype, inputs.rank_BT.shape[1]
        heads = (config.heads, config.head_dim)
        kernel = {
            name: parameter(self, name, (config.d_model, *heads), ("embed", "heads", "head_dim"))
            for name in ("query", "key", "value", "position", "output")
        }
        biases = tied_biases or attention_biases(self, config, self.segments)
        if self.segments:
            segment_2HE = parameter(self, "segment_embedding", (2, *heads), (None, "heads", "head_dim"))
        else:
            segment_2HE = jnp.zeros((2, *heads), jnp.float32)
            biases = {**biases, "segment_bias": segment_2HE[0]}

        pre, norm, residual_BSD = config.norm == "pre", layer_norm("norm", config), x_BSD
        if pre:
            x_BSD = norm(x_BSD).astype(dtype)
        fresh_BKD = x_BSD[:, :T]
        if not isinstance(memory, Kept):
            memory_BMD = norm(memory).astype(dtype) if pre else memory
            fresh_BKD = jnp.concatenate([memory_BMD, fresh_BKD], axis=1)
        k_BKHE = product("bkd,dhe->bkhe", fresh_BKD, kernel["key"])
        v_BKHE = product("bkd,dhe->bkhe", fresh_BKD, kernel["value"])
        q_BSHE = product("bsd,dhe->bshe", x_BSD, kernel["query"])
        # Only the parameters' shapes count at initialisation: `fused` needs its device.
        implementation = "xla" if self.is_initializing() else config.attention
        if isinstance(memory, Kept):
            implementation, rows = "xla", (k_BKHE, v_BKHE)
            k_BKHE = join(memory.k_BHKE, k_BKHE, inputs.slot_BT)
            v_BKHE = join(memory.v_BHKE, v_BKHE, inputs.slot_BT)
            position = None, memory.r_NHE[None], inputs.direction_B
        else:
            position, rows = position_keys(inputs, kernel["position"], dtype, implementation), None
        max_distance = config.memory_len - 1 if config.same_length else None
        drops = config.attention_dropout and not deterministic
        dropout_key = draw_key(self.make_rng("dropout")) if drops else None

        def stream(number: int, name: str, q_BQHE: jax.Array, limit_BQ: jax.Array, segment_BQ: jax.Array,
                   query_position_BQ: jax.Array | None) -> jax.Array:  # fmt: skip
            dropout = None if dropout_key is None else AttentionDropout(dropout_key, config.attention_dropout, number)
            o_BQHE, probability_BHQK = IMPLEMENTATIONS[implementation](
                xla.Arguments(
                    q_BQHE, k_BKHE, v_BKHE, limit_BQ, inputs.rank_BK, segment_BQ, inputs.segment_BK, query_position_BQ,
                    inputs.rows_B, position, biases, segment_2HE, dropout, max_distance,
                )
            )  # fmt: skip
            self.sow("intermediates", f"probability_{name}", probability_BHQK)
            return o_BQHE

        # Padding has the highest limit: it sees all text, but not itself.
        limit_BT = jnp.minimum(inputs.rank_BT + 1, NEVER)
        o_BSHE = stream(0, "content", q_BSHE[:, :T], limit_BT, inputs.segment_BT, inputs.place_BT)
        if x_BSD.shape[1] > T:
            if inputs.limit_BP is None:
                limit_BP = jnp.take_along_axis(inputs.rank_BT, inputs.target_BP, axis=1)
                segment_BP = jnp.take_along_axis(inputs.segment_BT, inputs.target_BP, axis=1)
            else:
                limit_BP, segment_BP = inputs.limit_BP, jnp.zeros_like(inputs.target_BP)
            o_BPHE = stream(1, "query", q_BSHE[:, T:], limit_BP, segment_BP, inputs.target_BP)
            o_BSHE = jnp.concatenate([o_BSHE, o_BPHE], axis=1)
        o_BSD = product("bshe,dhe->bsd", o_BSHE, kernel["output"])
        o_BSD = Dropout(config.dropout)(o_BSD, inputs.rows_B, inputs.position_BS, deterministic=deterministic)
        return residual_BSD + o_BSD if pre else norm(residual_BSD + o_BSD).astype(dtype), rows


def position_keys(
    inputs: AttentionInputs, kernel_DHE: jax.Array, dtype: jnp.dtype, implementation: str
) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    """`position` of `attend`, in the form that the implementation and the device are fast with."""
    assert inputs.table_SND is not None, "only a cache has position keys"
    odd_SNHE, even_SNHE = positions.project(inputs.table_SND.astype(dtype), kernel_DHE)
    position = odd_SNHE, even_SNHE, inputs.direction_B
    if implementation == "fused":
        return position
    # Position keys for every row: so their gradient is summed over the rows once, for both streams together.
    if meshes.device().platform != "cpu":
        each = (len(inputs.rows_B), *odd_SNHE.shape[1:])
        return jnp.broadcast_to(odd_SNHE, each), jnp.broadcast_to(even_SNHE, each), inputs.direction_B
    return (None, positions.of_rows(*position), inputs.direction_B) if len(odd_SNHE) == 1 else position


def attention_biases(module: nn.Module, config: ModelConfig, segments: bool) -> dict[str, jax.Array]:
    """Declares u, v and, with `segments`, w [H, E] on `module`: one set per layer, or for all (`biases_per_layer`)."""
    return {
        name: parameter(module, name, (config.heads, config.head_dim), ("heads", "head_dim"))
        for name in ("content_bias", "position_bias", *["segment_bias"] * segments)
    }
