"""The XLNet transformer: embeddings, L two-stream layers, and the memory they hand to the next segment.

    content stream   h_0 = Drop(embedding of the tokens)        knows its own token
    query stream     g_0 = Drop(one learned vector)             knows its position, not its token; target rows only
    memory           m_l' = last M of [m_l ; first R inputs of layer l], no gradient     (Transformer-XL, section 3.2)

The layers are one `nn.scan`: parameters and memory are stacked over a leading axis L. The module is a pure function
of (parameters, batch, memory); nothing is kept between calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import MEMORY_RANK, NEVER, Batch, Memory
from xlnet_jax.config import CORRECT, CompatConfig, ModelConfig
from xlnet_jax.model import positions
from xlnet_jax.model.attention import AttentionInputs, RelativeAttention, attention_biases
from xlnet_jax.model.layers import Dropout, FeedForward, accumulator, parameter

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}

Depths = Mapping[str, float | tuple[int, ...]]
"""How far above the input parameters lie, by the first part of their path: the embeddings 0, layer l at l + 1, heads
infinity. A tuple has the depth of each entry of a leading axis."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """What the model returns; logits are made by `heads`, and only where they are wanted."""

    hidden_BTD: jax.Array
    """Content stream after the last layer, before dropout: what fine-tuning uses."""
    target_vectors_BPD: jax.Array | None
    """At the targets, after the final dropout: what predicts them; None if the batch has no target slots."""
    memory: Memory


class Layer(nn.Module):
    """One two-stream layer as a scan body: carries (h, g), maps this layer's memory to the next segment's."""

    config: ModelConfig
    reuse_len: int | None
    deterministic: bool

    @nn.compact
    def __call__(
        self, streams: tuple, memory_BMD: jax.Array, inputs: AttentionInputs, tied_biases: dict | None
    ) -> tuple:
        """((h, g), m_l) -> ((h, g), m_l')."""
        h_BTD, g_BPD = streams
        slots = memory_BMD.shape[1]
        # Selected and not weighted by 0: a NaN in a slot that nobody may see must not reach anybody.
        memory_BMD = jnp.where((inputs.rank_BK[:, :slots] != NEVER)[:, :, None], memory_BMD, 0)
        fresh_BRD = jnp.concatenate([memory_BMD, h_BTD[:, : self.reuse_len]], axis=1)
        new_memory_BMD = jax.lax.stop_gradient(fresh_BRD[:, fresh_BRD.shape[1] - slots :])
        attention = RelativeAttention(self.config, name="attention")
        h_BTD, g_BPD = attention(h_BTD, g_BPD, memory_BMD, inputs, tied_biases, deterministic=self.deterministic)
        feed_forward = FeedForward(self.config, name="feed_forward")
        streams = feed_forward(h_BTD, g_BPD, inputs.rows_B, inputs.target_BP, deterministic=self.deterministic)
        # Kept only where a caller makes "intermediates" mutable, as tests do.
        self.sow("intermediates", "content_stream", streams[0])
        self.sow("intermediates", "query_stream", streams[1])
        return streams, new_memory_BMD


class TiedBiases(nn.Module):
    """u, v and w when one set serves all layers."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        """[H, E] each, in the compute dtype."""
        return attention_biases(self, self.config, jnp.dtype(self.config.compute_dtype))


class XLNet(nn.Module):
    """XLNet without a head.

    Attributes:
      config: architecture.
      reuse_len: how many positions R of a segment enter the memory; None = all of them.
      compat: what to do as the 2019 code did.
      two_streams: targets are predicted from the query stream; False: from the content stream, and there is no other.
    """

    config: ModelConfig
    reuse_len: int | None = None
    compat: CompatConfig = CORRECT
    two_streams: bool = True

    @property
    def depths(self) -> Depths:
        """The biases that all layers share are at 0, like the embeddings."""
        layers = tuple(range(1, self.config.layers + 1))
        return {"word_embedding": 0, "mask_embedding": 0, "biases": 0, "layers": layers}

    @nn.compact
    def __call__(self, batch: Batch, memory: Memory, rows_B: jax.Array | None = None, *, deterministic: bool) -> Output:
        """Runs one segment.

        Args:
          batch: B rows of T tokens and P target slots; with P = 0 there is no query stream.
          memory: of the segment before; rows that do not continue it see none of it.
          rows_B: the rows' numbers in the global batch, where this is a part of one; they key the dropout masks.
          deterministic: True switches dropout off; False needs an rng named `dropout`.
        """
        config, dtype = self.config, jnp.dtype(self.config.compute_dtype)
        # Looked up before it is rounded: gradients of frequent pieces are sums of many, which float32 can hold.
        high = accumulator(dtype)
        table_VD = parameter(self, "word_embedding", (config.vocab_size, config.d_model), ("vocab", "embed"), high)
        glorot = glorot_uniform if self.compat.on("glorot_mask_embedding") else None
        mask_D = parameter(self, "mask_embedding", (config.d_model,), ("embed",), dtype, glorot)
        tied_biases = None if config.untie_biases else TiedBiases(config, name="biases")()

        B, T = batch.tokens.shape
        rows_B = jnp.arange(B) if rows_B is None else rows_B

        def drop(x: jax.Array, position_BQ: jax.Array | None = None, keyed_by: jax.Array = rows_B) -> jax.Array:
            return Dropout(config.dropout)(x, keyed_by, position_BQ, deterministic=deterministic)

        P, M = batch.target_positions.shape[1], memory.hidden_LBMD.shape[2]
        h_BTD = nn.with_logical_constraint(drop(table_VD[batch.tokens].astype(dtype)), ("batch", None, None))
        g_BPD = None
        if P and self.two_streams:
            g_BPD = drop(jnp.broadcast_to(mask_D, (B, P, config.d_model)), batch.target_positions)

        valid_B = jnp.where(batch.continues, memory.valid_B, 0)
        filled_BM = jnp.arange(M)[None, :] >= M - valid_B[:, None]
        if self.compat.on("zero_memory"):
            memory = Memory(jnp.where(filled_BM[None, :, :, None], memory.hidden_LBMD, 0), memory.valid_B)
            filled_BM = jnp.ones_like(filled_BM)
        rank_BM = jnp.where(filled_BM, MEMORY_RANK, NEVER)
        table_ND = positions.sinusoids(T, M, config.d_model, config.clamp_len, high)
        # One mask for the whole batch: the table is the same for all its rows.
        masks_S = rows_B if self.compat.on("position_dropout_per_row") else jnp.zeros(1, jnp.int32)
        inputs = AttentionInputs(
            rows_B=rows_B,
            table_SND=drop(jnp.broadcast_to(table_ND, (len(masks_S), *table_ND.shape)), keyed_by=masks_S),
            direction_B=batch.direction,
            rank_BT=batch.rank,
            rank_BK=jnp.concatenate([rank_BM, batch.rank], axis=1),
            segment_BT=batch.segments,
            segment_BK=jnp.concatenate([jnp.zeros((B, M), batch.segments.dtype), batch.segments], axis=1),
            target_BP=batch.target_positions,
        )

        body = Layer
        if config.remat != "none":
            body = nn.remat(Layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
        layers = nn.scan(
            body,
            length=config.layers,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast, nn.broadcast),  # type: ignore[arg-type]
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, self.reuse_len, deterministic, name="layers")
        (h_BTD, g_BPD), hidden_LBMD = layers((h_BTD, g_BPD), memory.hidden_LBMD, inputs, tied_biases)

        vectors_BPD = g_BPD
        if P and not self.two_streams:
            vectors_BPD = jnp.take_along_axis(h_BTD, batch.target_positions[:, :, None], axis=1)
        reuse = T if self.reuse_len is None else min(self.reuse_len, T)
        return Output(
            hidden_BTD=h_BTD,
            target_vectors_BPD=None if vectors_BPD is None else drop(vectors_BPD, batch.target_positions),
            memory=Memory(hidden_LBMD, jnp.minimum(M, valid_B + reuse)),
        )


def glorot_uniform(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """TensorFlow's default for a [1, 1, D] variable: what the original's mask_emb, given no initialiser, got."""
    bound = (6 / (1 + shape[-1])) ** 0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def empty_memory(config: ModelConfig, batch_size: int) -> Memory:
    """A memory that holds nothing: the same as no memory at all."""
    shape = (config.layers, batch_size, config.memory_len, config.d_model)
    return Memory(jnp.zeros(shape, jnp.dtype(config.compute_dtype)), jnp.zeros(batch_size, jnp.int32))
