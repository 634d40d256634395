"""Adaptive input embedding and adaptive softmax: rare words have narrow vectors, and are predicted in two steps.

    cut-offs 0 < c_1 < .. < c_K < V divide the vocabulary, sorted by frequency, into a shortlist 0 and tail clusters i:
    words c_i .. c_(i+1) - 1 with vectors of width E_i = d_embed / div_val^i

    embedding of word x of cluster i    P_i^T W_i[x]                       W_i [size, E_i], P_i [E_i, D]
    softmax                             p(x) = p_0(x)                      x in the shortlist
                                        p(x) = p_0(cluster i) p_i(x)       x in tail cluster i

p_0 is a softmax over the words of the shortlist and the tail clusters, p_i one over the words of its cluster; their
logits are W_i' P_i' h + b_i. W' and P' may be W and P (`tie_embedding`, `tie_projections`). All clusters are computed
for all positions: shapes are static, and nothing is sorted or gathered. Grave et al. 2017, Baevski and Auli 2019;
Transformer-XL, section 4.1.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels import vocabulary_loss
from xlnet_jax.model.heads import plain_nll
from xlnet_jax.model.layers import accumulator, parameter, product

PROJECTION_STD = 0.01
"""Of the initial projections, as in the original (`proj_init_std`)."""

Tables = list[jax.Array]
Projections = list[jax.Array | None]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Words `first` to `first + size - 1`, with vectors of `width`."""

    first: int
    size: int
    width: int

    def index(self, tokens: jax.Array) -> jax.Array:
        """Places of the tokens in the cluster; of those outside any valid place."""
        return jnp.clip(tokens - self.first, 0, self.size - 1)

    def has(self, tokens: jax.Array) -> jax.Array:
        """Which tokens belong to the cluster."""
        return (tokens >= self.first) & (tokens < self.first + self.size)


def clusters(config: ModelConfig) -> tuple[Cluster, ...]:
    """The shortlist and the tail clusters."""
    ends = [*config.cutoff_list(), config.vocab_size]
    width = config.d_embed or config.d_model
    starts = [0, *ends[:-1]]
    return tuple(
        Cluster(a, b - a, width // config.div_val**i) for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    )


def projections(config: ModelConfig) -> int:
    """Number of the embedding's projections: one for each cluster, or for all if their widths are equal, or none."""
    return len(clusters(config)) if config.div_val > 1 else int(config.d_embed not in (0, config.d_model))


class AdaptiveEmbedding(nn.Module):
    """The embedding of words. Its parameters: `table_i` [size, E_i] and `projection_i` [E_i, D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        """[B, T, D] in the compute dtype."""
        config = self.config
        own = {f"projection_{i}": declare_projection(self, i) for i in range(projections(config))}
        own |= {f"table_{i}": declare_table(self, i) for i in range(len(clusters(config)))}
        parts = []
        for cluster, table, projection in zip(clusters(config), *unpacked(config, own), strict=True):
            x_BTC = lookup(table, cluster.index(tokens_BT), config)
            x_BTC = jnp.where(cluster.has(tokens_BT)[..., None], x_BTC, 0).astype(config.compute_dtype)
            parts.append(x_BTC if projection is None else product("btc,cd->btd", x_BTC, projection))
        # All but one of them are 0.
        return sum(parts[1:], parts[0])


class AdaptiveHead(nn.Module):
    """The adaptive softmax, in place of `LMHead`.

    Its parameters: `bias` [V + K], of the words and then of the tail clusters; `cluster_table` [K, E_0]; and `table_i`
    and `projection_i` where they are not the embedding's.
    """

    config: ModelConfig

    def __call__(self, embedding: dict[str, jax.Array], vectors_BPD: jax.Array) -> jax.Array:
        """Log-probabilities [B, P, V] in at least float32. `embedding`: the parameters of `AdaptiveEmbedding`."""
        found = [jax.nn.log_softmax(logits(*parts)) for parts in self._softmaxes(embedding, vectors_BPD)]
        head_BPN, size = found[0], clusters(self.config)[0].size
        tails = [head_BPN[..., size + i : size + i + 1] + tail for i, tail in enumerate(found[1:])]
        return jnp.concatenate([head_BPN[..., :size], *tails], axis=-1)

    def nll(self, embedding: dict[str, jax.Array], vectors_BPD: jax.Array, target_tokens_BP: jax.Array) -> jax.Array:
        """-log p(target) in nats: [B, P], at least float32."""
        shortlist, *tails = clusters(self.config)
        head, *others = self._softmaxes(embedding, vectors_BPD)
        column_BP = target_tokens_BP
        for i, tail in enumerate(tails):
            column_BP = jnp.where(tail.has(target_tokens_BP), shortlist.size + i, column_BP)
        nll_BP = softmax_nll(*head, column_BP)
        for tail, softmax in zip(tails, others, strict=True):
            tail_BP = softmax_nll(*softmax, tail.index(target_tokens_BP))
            nll_BP += jnp.where(tail.has(target_tokens_BP), tail_BP, 0)
        return nll_BP

    @nn.compact
    def _softmaxes(
        self, embedding: dict[str, jax.Array], vectors_BPD: jax.Array
    ) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
        """Table, bias and vectors of the shortlist with the tail clusters, and of each tail cluster."""
        config, parts = self.config, clusters(self.config)
        tails = len(parts) - 1
        bias = parameter(self, "bias", (config.vocab_size + tails,), (None,), nn.initializers.zeros)
        tables, shared = unpacked(config, embedding)
        if not config.tie_embedding:
            tables = [declare_table(self, i) for i in range(len(parts))]
        softmaxes = []
        for i, (cluster, table, projection) in enumerate(zip(parts, tables, shared, strict=True)):
            own = config.tie_projections == "none" or (config.tie_projections == "rest" and i == 0)
            if projection is not None and own:
                projection = declare_projection(self, i)
            bias_N = bias[cluster.first : cluster.first + cluster.size]
            if i == 0 and tails:
                cluster_table = parameter(self, "cluster_table", (tails, cluster.width), (None, None))
                table, bias_N = jnp.concatenate([table, cluster_table]), jnp.concatenate([bias_N, bias[-tails:]])
            x = vectors_BPD if projection is None else product("bpd,cd->bpc", vectors_BPD, projection)
            softmaxes.append((table, bias_N, x))
        return softmaxes


def declare_table(module: nn.Module, i: int) -> jax.Array:
    """The vectors of one cluster. Sizes are any numbers: they are never split; only full widths are, over `fsdp`."""
    cluster = clusters(module.config)[i]  # type: ignore[attr-defined]
    whole = cluster.width == clusters(module.config)[0].width  # type: ignore[attr-defined]
    return parameter(module, f"table_{i}", (cluster.size, cluster.width), (None, "embed" if whole else None))


def declare_projection(module: nn.Module, i: int) -> jax.Array:
    """The projection of one cluster, [E_i, D]."""
    config: ModelConfig = module.config  # type: ignore[attr-defined]
    shape = clusters(config)[i].width, config.d_model
    return parameter(module, f"projection_{i}", shape, (None, "embed"), nn.initializers.normal(PROJECTION_STD))


def unpacked(config: ModelConfig, embedding: dict[str, jax.Array]) -> tuple[Tables, Projections]:
    """Table and projection of each cluster, from the parameters of `AdaptiveEmbedding`."""
    number, every = projections(config), range(len(clusters(config)))
    shared: Projections = [embedding[f"projection_{min(i, number - 1)}"] if number else None for i in every]
    return [embedding[f"table_{i}"] for i in every], shared


def lookup(table_VD: jax.Array, index_BT: jax.Array, config: ModelConfig) -> jax.Array:
    """Rows of a table, [B, T, D] in its dtype, times sqrt(d_model) with `scale_embedding`."""
    # The whole table: inside shard_map the compiler cannot split a lookup over rows and over the table at once.
    table_VD = nn.with_logical_constraint(table_VD, (None, None))
    # Not rounded yet: the gradient of a frequent piece is a sum of many terms, which needs float32.
    x_BTD = table_VD[index_BT]
    return x_BTD * config.d_model**0.5 if config.scale_embedding else x_BTD


def logits(table_NC: jax.Array, bias_N: jax.Array, x_BPC: jax.Array) -> jax.Array:
    """[B, P, N] in at least float32."""
    high = accumulator(x_BPC.dtype)
    return product("bpc,nc->bpn", x_BPC, table_NC, high) + bias_N.astype(high)[None, None]


def softmax_nll(table_NC: jax.Array, bias_N: jax.Array, x_BPC: jax.Array, target_BP: jax.Array) -> jax.Array:
    """-log p(target) under one softmax, [B, P]; many targets never have all their logits at once."""
    if vocabulary_loss.pays(*target_BP.shape):
        return vocabulary_loss.nll(table_NC, bias_N, x_BPC, target_BP)
    return plain_nll(logits(table_NC, bias_N, x_BPC), target_BP)
