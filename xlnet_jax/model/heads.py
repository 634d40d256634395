"""The heads of pretraining: they turn vectors of the transformer into predictions of tokens and of
pairs of sentences.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import Batch
from xlnet_jax.config import ModelConfig
from xlnet_jax.kernels import vocabulary_loss
from xlnet_jax.members.parts import Parts
from xlnet_jax.model.embeddings import clusters, declare_projection, declare_table, tables
from xlnet_jax.model.layers import (
    ACTIVATIONS,
    HEAD_DEPTH,
    Dense,
    Dropout,
    accumulator,
    layer_norm,
    parameter,
    product,
    residual_init,
)


class LMHead(nn.Module):
    """The softmax over the vocabulary, with its own bias (`lm_loss` of the original). Training
    calls only `nll`.

    With `parts.head=dense` the vectors h first become LN(act(W h + b)), of the width of the word
    embedding (BERT).

    It has the weights of the word embedding, or its own weights (`tie_embedding`,
    `tie_projections`). With the clusters of `embeddings`, cluster 0 being the shortlist and i > 0
    the tail clusters, rare words are predicted in two steps:

        p(x) = p_0(x)                      x in the shortlist
        p(x) = p_0(cluster i) p_i(x)       x in tail cluster i

    p_0 is a softmax over the words of the shortlist and the tail clusters, p_i a softmax over the
    words of tail cluster i; their logits are W_i' P_i' h + b_i. All clusters are computed for all
    positions: shapes are static, and nothing is sorted or gathered. Grave et al. 2017, Baevski and
    Auli 2019; Transformer-XL, section 4.1.

    Its parameters: `bias` [V + K], of the words and then of the tail clusters; `cluster_table` [K,
    E_0]; and `table_i` and `projection_i` where it does not use the embedding's.
    """

    config: ModelConfig
    parts: Parts = Parts()

    def __call__(self, embedding: Any, vectors_BPD: jax.Array) -> jax.Array:
        """Returns logits [B, P, V] in at least float32, or with clusters log-probabilities: for
        tests, generation and export.

        `embedding` is the parameter `word_embedding`: a table [V, D], or the parameters of
        `embeddings.WordEmbedding`.
        """
        head_BPN, *tails = (logits(*parts) for parts in self._softmaxes(embedding, vectors_BPD))
        if not tails:
            return head_BPN
        head_BPN, size = jax.nn.log_softmax(head_BPN), clusters(self.config)[0].size
        logs = [
            head_BPN[..., size + i : size + i + 1] + jax.nn.log_softmax(tail)
            for i, tail in enumerate(tails)
        ]
        return jnp.concatenate([head_BPN[..., :size], *logs], axis=-1)

    def nll(
        self,
        embedding: Any,
        vectors_BPD: jax.Array,
        target_tokens_BP: jax.Array,
        smoothing: float = 0.0,
    ) -> jax.Array:
        """Returns -log p(target) in nats: [B, P], at least float32. For many targets, memory never
        holds all logits at once.

        With `smoothing` e: (1 - e) times this loss plus e times its mean over the vocabulary; not
        with clusters.
        """
        shortlist, *tails = clusters(self.config)
        head, *softmaxes = self._softmaxes(embedding, vectors_BPD)
        column_BP = target_tokens_BP
        for i, tail in enumerate(tails):
            column_BP = jnp.where(tail.has(target_tokens_BP), shortlist.size + i, column_BP)
        nll_BP = softmax_nll(*head, column_BP, smoothing)
        for tail, softmax in zip(tails, softmaxes, strict=True):
            tail_BP = softmax_nll(*softmax, tail.index(target_tokens_BP))
            nll_BP += jnp.where(tail.has(target_tokens_BP), tail_BP, 0)
        return nll_BP

    @nn.compact
    def _softmaxes(
        self, embedding: Any, vectors_BPD: jax.Array
    ) -> list[tuple[jax.Array, jax.Array, jax.Array, str | None, bool]]:
        """Returns the first arguments of `logits` for each softmax: for the shortlist with the tail
        clusters, then for each tail cluster. Clusters are never split.
        """
        config, groups, head = self.config, clusters(self.config), self.parts.head
        tails, axis = len(groups) - 1, None if config.adaptive else "vocab"
        if head.startswith("dense"):
            vectors_BPD = transformed(config, self.parts, groups[0].width, vectors_BPD)
        if head == "bare":
            bias = jnp.zeros(config.vocab_size)
        else:
            bias = parameter(
                self,
                "bias",
                (config.vocab_size + tails,),
                (axis,),
                "vector",
                HEAD_DEPTH,
                nn.initializers.zeros,
                decays=False,
            )
        softmaxes = []
        for i, (cluster, (table, projection)) in enumerate(
            zip(groups, tables(config, embedding), strict=True)
        ):
            if not config.tie_embedding:
                table = declare_table(self, i, HEAD_DEPTH)
            untied = config.tie_projections == "none" or (
                config.tie_projections == "rest" and i == 0
            )
            if projection is not None and untied:
                projection = declare_projection(self, i, HEAD_DEPTH)
            bias_N = bias[cluster.first : cluster.first + cluster.size]
            if i == 0 and tails:
                shape = tails, cluster.width
                cluster_table = parameter(
                    self, "cluster_table", shape, (None, None), "table", HEAD_DEPTH
                )
                table, bias_N = (
                    jnp.concatenate([table, cluster_table]),
                    jnp.concatenate([bias_N, bias[-tails:]]),
                )
            x = (
                vectors_BPD
                if projection is None
                else product("bpd,cd->bpc", vectors_BPD, projection, cpu=config.on_cpu)
            )
            softmaxes.append((table, bias_N, x, axis, config.on_cpu))
        return softmaxes


def transformed(config: ModelConfig, parts: Parts, width: int, h_BPD: jax.Array) -> jax.Array:
    """Returns LN(act(W h + b)), of another width. The module that calls gets the parameters
    `transform` and `norm`.
    """
    activation = ACTIVATIONS["gelu_erf" if parts.head == "dense_erf" else config.activation]
    init, bias = residual_init(config, parts), parts.layer_biases
    axes = ("embed", None)
    transform = Dense(config, width, axes, "kernel", HEAD_DEPTH, init, bias, name="transform")
    y_BPE = activation(transform(h_BPD))
    return layer_norm("norm", config, HEAD_DEPTH)(y_BPE).astype(y_BPE.dtype)


class SentenceHead(nn.Module):
    """The label of a pair of sentences: softmax(V Drop(tanh(W h + b)) + c) of the vector h of CLS
    (BERT's pooler).
    """

    config: ModelConfig
    parts: Parts

    @nn.compact
    def __call__(self, h_BTD: jax.Array, batch: Batch, rows_B: jax.Array) -> jax.Array:
        """Returns -log p(`batch.label`) in nats, [B], at least float32."""
        config, D = self.config, self.config.d_model
        h_B1D = jnp.take_along_axis(h_BTD, batch.summary_position[:, None, None], axis=1)
        pooler = Dense(config, D, ("embed", None), "kernel", HEAD_DEPTH, name="pooler")
        s_B1D = jnp.tanh(pooler(h_B1D)).astype(accumulator(h_BTD.dtype))
        s_B1D = Dropout(self.parts.sentence_dropout)(s_B1D, rows_B)
        logits_B12 = Dense(config, 2, ("embed", None), "kernel", HEAD_DEPTH, name="sentence_head")(
            s_B1D
        )
        return plain_nll(logits_B12, batch.label[:, None])[:, 0]


def logits(
    table_VD: jax.Array,
    bias_V: jax.Array,
    x_BPD: jax.Array,
    axis: str | None = None,
    cpu: bool = False,
) -> jax.Array:
    """Returns logits [B, P, V] in at least float32. `axis`: the logical axis that splits the rows
    of the table; `cpu`: see `layers.product`.
    """
    high, word = accumulator(x_BPD.dtype), "v" if axis else "n"
    logits_BPV = (
        product(f"bpd,{word}d->bp{word}", x_BPD, table_VD, high, cpu)
        + bias_V.astype(high)[None, None]
    )
    return nn.with_logical_constraint(logits_BPV, ("batch", None, axis))


def softmax_nll(
    table_VD: jax.Array,
    bias_V: jax.Array,
    x_BPD: jax.Array,
    axis: str | None,
    cpu: bool,
    target_BP: jax.Array,
    smoothing: float = 0.0,
) -> jax.Array:
    """Returns -log p(target) under one softmax, [B, P]; for many targets, memory never holds all
    logits at once.
    """
    if vocabulary_loss.pays(*target_BP.shape):
        return vocabulary_loss.nll(table_VD, bias_V, x_BPD, target_BP, smoothing)
    return plain_nll(logits(table_VD, bias_V, x_BPD, axis, cpu), target_BP, smoothing)


def weighed(loss: jax.Array, weight: jax.Array) -> jax.Array:
    """Multiplies loss by weight; with weight 0 the gradient is exactly 0, whatever the loss is."""
    return jnp.where(weight != 0, loss, 0) * weight


def plain_nll(logits_BPV: jax.Array, target_BP: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """Returns -log p(target) from all logits, [B, P]; `smoothing` as in `LMHead.nll`."""
    # A comparison, not a gather: the vocabulary may be split, and a gather's gradient is a scatter.
    is_target_BPV = jnp.arange(logits_BPV.shape[-1])[None, None] == target_BP[..., None]
    chosen_BP = jnp.where(is_target_BPV, logits_BPV, 0).sum(axis=-1)
    if smoothing:
        chosen_BP = (1 - smoothing) * chosen_BP + smoothing * logits_BPV.mean(axis=-1)
    return jax.nn.logsumexp(logits_BPV, axis=-1) - chosen_BP
