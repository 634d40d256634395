"""The transformer: embeddings, L layers of one or two streams, and their memory for the next
segment.

    content stream   h_0 = Drop(embedding of the tokens); sees its own token
    query stream     g_0 = Drop(one learned vector); sees its position, not its token; targets only
    memory           m_l' = last M of [m_l ; first R inputs of layer l], no gradient
                     (Transformer-XL, section 3.2)

`XLNet` composes `Embedding`, `RelativePositions` and a scan over `Layer`, made of the `Parts` of a
member. It is a pure function of (parameters, batch, memory) and keeps nothing between calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import MEMORY_RANK, NEVER, Batch, Memory
from xlnet_jax.compat import CORRECT, CompatConfig, hooks
from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels.xla import PackedKeys
from xlnet_jax.members.parts import Parts
from xlnet_jax.model import positions
from xlnet_jax.model.attention import (
    Attention,
    AttentionInputs,
    AttentionStream,
    Biases,
    Rotary,
)
from xlnet_jax.model.cache import Cache, Kept
from xlnet_jax.model.embeddings import Embedding, RelativePositions
from xlnet_jax.model.layers import Dropout, FeedForward, Places, layer_norm
from xlnet_jax.objectives import PLM
from xlnet_jax.objectives.objective import Objective

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names("fused_attention"),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Output(NamedTuple):
    """The result of the model, without logits, which `heads` compute."""

    hidden_BTD: jax.Array
    """Content stream after the last layer, before dropout, for fine-tuning."""
    target_vectors_BPD: jax.Array | None
    """The vectors that predict the targets, at their positions, after the final dropout; None
    without target slots.
    """
    memory: Memory | Cache


class Past(NamedTuple):
    """A memory or a cache, as the layers read it."""

    kept: Any
    """Memory, or keys and values, of all layers, with a leading axis L."""
    rank_BK: jax.Array
    """Ranks of all keys."""
    carry: Callable[[Any], Memory | Cache]
    """Makes the next memory from the results of the layers."""
    table_SND: jax.Array | None = None
    """As in `AttentionInputs`."""
    slot_BT: jax.Array | None = None
    """As in `AttentionInputs`."""


class Layer(nn.Module):
    """One layer as a scan body: it carries all streams, and turns its memory into its memory for
    the next segment.

    Streams share all weights and are one array x_BSD: T rows of the content stream, then P of the
    query stream, if there is one. So each weight has one product, and its gradient one sum over the
    rows.
    """

    config: ModelConfig
    parts: Parts
    reuse_len: int | None

    @nn.compact
    def __call__(
        self,
        x_BSD: jax.Array,
        memory: jax.Array | Kept,
        inputs: AttentionInputs,
        number: jax.Array | None,
    ) -> tuple[jax.Array, Any]:
        """Maps (x, m_l) to (x, m_l'); with a cache, (x, kept keys and values) to (x, keys and
        values of the new rows). `number` is the number of the layer; None if all are alike.
        """
        T, new_memory_BMD = inputs.streams[0].limit_BQ.shape[1], None
        if not isinstance(memory, Kept):
            slots = memory.shape[1]
            reuse = T if self.reuse_len is None else min(self.reuse_len, T)
            # Select, do not multiply by 0: a NaN in a hidden slot must not spread.
            memory = jnp.where((inputs.rank_BK[:, :slots] != NEVER)[:, :, None], memory, 0)
            fresh_BRD = jnp.concatenate([memory, x_BSD[:, :reuse]], axis=1)
            new_memory_BMD = jax.lax.stop_gradient(fresh_BRD[:, fresh_BRD.shape[1] - slots :])
        # With learned positions all of a segment is fresh text, so R is the segment length in
        # training.
        attention = Attention(self.config, self.parts, self.reuse_len or T, name="attention")
        x_BSD, rows = attention(x_BSD, memory, inputs, number)
        feed_forward = FeedForward(self.config, self.parts, name="feed_forward")
        x_BSD = feed_forward(x_BSD, inputs.places)
        # Stored only if a caller makes the collection mutable: auxiliary losses read
        # `layer_outputs`, tests read both.
        self.sow("layer_outputs", "content_stream", x_BSD[:, :T])
        self.sow("intermediates", "query_stream", x_BSD[:, T:])
        return x_BSD, new_memory_BMD if rows is None else rows


class XLNet(nn.Module):
    """A transformer without a head, with the parts of its member for its objective."""

    config: ModelConfig
    reuse_len: int | None = None
    """Number of positions R of a segment that enter the memory; None = all of them."""
    compat: CompatConfig = CORRECT
    objective: Objective = PLM

    @property
    def parts(self) -> Parts:
        """The parts of the network."""
        return self.config.member.parts_of(self.objective)

    @property
    def frozen(self) -> set[tuple[str, ...]]:
        """Parameters that only other objectives of the member use; they have no gradient here."""
        return (
            {("mask_embedding",)}
            if self.parts.streams == 2 and self.parts.targets == "content"
            else set()
        )

    @nn.compact
    def __call__(
        self,
        batch: Batch,
        memory: Memory | Cache,
        rows_B: jax.Array | None = None,
        *,
        place_BT: jax.Array | None = None,
        limit_BP: jax.Array | None = None,
    ) -> Output:
        """Runs one segment, with dropout if Flax's `apply` gets an rng named `dropout`.

        Args:
          batch: B rows of T tokens and P target slots; with P = 0 there is no query stream.
          memory: memory of the last segment, hidden from rows that do not continue it. Or a cache
            with all other keys that the tokens and targets attend to: the tokens are then new in
            its segment, and all have segment number 0.
          rows_B: row numbers in the global batch, if `batch` is a part of it; they select the
            dropout masks, unless `batch` has documents.
          place_BT: with a cache, the positions of the tokens in the segment; None: they are its
            first T. A token whose position is past the segment is not kept.
          limit_BP: the targets see only ranks below these; None: below the ranks of the tokens at
            their positions.
        """
        config, parts = self.config, self.parts
        (B, T), P = batch.tokens.shape, batch.target_positions.shape[1]
        rows_B = jnp.arange(B) if rows_B is None else rows_B

        embedding = Embedding(config, self.compat, parts, name="embedding")
        # One flat tree of parameters, although two modules declare them.
        nn.share_scope(self, embedding)
        tokens, targets = places(batch, rows_B, place_BT)
        x_BSD, g_BPD = embedding(batch, tokens, targets)
        rows, position_BS = tokens
        if batch.documents is None:
            position_BS = jnp.broadcast_to(jnp.arange(T), (B, T))
        streams = (content_stream(batch, place_BT, tokens),)
        if g_BPD is not None:
            x_BSD = jnp.concatenate([x_BSD, g_BPD], axis=1)
            position_BS = jnp.concatenate([position_BS, T + targets.position_BQ], axis=1)
            if batch.documents is not None:
                rows = jnp.concatenate([rows, targets.rows], axis=1)
            streams += (query_stream(batch, limit_BP, targets),)

        past = self._past(batch, memory, place_BT, rows_B)
        M = past.rank_BK.shape[1] - T
        zeros_BM = jnp.zeros((B, M), batch.segments.dtype)
        inputs = AttentionInputs(
            rows_B=rows_B,
            direction_B=batch.direction,
            rank_BK=past.rank_BK,
            segment_BK=jnp.concatenate([zeros_BM, batch.segments], axis=1),
            streams=streams,
            places=Places(rows, position_BS),
            table_SND=past.table_SND,
            slot_BT=past.slot_BT,
            rotary=self._rotary(memory, M + T, batch, tokens, targets),
            # Biases that all layers share have the depth of the embeddings, 0.
            tied_biases=None
            if config.biases_per_layer
            else Biases(config, parts, 0, name="biases")(),
        )

        # A loop over layers that differ is one program: a layer knows its number.
        number_L = None if inputs.rotary is None else jnp.arange(config.layers)
        x_BSD, kept = self._layers()(x_BSD, past.kept, inputs, number_L)
        if parts.final_norm:
            x_BSD = layer_norm("final_norm", config, config.layers)(x_BSD).astype(x_BSD.dtype)
        return Output(
            hidden_BTD=x_BSD[:, :T],
            target_vectors_BPD=self._target_vectors(x_BSD, batch, targets) if P else None,
            memory=past.carry(kept),
        )

    def _layers(self) -> Any:
        """Returns all layers and their memory as one scan: (all streams, memory of all layers) ->
        (all streams, memory of the next segment); see `Layer`. Each layer has its own parameters,
        stacked over a leading axis L; with `share_layers` all layers use the same parameters,
        without that axis.
        """
        config, body, share = self.config, Layer, self.config.share_layers
        # A CPU copies all arrays that a loop stacks and slices: parameters, gradients, saved
        # activations. But outside training unrolled layers cost more compile time than they save.
        unrolled = config.unroll == "on" or (
            config.unroll == "auto" and config.on_cpu and self.has_rng("dropout")
        )
        if config.remat != "none":
            body = nn.remat(Layer, policy=REMAT_POLICIES[config.remat], prevent_cse=unrolled)
        return nn.scan(
            body,
            length=config.layers,
            variable_axes={
                "intermediates": 0,
                "layer_outputs": 0,
                **({} if share else {"params": 0}),
            },
            variable_broadcast="params" if share else False,
            split_rngs={"params": not share, "dropout": True},
            in_axes=(0, nn.broadcast, 0),  # type: ignore[arg-type]
            metadata_params={nn.PARTITION_NAME: "layers"},
            unroll=config.layers if unrolled else 1,
        )(config, self.parts, self.reuse_len, name="layers")

    def _rotary(
        self, memory: Memory | Cache, keys: int, batch: Batch, tokens: Places, targets: Places
    ) -> Rotary | None:
        """Returns the rotary positions of the rows of both streams, and of all K = `keys` keys;
        None if positions are not rotary.
        """
        if self.parts.positions != "rotary":
            return None
        (B, T), documents = batch.tokens.shape, batch.documents
        place_BT = tokens.position_BQ
        if place_BT is None:
            place_BT = jnp.broadcast_to(jnp.arange(T), (B, T))
        slots = memory.memory_len if isinstance(memory, Cache) else memory.hidden_LBMD.shape[2]
        place_BK = jnp.broadcast_to(jnp.arange(keys) - slots, (B, keys))
        if documents is not None:
            place_BK = documents.position
        place_BS = place_BT
        if self.parts.targets == "query":
            place_BS = jnp.concatenate([place_BT, targets.position_BQ], axis=1)
        position_BS, position_BK = (
            batch.direction[:, None] * place_BN for place_BN in (place_BS, place_BK)
        )
        turns = (positions.turns(self.config, x) for x in (position_BS, position_BK))
        return Rotary(position_BS, position_BK, *turns)

    def _past(
        self,
        batch: Batch,
        memory: Memory | Cache,
        place_BT: jax.Array | None,
        rows_B: jax.Array,
    ) -> Past:
        """Reads the memory or the cache."""
        T = batch.tokens.shape[1]
        if isinstance(memory, Cache):
            slot_BT = None if place_BT is None else memory.memory_len + place_BT
            carry = functools.partial(memory.write, rank_BQ=batch.rank, slot_BQ=slot_BT)
            return Past(*memory.read(batch.rank, slot_BT), carry, slot_BT=slot_BT)
        M = memory.hidden_LBMD.shape[2]
        valid_B = jnp.where(batch.continues, memory.valid_B, 0)
        filled_BM = jnp.arange(M)[None, :] >= M - valid_B[:, None]
        kept, seen_BM = hooks.seen_slots(self.compat, memory.hidden_LBMD, filled_BM)
        rank_BK = jnp.concatenate([jnp.where(seen_BM, MEMORY_RANK, NEVER), batch.rank], axis=1)
        table_SND = None
        if self.parts.positions == "relative":
            # One mask for the whole batch: the table is the same for all its rows.
            masks_S = hooks.position_masks(self.compat, rows_B)
            table = RelativePositions(self.config, name="positions")
            table_SND = table(T, M, masks_S)
        reuse = T if self.reuse_len is None else min(self.reuse_len, T)
        carry = functools.partial(Memory, valid_B=jnp.minimum(M, valid_B + reuse))
        return Past(kept, rank_BK, carry, table_SND)

    def _target_vectors(self, x_BSD: jax.Array, batch: Batch, targets: Places) -> jax.Array:
        """Returns `Output.target_vectors_BPD`."""
        T = batch.tokens.shape[1]
        if self.parts.targets == "content":
            at_BP1 = batch.target_positions[:, :, None]
            vectors_BPD = jnp.take_along_axis(x_BSD[:, :T], at_BP1, axis=1)
        else:
            vectors_BPD = x_BSD[:, T:]
        if not self.parts.output_dropout:
            return vectors_BPD
        dropout = Dropout(self.config.dropout, name="output_dropout")
        return dropout(vectors_BPD, *targets)


def places(
    batch: Batch, rows_B: jax.Array, place_BT: jax.Array | None = None
) -> tuple[Places, Places]:
    """Returns the places of the tokens and of the targets; arguments as in `XLNet`."""
    documents, target_BP = batch.documents, batch.target_positions
    if documents is None:
        return Places(rows_B, place_BT), Places(rows_B, target_BP)
    tokens = Places(documents.number, documents.position)
    return tokens, Places(*(jnp.take_along_axis(x, target_BP, axis=1) for x in tokens))


def content_stream(batch: Batch, place_BT: jax.Array | None, tokens: Places) -> AttentionStream:
    """Returns the tokens as a stream; `place_BT` as in `XLNet`."""
    documents = batch.documents
    packed = documents and PackedKeys(documents.floor, *tokens, documents.position)
    # Content sees ranks up to its own. Padding has the highest limit: it sees all text, but not
    # itself. With documents, padding sees nothing.
    limit_BT = jnp.minimum(batch.rank + 1, NEVER)
    return AttentionStream(limit_BT, batch.segments, place_BT, packed)


def query_stream(batch: Batch, limit_BP: jax.Array | None, targets: Places) -> AttentionStream:
    """Returns the targets as a stream; `limit_BP` as in `XLNet`."""
    if limit_BP is not None:
        segment_BP = jnp.zeros_like(batch.target_positions)
    else:
        limit_BP, segment_BP = (
            jnp.take_along_axis(x, batch.target_positions, axis=1)
            for x in (batch.rank, batch.segments)
        )
    packed, documents = None, batch.documents
    if documents is not None:
        floor_BP = jnp.take_along_axis(documents.floor, batch.target_positions, axis=1)
        # A slot without a target sees nothing.
        floor_BP = jnp.where(batch.target_weights != 0, floor_BP, NEVER)
        packed = PackedKeys(floor_BP, *targets, documents.position)
    return AttentionStream(limit_BP, segment_BP, batch.target_positions, packed)


def empty_memory(config: ModelConfig, batch_size: int, slots: int | None = None) -> Memory:
    """Returns a memory without valid slots, equal to no memory at all; by default with `memory_len`
    slots.
    """
    slots = config.memory_len if slots is None else slots
    hidden_LBMD = jnp.zeros(
        (config.layers, batch_size, slots, config.d_model), config.compute_dtype
    )
    return Memory(hidden_LBMD, jnp.zeros(batch_size, jnp.int32))
