"""The inputs of the layers: vectors of words, query vectors, and the table of relative positions.

Words x have vectors of width D, or narrow vectors that are projected to D. A clustered embedding
cuts the vocabulary, sorted by frequency, into clusters, and rare words have narrower vectors (Grave
et al. 2017, Baevski and Auli 2019; Transformer-XL, section 4.1). A factorised embedding is a single
cluster (ALBERT):

    cut-offs                         0 < c_1 < .. < c_K < V
    cluster i                        words c_i .. c_(i+1) - 1, width E_i = d_embed / div_val^i
    vector of word x of cluster i    P_i^T W_i[x], with W_i [size, E_i] and P_i [E_i, D]
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import Batch
from xlnet_jax.compat import CompatConfig, hooks
from xlnet_jax.config import ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.members.parts import Parts
from xlnet_jax.model import positions
from xlnet_jax.model.layers import (
    Dense,
    Depth,
    Dropout,
    Initializer,
    Places,
    accumulator,
    layer_norm,
    normal,
    parameter,
    product,
)

PROJECTION_STD = 0.01
"""Standard deviation of the initial projections, as in the original code of Transformer-XL
(`proj_init_std`).
"""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Words `first` to `first + size - 1`, with vectors of `width`."""

    first: int
    size: int
    width: int

    def index(self, tokens: jax.Array) -> jax.Array:
        """Returns the tokens' rows in the table of the cluster; any valid row for other tokens."""
        return jnp.clip(tokens - self.first, 0, self.size - 1)

    def has(self, tokens: jax.Array) -> jax.Array:
        """Returns which tokens belong to the cluster."""
        return (tokens >= self.first) & (tokens < self.first + self.size)


def clusters(config: ModelConfig) -> tuple[Cluster, ...]:
    """Returns the cluster of frequent words, then the tail clusters; without `cutoffs` only one."""
    bounds = itertools.pairwise([0, *config.cutoff_list(), config.vocab_size])
    width = config.d_embed or config.d_model
    return tuple(Cluster(a, b - a, width // config.div_val**i) for i, (a, b) in enumerate(bounds))


def projections(config: ModelConfig) -> int:
    """Returns the number of projections: one per cluster, one in all for equal widths, or 0."""
    if config.div_val > 1:
        return len(clusters(config))
    return int(config.adaptive and config.d_embed not in (0, config.d_model))


class WordEmbedding(nn.Module):
    """A factorised or clustered embedding. Its parameters: `table_i` [size, E_i] and `projection_i`
    [E_i, D].
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        """Returns [B, T, D] in the compute dtype."""
        config = self.config
        params = {
            f"projection_{i}": declare_projection(self, i, 0) for i in range(projections(config))
        }
        params |= {f"table_{i}": declare_table(self, i, 0) for i in range(len(clusters(config)))}
        parts = []
        for cluster, (table, projection) in zip(
            clusters(config), tables(config, params), strict=True
        ):
            x_BTC = lookup(table, cluster.index(tokens_BT), config)
            x_BTC = jnp.where(cluster.has(tokens_BT)[..., None], x_BTC, 0).astype(
                config.compute_dtype
            )
            parts.append(
                x_BTC
                if projection is None
                else product("btc,cd->btd", x_BTC, projection, cpu=config.on_cpu)
            )
        # A token has a vector from one cluster, and zeros from the others.
        return sum(parts[1:], parts[0])


def declare_table(module: Any, i: int, depth: Depth) -> jax.Array:
    """Declares the table of one cluster. Only full widths are split, over `fsdp`; cluster sizes
    need not be divisible.
    """
    cluster = clusters(module.config)[i]
    axes = None, "embed" if cluster.width == clusters(module.config)[0].width else None
    return parameter(module, f"table_{i}", (cluster.size, cluster.width), axes, "table", depth)


def declare_projection(module: Any, i: int, depth: Depth) -> jax.Array:
    """Declares the projection of one cluster, [E_i, D]."""
    shape, init = (
        (clusters(module.config)[i].width, module.config.d_model),
        nn.initializers.normal(PROJECTION_STD),
    )
    return parameter(module, f"projection_{i}", shape, (None, "embed"), "kernel", depth, init)


def tables(config: ModelConfig, params: Any) -> list[tuple[jax.Array, jax.Array | None]]:
    """Returns table and projection of each cluster, from the parameters of an embedding, which may
    be packed.
    """
    number, groups = projections(config), clusters(config)

    def table(i: int) -> jax.Array:
        return meshes.reshaped(
            params[f"table_{i}"] if config.adaptive else params, (groups[i].size, groups[i].width)
        )

    def projection(i: int) -> jax.Array:
        return meshes.reshaped(params[f"projection_{i}"], (groups[i].width, config.d_model))

    return [
        (table(i), projection(min(i, number - 1)) if number else None) for i in range(len(groups))
    ]


def lookup(table_VD: jax.Array, index_BT: jax.Array, config: ModelConfig) -> jax.Array:
    """Looks up table rows: [B, T, D] in its dtype, times sqrt(d_model) with `scale_embedding`."""
    # The whole table: inside shard_map the compiler cannot split a lookup over rows and over the
    # table at once.
    table_VD = nn.with_logical_constraint(table_VD, (None, None))
    # Not rounded yet: the gradient of a frequent piece is a sum of many terms, which needs float32.
    x_BTD = table_VD[index_BT]
    return x_BTD * config.d_model**0.5 if config.scale_embedding else x_BTD


class Embedding(nn.Module):
    """h_0 = Drop(vectors of the tokens) and, for a query stream, g_0 = Drop(one learned vector) at
    the targets.

    With `positions=input` and `segments=input` the vectors of a token's position and segment are
    added to the vector of its word. The sum may be normalised before dropout, and projected to D
    after it (BERT, section 3; ALBERT, section 3.1).
    """

    config: ModelConfig
    compat: CompatConfig
    parts: Parts

    @nn.compact
    def __call__(
        self,
        batch: Batch,
        tokens: Places,
        targets: Places,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns content stream h_BTD and query stream g_BPD (None without a query stream), in the
        compute dtype; `tokens` and `targets` are the places of both.
        """
        config, member, T = self.config, self.config.member, batch.tokens.shape[1]
        dtype, width = jnp.dtype(config.compute_dtype), clusters(config)[0].width
        h_BTD = self._words(batch.tokens, width).astype(dtype)
        padding_BT = batch.tokens == member.padding_row
        if member.padding_row >= 0:
            h_BTD = without_gradient(padding_BT, h_BTD)
        place_BT = tokens.position_BQ
        at_BT = jnp.arange(T)[None] if place_BT is None else place_BT
        if self.parts.positions == "input":
            first, place = member.first_position, T if place_BT is None else place_BT
            if first:  # padding has its own row
                place = jnp.where(padding_BT, -1, at_BT)
            place_BTD = positions.learned(self, config.max_positions, width, place, 0, first)
            h_BTD = h_BTD + (
                without_gradient(padding_BT, place_BTD) if first else place_BTD
            ).astype(dtype)
        if self.parts.positions == "sinusoids":
            place_BTD = positions.absolute_sinusoids(at_BT, width, accumulator(dtype))
            h_BTD = h_BTD + place_BTD.astype(dtype)
        if self.parts.segments == "input":
            table_SD = parameter(
                self, "segment_embedding", (member.segments, width), (None, "embed"), "table", 0
            )
            h_BTD = h_BTD + lookup(table_SD, batch.segments, config).astype(dtype)
        if self.parts.embedding_norm:
            h_BTD = layer_norm("embedding_norm", config, 0)(h_BTD).astype(dtype)
        mask_D = None
        if self.parts.streams == 2:
            shape, init = (config.d_model,), hooks.mask_initializer(self.compat, config.d_model)
            mask_D = parameter(self, "mask_embedding", shape, ("embed",), "vector", 0, init)

        h_BTD = Dropout(config.dropout, name="token_dropout")(h_BTD, tokens.rows, at_BT)
        if self.parts.projected:
            h_BTD = Dense(
                config, config.d_model, (None, "embed"), "kernel", 0, name="embedding_projection"
            )(h_BTD)
        h_BTD = nn.with_logical_constraint(h_BTD, ("batch", None, None))
        slots = batch.target_positions.shape
        if mask_D is None or self.parts.targets != "query" or not slots[1]:
            return h_BTD, None
        g_BPD = jnp.broadcast_to(mask_D, (*slots, config.d_model)).astype(dtype)
        g_BPD = Dropout(config.dropout, name="query_dropout")(g_BPD, *targets)
        return h_BTD, g_BPD

    def _words(self, tokens_BT: jax.Array, width: int) -> jax.Array:
        """Returns the vectors of the tokens, [B, T, width]."""
        config = self.config
        if config.adaptive:
            return WordEmbedding(config, name="word_embedding")(tokens_BT)
        table_VD = parameter(
            self,
            "word_embedding",
            (config.vocab_size, width),
            ("vocab", "embed"),
            "table",
            0,
            with_zero_row(normal(config), config.member.padding_row),
        )
        return lookup(table_VD, tokens_BT, config)


class RelativePositions(nn.Module):
    """The sinusoids of all distances in a segment and its memory; each layer projects them
    (`positions.project`).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, segment_len: int, memory_len: int, masks_S: jax.Array) -> jax.Array:
        """Returns the table after dropout, [S, N, D] in at least float32; `masks_S` are the keys of
        the S masks.
        """
        table_ND = positions.sinusoids(self.config, segment_len, memory_len)
        table_SND = jnp.broadcast_to(table_ND, (len(masks_S), *table_ND.shape))
        return Dropout(self.config.dropout)(table_SND, masks_S)


def without_gradient(padding_BT: jax.Array, x_BTD: jax.Array) -> jax.Array:
    """Stops the gradient of x at padding, because losses over all positions read padding too."""
    return jnp.where(padding_BT[..., None], jax.lax.stop_gradient(x_BTD), x_BTD)


def with_zero_row(initializer: Initializer, row: int) -> Initializer:
    """Returns the initialiser with zeros in one row; -1 = no zeros."""
    return initializer if row < 0 else lambda *args: initializer(*args).at[row].set(0)
