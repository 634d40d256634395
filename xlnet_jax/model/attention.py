"""Attention of all streams of a layer (XLNet, section 2.3; Transformer-XL, section 3.3; Vaswani et
al. 2017).

For query i and key j of one head of width E, with the parts `positions=relative` and
`segments=relative`,

    s_ij = E^(-1/2) [ (q_i + u) . k_j + (q_i + v) . W_r R(d_ij) + (q_i + w) . S[seg_i != seg_j] ]

where u, v, w are the content, position and segment bias. If the vectors already contain positions,
with `positions=per_layer` (Al-Rfou et al. 2018, arXiv 1808.04444) or `input`,
s_ij = E^(-1/2) q_i . k_j; with `rotary` the same, after q_i and k_j are turned by their positions.
Streams share all weights; keys and values come only from the content stream and the memory. The
content stream sees ranks up to its own, the query stream only lower ranks. This module holds the
weights; `attend` in `kernels/` computes scores, softmax and weighted sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels import fused, xla
from xlnet_jax.kernels.dropout import AttentionDropout, draw_key
from xlnet_jax.members.parts import Parts
from xlnet_jax.model import positions
from xlnet_jax.model.cache import Kept, join
from xlnet_jax.model.layers import (
    Depth,
    Dropout,
    Places,
    layer_depths,
    layer_norm,
    parameter,
    product,
    residual_init,
)

IMPLEMENTATIONS = {
    "auto": xla.attend,
    "xla": xla.attend,
    "cpu": functools.partial(xla.attend, cpu=True),
    "fused": fused.attend,
}
"""Implementations by `model.attention`, with equal results and dropout; `fused` returns no
probabilities. `choice.resolve_attention` replaces `auto` before a model runs or is compiled.
"""


class AttentionStream(NamedTuple):
    """The rows of one stream, and the keys that they see."""

    limit_BQ: jax.Array
    """A row sees the keys of lower rank than its limit."""
    segment_BQ: jax.Array
    position_BQ: jax.Array | None = None
    """Positions of the rows in the segment; None: the whole segment in order."""
    packed: xla.PackedKeys | None = None
    """None: a row of the batch is one text."""


class Rotary(NamedTuple):
    """Rotary positions of the rows of all streams and of all keys. A position is the place in the
    document or in the segment, negative in the memory, times the direction of the row.
    """

    position_BS: jax.Array
    position_BK: jax.Array
    turns_S: positions.Turns
    turns_K: positions.Turns


class AttentionInputs(NamedTuple):
    """Facts about keys and queries for all layers: K = M + T keys per example."""

    rows_B: jax.Array
    """Row numbers in the global batch, which select the dropout masks of attention."""
    direction_B: jax.Array
    rank_BK: jax.Array
    segment_BK: jax.Array
    streams: tuple[AttentionStream, ...]
    """The content stream, and the query stream if there is one."""
    places: Places
    """Places of the rows of all streams: the position for content, T + position for queries."""
    table_SND: jax.Array | None = None
    """Sinusoids after their dropout; S is 1, or B if every row has its own mask. None: position
    keys are cached, or no score has a term for them.
    """
    slot_BT: jax.Array | None = None
    """Slots of the content rows in a cache; None: they follow the memory."""
    rotary: Rotary | None = None
    """None: the positions of the member are not rotary."""
    tied_biases: dict[str, jax.Array] | None = None
    """`Biases` that all layers share; None: each layer has its own."""


class Biases(nn.Module):
    """Biases u, v and, with segments, w: one set per layer or in all (`biases_per_layer`)."""

    config: ModelConfig
    parts: Parts
    depth: Depth

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        """Returns the biases by name, [H, E] each."""
        names = (
            "content_bias",
            "position_bias",
            *["segment_bias"] * (self.parts.segments == "relative"),
        )
        shape = self.config.heads, self.config.head_dim
        return {
            name: parameter(self, name, shape, ("heads", "head_dim"), "vector", self.depth)
            for name in names
        }


class Attention(nn.Module):
    """Attention, output projection, residual and LayerNorm, for all streams; with pre-norm the
    LayerNorm is on the input.

    `segments=none` has neither S nor w: within one segment their term is the same for all keys of a
    query, and cancels in the softmax.
    """

    config: ModelConfig
    parts: Parts
    longest: int
    """Tokens of the longest segment, for learned positions."""

    @nn.compact
    def __call__(
        self,
        x_BSD: jax.Array,
        memory: jax.Array | Kept,
        inputs: AttentionInputs,
        number: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
        """Returns the rows of all streams, as in `transformer.Layer`; with `Kept` also keys and
        values of the content rows. `number` is the number of the layer, with rotary positions.
        """
        config, dtype, content = self.config, x_BSD.dtype, inputs.streams[0]
        T, depth = content.limit_BQ.shape[1], layer_depths(config)
        kernel = self._kernels(depth)
        biases, segment_2HE = self._score_parameters(inputs, depth)
        if self.parts.positions == "per_layer":
            place = T if content.packed is None else content.packed.position_BQ
            place_BTD = positions.learned(self, self.longest, config.d_model, place, depth)
            x_BSD = (x_BSD + place_BTD).astype(dtype)

        pre, norm = config.norm == "pre", self._norm(depth, number)
        y_BSD = norm(x_BSD) if pre else x_BSD
        fresh_BKD = y_BSD[:, :T]
        if not isinstance(memory, Kept) and memory.shape[1]:
            memory_BMD = norm(memory) if pre else memory
            fresh_BKD = jnp.concatenate([memory_BMD, fresh_BKD], axis=1)
        k_BKHE = self._product("key", "bkd,dhe->bkhe", fresh_BKD, kernel)
        v_BKHE = self._product("value", "bkd,dhe->bkhe", fresh_BKD, kernel)
        q_BSHE = self._product("query", "bsd,dhe->bshe", y_BSD, kernel)
        # Initialisation needs only the parameters' shapes, but `fused` needs its device.
        implementation = "xla" if self.is_initializing() else config.attention
        position, rows = None, None
        if isinstance(memory, Kept):
            implementation, rows = "xla", (k_BKHE, v_BKHE)
            k_BKHE = join(memory.k_BHKE, k_BKHE, inputs.slot_BT)
            v_BKHE = join(memory.v_BHKE, v_BKHE, inputs.slot_BT)
            if memory.r_NHE is not None:
                position = None, memory.r_NHE[None], inputs.direction_B
        elif self.parts.positions == "relative":
            position = position_keys(inputs, kernel["position"], dtype, implementation)
        q_BSHE, k_BKHE, local = self._turned(q_BSHE, k_BKHE, inputs.rotary, number)
        score = functools.partial(
            xla.Arguments,
            k_BKHE=k_BKHE,
            v_BKHE=v_BKHE,
            rank_BK=inputs.rank_BK,
            segment_BK=inputs.segment_BK,
            rows_B=inputs.rows_B,
            position=position,
            biases=biases,
            segment_2HE=segment_2HE,
            max_distance=config.memory_len - 1 if config.same_length else None,
            save=config.saves_probabilities and self.has_rng("dropout") and content.packed is None,
        )
        o_BSHE = self._attend(q_BSHE, inputs, score, implementation, local)
        o_BSD = self._product("output", "bshe,dhe->bsd", o_BSHE, kernel)
        o_BSD = Dropout(config.dropout)(o_BSD, *inputs.places)
        return x_BSD + o_BSD if pre else norm(x_BSD + o_BSD), rows

    def _norm(self, depth: Depth, number: jax.Array | None) -> Callable[[jax.Array], jax.Array]:
        """Returns LayerNorm with a result of the dtype of its input, which in a first layer without
        a norm is the input.
        """
        norm = layer_norm("norm", self.config, depth)

        def normed(x_BND: jax.Array) -> jax.Array:
            y_BND = norm(x_BND).astype(x_BND.dtype)
            return y_BND if self.parts.first_norm else jnp.where(number == 0, x_BND, y_BND)

        return normed

    def _kernels(self, depth: Depth) -> dict[str, jax.Array]:
        """Returns the kernels of all products, by name."""
        config, heads = self.config, (self.config.heads, self.config.head_dim)
        names = ("query", "key", "value", *["position"] * (self.parts.positions == "relative"))
        return {
            name: parameter(
                self,
                name,
                (config.d_model, *heads),
                ("embed", "heads", "head_dim"),
                "matrix",
                depth,
                init,
            )
            for name, init in {
                **dict.fromkeys(names),
                "output": residual_init(config, self.parts),
            }.items()
        }

    def _score_parameters(
        self, inputs: AttentionInputs, depth: Depth
    ) -> tuple[dict[str, jax.Array], jax.Array | None]:
        """Returns `biases` and `segment_2HE` of `xla.Arguments`."""
        config = self.config
        if self.parts.positions != "relative":
            return {}, None
        own, shape = (
            Biases(config, self.parts, depth, name="biases"),
            (config.heads, config.head_dim),
        )
        nn.share_scope(self, own)
        biases = inputs.tied_biases or own()
        if self.parts.segments == "relative":
            axes = (None, "heads", "head_dim")
            return biases, parameter(self, "segment_embedding", (2, *shape), axes, "table", depth)
        zeros_2HE = jnp.zeros((2, *shape), jnp.float32)
        return {**biases, "segment_bias": zeros_2HE[0]}, zeros_2HE

    def _turned(
        self,
        q_BSHE: jax.Array,
        k_BKHE: jax.Array,
        rotary: Rotary | None,
        number: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array | int]:
        """Returns queries and keys, turned by their positions if these are rotary, and whether the
        layer has a window, 1 or 0.
        """
        if rotary is None or number is None:
            return q_BSHE, k_BKHE, 0
        local = jnp.int32(number % self.config.global_every != 0) * (self.config.window > 0)
        return rotary.turns_S.turn(q_BSHE, local), rotary.turns_K.turn(k_BKHE, local), local

    def _attend(
        self,
        q_BSHE: jax.Array,
        inputs: AttentionInputs,
        arguments: Callable[..., xla.Arguments],
        implementation: str,
        local: jax.Array | int,
    ) -> jax.Array:
        """Returns the weighted sums of all streams; `arguments` has the fields that they share.
        `local` is 1 in a layer with a window.
        """
        config, outputs, start = self.config, [], 0
        drops = config.attention_dropout and self.has_rng("dropout")
        dropout_key = draw_key(self.make_rng("dropout")) if drops else None
        for number, stream in enumerate(inputs.streams):
            end = start + stream.limit_BQ.shape[1]
            dropout, near = None, None
            if (rotary := inputs.rotary) is not None and config.window:
                size = jnp.where(local, config.window // 2, NEVER)
                near = xla.NearKeys(size, rotary.position_BS[:, start:end], rotary.position_BK)
            if dropout_key is not None:
                dropout = AttentionDropout(dropout_key, config.attention_dropout, number)
            o_BQHE, probability_BHQK = IMPLEMENTATIONS[implementation](
                arguments(
                    q_BSHE[:, start:end],
                    limit_BQ=stream.limit_BQ,
                    segment_BQ=stream.segment_BQ,
                    query_position_BQ=stream.position_BQ,
                    dropout=dropout,
                    packed=stream.packed,
                    near=near,
                )
            )
            self.sow(
                "intermediates", f"probability_{('content', 'query')[number]}", probability_BHQK
            )
            outputs.append(o_BQHE)
            start = end
        return jnp.concatenate(outputs, axis=1)

    def _product(
        self, name: str, subscripts: str, x: jax.Array, kernels: dict[str, jax.Array]
    ) -> jax.Array:
        """Returns the product with the kernel `name`, and with its bias, if the architecture has
        biases, in the dtype of x.
        """
        y = product(subscripts, x, kernels[name], cpu=self.config.on_cpu)
        if not self.parts.biases:
            return y
        axes = ("heads", "head_dim") if y.ndim == 4 else ("embed",)
        bias = parameter(
            self,
            f"{name}_bias",
            y.shape[2:],
            axes,
            "vector",
            layer_depths(self.config),
            nn.initializers.zeros,
            decays=False,
        )
        return (y + bias[None, None]).astype(y.dtype)


def position_keys(
    inputs: AttentionInputs, kernel_DHE: jax.Array, dtype: jnp.dtype, implementation: str
) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    """Returns `xla.Arguments.position`, in the fastest form for the implementation."""
    assert inputs.table_SND is not None, "only a cache has position keys"
    odd_SNHE, even_SNHE = positions.project(inputs.table_SND.astype(dtype), kernel_DHE)
    position = odd_SNHE, even_SNHE, inputs.direction_B
    if implementation == "fused":
        return position
    # Each row has its own position keys, so their gradient is summed over the rows once, for both
    # streams together.
    if implementation == "cpu" and len(odd_SNHE) == 1:
        return None, positions.of_directions(*position), inputs.direction_B
    each = (len(inputs.rows_B), *odd_SNHE.shape[1:])
    return jnp.broadcast_to(odd_SNHE, each), jnp.broadcast_to(even_SNHE, each), inputs.direction_B
