"""The XLNet transformer: embeddings, L two-stream layers, and their memory for the next segment.

    content stream   h_0 = Drop(embedding of the tokens)        knows its own token
    query stream     g_0 = Drop(one learned vector)             knows its position, not its token; targets only
    memory           m_l' = last M of [m_l ; first R inputs of layer l], no gradient     (Transformer-XL, section 3.2)

`XLNet` composes exchangeable modules: `Embedding`, `RelativePositions` and the `Stack` of layers. It is a pure
function of (parameters, batch, memory) and keeps nothing between calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import MEMORY_RANK, NEVER, Batch, Memory
from xlnet_jax.config import CORRECT, CompatConfig, ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.model.absolute import AbsoluteAttention
from xlnet_jax.model.attention import AttentionInputs, RelativeAttention, attention_biases
from xlnet_jax.model.cache import Cache, Kept
from xlnet_jax.model.embeddings import Embedding, RelativePositions
from xlnet_jax.model.layers import Dropout, FeedForward

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names("fused_attention"),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}

Depths = Mapping[str, float | tuple[int, ...]]
"""Distance of parameters from the input, by the first part of their path: embeddings 0, layer l at l + 1, heads
infinity. A tuple has the depth of each entry of a leading axis."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """The result of the model; `heads` make logits, only if a caller needs them."""

    hidden_BTD: jax.Array
    """Content stream after the last layer, before dropout, for fine-tuning."""
    target_vectors_BPD: jax.Array | None
    """They predict the targets: vectors at their positions, after the final dropout; None without target slots."""
    memory: Memory | Cache


class Layer(nn.Module):
    """One two-stream layer as a scan body: carries both streams, maps this layer's memory to the next segment's.

    Both share all weights and are one array x_BSD: T rows of the content stream, then P of the query stream, if there
    is one. So each weight has one product, and its gradient one sum over the rows.
    """

    config: ModelConfig
    reuse_len: int | None
    deterministic: bool
    segments: bool
    at_targets: bool = False

    @nn.compact
    def __call__(
        self, x_BSD: jax.Array, memory: jax.Array | Kept, inputs: AttentionInputs, tied_biases: dict | None
    ) -> tuple[jax.Array, Any]:
        """(x, m_l) -> (x, m_l'); with a cache (x, its keys and values) -> (x, those of the new rows)."""
        T, new_memory_BMD = inputs.rank_BT.shape[1], None
        if not isinstance(memory, Kept):
            slots = memory.shape[1]
            reuse = T if self.reuse_len is None else min(self.reuse_len, T)
            # Select, do not multiply by 0: a NaN in a hidden slot must not spread.
            memory = jnp.where((inputs.rank_BK[:, :slots] != NEVER)[:, :, None], memory, 0)
            fresh_BRD = jnp.concatenate([memory, x_BSD[:, :reuse]], axis=1)
            new_memory_BMD = jax.lax.stop_gradient(fresh_BRD[:, fresh_BRD.shape[1] - slots :])
        if self.config.position_scheme == "absolute":
            # Without a memory all of a segment is fresh: R is the length of a segment in training.
            longest = self.reuse_len or T
            attention = AbsoluteAttention(self.config, longest, self.at_targets, name="attention")
            x_BSD, rows = attention(x_BSD, inputs, deterministic=self.deterministic), None
        else:
            attention = RelativeAttention(self.config, self.segments, name="attention")
            x_BSD, rows = attention(x_BSD, memory, inputs, tied_biases, deterministic=self.deterministic)
        feed_forward = FeedForward(self.config, name="feed_forward")
        x_BSD = feed_forward(x_BSD, inputs.rows_B, inputs.position_BS, deterministic=self.deterministic)
        # Stored only if a caller makes the collection mutable: auxiliary losses the first, tests the other.
        self.sow("layer_outputs", "content_stream", x_BSD[:, :T])
        self.sow("intermediates", "content_stream", x_BSD[:, :T])
        self.sow("intermediates", "query_stream", x_BSD[:, T:])
        return x_BSD, new_memory_BMD if rows is None else rows


class Stack(nn.Module):
    """L layers and their memory as one scan. Each layer has its own parameters, stacked over a leading axis L; with
    `share_layers` all use the same, without that axis."""

    config: ModelConfig
    reuse_len: int | None
    deterministic: bool
    segments: bool
    last_at_targets: bool = False

    @property
    def depth(self) -> int | tuple[int, ...]:
        """Depth of each layer's parameters; shared ones have the depth of the top layer."""
        return self.config.layers if self.config.share_layers else tuple(range(1, self.config.layers + 1))

    @property
    def unrolled(self) -> bool:
        """A CPU copies all that a loop stacks and slices: parameters, gradients, saved activations."""
        if self.config.unroll == "auto":
            # Only in training: the rest would be compiled longer than it saves.
            return meshes.device().platform == "cpu" and not self.deterministic
        return self.config.unroll == "on"

    @nn.compact
    def __call__(
        self, x_BSD: jax.Array, memory: jax.Array | Kept, inputs: AttentionInputs, tied_biases: dict | None
    ) -> tuple[jax.Array, Any]:
        """(both streams, memory of all layers) -> (both streams, memory of the next segment); see `Layer`.

        With `last_at_targets` (absolute positions) the last layer computes only the rows at the targets.
        """
        if self.last_at_targets:
            assert not isinstance(memory, Kept)
            return self._last_at_targets(x_BSD, memory, inputs), memory
        body, share = Layer, self.config.share_layers
        if self.config.remat != "none":
            body = nn.remat(Layer, policy=REMAT_POLICIES[self.config.remat], prevent_cse=False)
        layers = nn.scan(
            body,
            length=self.config.layers,
            variable_axes={"intermediates": 0, "layer_outputs": 0, **({} if share else {"params": 0})},
            variable_broadcast="params" if share else False,
            split_rngs={"params": not share, "dropout": True},
            in_axes=(0, nn.broadcast, nn.broadcast),  # type: ignore[arg-type]
            metadata_params={nn.PARTITION_NAME: "layers"},
            unroll=self.config.layers if self.unrolled else 1,
        )(self.config, self.reuse_len, self.deterministic, self.segments, name="each")
        nn.share_scope(self, layers)
        return layers(x_BSD, memory, inputs, tied_biases)

    def _last_at_targets(self, x_BTD: jax.Array, hidden_LBMD: jax.Array, inputs: AttentionInputs) -> jax.Array:
        """The layers below as usual, with their part of the stacked parameters, and the last one by itself."""
        params, below = self.variables["params"], self.config.layers - 1
        lower, last = params, params
        if not self.config.share_layers:
            lower, last = jax.tree.map(lambda x: x[:below], params), jax.tree.map(lambda x: x[below], params)
        config = dataclasses.replace(self.config, layers=below)
        if below:
            stack = Stack(config, self.reuse_len, self.deterministic, self.segments, parent=None)
            x_BTD, _ = stack.apply({"params": lower}, x_BTD, hidden_LBMD[:below], inputs, None)
        layer = Layer(self.config, self.reuse_len, self.deterministic, self.segments, at_targets=True, parent=None)
        return layer.apply({"params": last}, x_BTD, hidden_LBMD[below], inputs, None)[0]


class TiedBiases(nn.Module):
    """u, v and w if all layers share one set."""

    config: ModelConfig
    segments: bool

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        """[H, E] each."""
        return attention_biases(self, self.config, self.segments)


class XLNet(nn.Module):
    """XLNet without a head.

    Attributes:
      config: architecture.
      reuse_len: number of positions R of a segment that enter the memory; None = all of them.
      compat: behaviour to take from the 2019 code.
      two_streams: targets are predicted from the query stream; False: from the content stream, the only one then.
      left_to_right: text without segments, predicted from the content stream (Transformer-XL): there are no parameters
        for segments and for the query stream.
      last_layer_at_targets: the last layer computes only what the targets need; `hidden_BTD` has their rows alone then
        (only with absolute positions, without dropout).
    """

    config: ModelConfig
    reuse_len: int | None = None
    compat: CompatConfig = CORRECT
    two_streams: bool = True
    left_to_right: bool = False
    last_layer_at_targets: bool = False

    @property
    def depths(self) -> Depths:
        """Biases that all layers share have depth 0, like the embeddings."""
        return {
            **Embedding.DEPTHS,
            "biases": 0,
            "layers": Stack(self.config, self.reuse_len, True, not self.left_to_right).depth,
        }

    @nn.compact
    def __call__(
        self,
        batch: Batch,
        memory: Memory | Cache,
        rows_B: jax.Array | None = None,
        *,
        deterministic: bool,
        place_BT: jax.Array | None = None,
        limit_BP: jax.Array | None = None,
    ) -> Output:
        """Runs one segment.

        Args:
          batch: B rows of T tokens and P target slots; with P = 0 there is no query stream.
          memory: of the last segment; rows that do not continue it see none of it. Or a cache: the tokens are new ones
            of its segment, all of segment 0, and it has all else that they and the targets attend to.
          rows_B: row numbers in the global batch, if this is a part of one; they key the dropout masks.
          deterministic: True switches dropout off; False needs an rng named `dropout`.
          place_BT: with a cache, the positions of the tokens in the segment; None: they are its first T. A token whose
            position is past the segment is not kept.
          limit_BP: the targets see lower ranks than these; None: than those of the tokens at their positions.
        """
        config = self.config
        tied_biases = None if config.biases_per_layer else TiedBiases(config, not self.left_to_right, name="biases")()
        B, T = batch.tokens.shape
        rows_B = jnp.arange(B) if rows_B is None else rows_B

        P = batch.target_positions.shape[1]
        embedding = Embedding(config, self.compat, self.left_to_right, name="embedding")
        # One flat tree of parameters, although two modules declare them.
        nn.share_scope(self, embedding)
        two_streams = self.two_streams and not self.left_to_right
        target_BP = batch.target_positions if P and two_streams else None
        h_BTD, g_BPD = embedding(batch.tokens, target_BP, rows_B, deterministic=deterministic)
        x_BSD, position_BS = h_BTD, jnp.broadcast_to(jnp.arange(T), (B, T))
        if g_BPD is not None:
            x_BSD = jnp.concatenate([h_BTD, g_BPD], axis=1)
            position_BS = jnp.concatenate([position_BS, T + batch.target_positions], axis=1)

        if isinstance(memory, Cache):
            kept, rank_BK = memory.read(batch.rank, place_BT)
            M, table_SND = rank_BK.shape[1] - T, None
            carried = functools.partial(memory.write, rank_BQ=batch.rank, position_BQ=place_BT)
        else:
            M = memory.hidden_LBMD.shape[2]
            valid_B = jnp.where(batch.continues, memory.valid_B, 0)
            filled_BM = jnp.arange(M)[None, :] >= M - valid_B[:, None]
            if self.compat.on("zero_memory"):
                memory = Memory(jnp.where(filled_BM[None, :, :, None], memory.hidden_LBMD, 0), memory.valid_B)
                filled_BM = jnp.ones_like(filled_BM)
            rank_BM = jnp.where(filled_BM, MEMORY_RANK, NEVER)
            kept, rank_BK = memory.hidden_LBMD, jnp.concatenate([rank_BM, batch.rank], axis=1)
            table_SND = None
            if config.position_scheme == "relative":
                positions = RelativePositions(config, self.compat, name="positions")
                table_SND = positions(T, M, rows_B, deterministic=deterministic)
            reuse = T if self.reuse_len is None else min(self.reuse_len, T)
            carried = functools.partial(Memory, valid_B=jnp.minimum(M, valid_B + reuse))
        inputs = AttentionInputs(
            rows_B=rows_B,
            table_SND=table_SND,
            direction_B=batch.direction,
            rank_BT=batch.rank,
            rank_BK=rank_BK,
            segment_BT=batch.segments,
            segment_BK=jnp.concatenate([jnp.zeros((B, M), batch.segments.dtype), batch.segments], axis=1),
            target_BP=batch.target_positions,
            position_BS=position_BS,
            place_BT=place_BT,
            slot_BT=memory.memory_len + place_BT if isinstance(memory, Cache) and place_BT is not None else None,
            limit_BP=limit_BP,
        )

        at_targets = self.last_layer_at_targets
        assert not at_targets or config.position_scheme == "absolute"
        stack = Stack(config, self.reuse_len, deterministic, not self.left_to_right, at_targets, name="layers")
        x_BSD, kept = stack(x_BSD, kept, inputs, tied_biases)
        h_BTD, vectors_BPD = x_BSD[:, :T], x_BSD[:, T:] if P else None
        if at_targets:
            vectors_BPD = h_BTD
        elif P and not two_streams:
            vectors_BPD = jnp.take_along_axis(h_BTD, batch.target_positions[:, :, None], axis=1)
        if vectors_BPD is not None:
            drop = Dropout(config.dropout, name="output_dropout")
            vectors_BPD = drop(vectors_BPD, rows_B, batch.target_positions, deterministic=deterministic)
        return Output(hidden_BTD=h_BTD, target_vectors_BPD=vectors_BPD, memory=carried(kept))


def empty_memory(config: ModelConfig, batch_size: int, slots: int | None = None) -> Memory:
    """A memory without valid slots: equal to no memory at all. By default it has `memory_len` slots."""
    slots = config.memory_len if slots is None else slots
    shape = (config.layers, batch_size, slots, config.d_model)
    return Memory(jnp.zeros(shape, jnp.dtype(config.compute_dtype)), jnp.zeros(batch_size, jnp.int32))
