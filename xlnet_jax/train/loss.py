"""The loss of a segment: which vector predicts each target, and how the losses are summed.

    plm  max E_z [ sum_t log p(x_{z_t} | x_{z_<t}) ], over the last targets of the factorisation
         order z (XLNet, eq. 5):
         the query stream at a target predicts the token at that position
    clm  max sum_t log p(x_t | x_<t): the content stream predicts the token after it
         (Transformer-XL)
    mlm  max sum_m log p(x_m | corrupted x): the content stream predicts the original token
         (BERT)
    mdm  max T / n sum_m log p(x_m | x without its n masked tokens), n uniform from 1 to T, the
         number of maskable tokens: its mean is a lower bound on log p(x) (LLaDA, arXiv 2502.09992)

In training, `clm` may also have auxiliary losses, weighted by the batch (`batch.Auxiliary`), and
`mlm` a sentence loss: whether B follows A (BERT's next sentence), or whether both are in order
(ALBERT).

The loss of tokens may be smoothed in training (`train.label_smoothing`); auxiliary losses and the
sentence loss are not smoothed.

The losses of each name are summed over all rows and divided once, usually by the summed weights. So
a row with fewer real targets weighs less, on any number of devices (the 2019 code averages the
means of the cores). A row of `mdm` weighs T for any number of masked tokens.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.model import heads
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.model.vanilla import AuxiliaryHeads


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowLosses:
    """The losses of a segment, row by row."""

    sums: dict[str, tuple[jax.Array, jax.Array]]
    """By name of a loss (sum_B, weight_B): summed weighted negative log-likelihoods in nats, and
    the weights that divide them.
    """
    memory: Any
    """The memory for the next segment; see `LanguageModel.carried`."""


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A transformer and the head that predicts tokens: the model of pretraining.

    The step, the gradient, evaluations and checkpoints call only its public methods, with one tree
    of parameters. The model of a task (`finetune.recipe.TaskModel`) has the same methods and its
    own losses.

    The tree has the parameters of the transformer, the parameters of the head under `lm_head`, and
    the parameters of auxiliary losses under `auxiliary_heads`.
    """

    transformer: XLNet
    auxiliary: AuxiliaryHeads | None = None
    sentences: bool = False
    """Whether training has a sentence loss."""
    label_smoothing: float = 0.0
    """Label smoothing of the loss of tokens in training."""

    @property
    def head(self) -> heads.LMHead:
        """The head of the loss of tokens; its parameters are under `lm_head`."""
        return heads.LMHead(self.transformer.config, self.transformer.parts)

    @property
    def sentence_head(self) -> heads.SentenceHead:
        """The head of the sentence loss; its parameters are under `pooler` and `sentence_head`."""
        return heads.SentenceHead(self.transformer.config, self.transformer.parts)

    def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
        """Returns fresh parameters in Flax's boxes (`layers.Declared`); `batch` is an example that
        gives the shapes.
        """
        memory = empty_memory(self.transformer.config, len(batch.direction))
        params = self.transformer.init(key, batch, memory)["params"]
        embedding = nn.meta.unbox(params["word_embedding"])
        vectors_BPD = jnp.zeros((1, 1, self.transformer.config.d_model))
        # Another key: with the same key, parameters of equal names would draw equal numbers.
        lm_head = self.head.init(jax.random.fold_in(key, 1), embedding, vectors_BPD)
        params = {**params, "lm_head": lm_head.get("params", {})}
        h_BTD = jnp.zeros((*batch.tokens.shape, self.transformer.config.d_model))
        if self.sentences:
            rows_B = jnp.arange(len(h_BTD))
            of_pairs = self.sentence_head.init(jax.random.fold_in(key, 3), h_BTD, batch, rows_B)
            params |= of_pairs["params"]
        if self.auxiliary is not None:
            streams_LBTD = jnp.broadcast_to(h_BTD, (self.transformer.config.layers, *h_BTD.shape))
            of_layers = self.auxiliary.init(jax.random.fold_in(key, 2), streams_LBTD, h_BTD, batch)
            params["auxiliary_heads"] = of_layers["params"]
        return params

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The coefficient of each loss in the total that training minimises; evaluations score the
        first loss.
        """
        further = ["auxiliary"] * (self.auxiliary is not None) + ["sentences"] * self.sentences
        return dict.fromkeys(["tokens", *further], 1.0)

    def weights(self, batch: Batch, dtype: Any = None) -> tuple[jax.Array, jax.Array]:
        """Returns the weight of every target in the loss of tokens, [..., B, P], and the number of
        tokens that the loss of a row covers, [..., B].

        The loss of a row covers its targets. A bound covers all P maskable tokens of a row, and
        each of its n masked tokens has the weight P / n. With documents, `target_weights` has these
        weights already, for each document by itself.
        """
        weight_BP = batch.target_weights.astype(dtype or batch.target_weights.dtype)
        targets_B = weight_BP.sum(axis=-1)
        if self.transformer.objective.likelihood != "bound" or batch.documents is not None:
            return weight_BP, targets_B
        tokens_B = jnp.where(targets_B > 0, weight_BP.shape[-1], jnp.zeros_like(targets_B))
        return weight_BP * (tokens_B / jnp.maximum(targets_B, 1))[..., None], tokens_B

    def divisors(self, batch: Batch) -> dict[str, jax.Array]:
        """The divisor of each loss summed over a batch (arrays with rows first): the number of
        tokens by `weights`, or the summed weights of the sentence labels.
        """
        targets = self.weights(batch)[1].sum()
        labels = batch.label_weight.sum()
        return {name: labels if name == "sentences" else targets for name in self.coefficients}

    def carried(self, rows: int) -> Memory:
        """Returns the empty memory: the initial value of the state that each step passes to the
        next. Other models may return any pytree in Flax's boxes, with the rows on the axis `batch`;
        () = no state.
        """
        memory = empty_memory(self.transformer.config, rows)
        return Memory(
            nn.LogicallyPartitioned(memory.hidden_LBMD, ("layers", "batch", None, None)),  # type: ignore[arg-type]
            nn.LogicallyPartitioned(memory.valid_B, ("batch",)),  # type: ignore[arg-type]
        )

    def logits(self, params: Any, vectors_BPD: jax.Array) -> jax.Array:
        """Returns logits [B, P, V], or log-probabilities if the head has clusters; see `LMHead`."""
        return self._head(params, vectors_BPD)

    def nll(
        self,
        params: Any,
        vectors_BPD: jax.Array,
        target_tokens_BP: jax.Array,
        smoothing: float = 0.0,
    ) -> jax.Array:
        """-log p(target) in nats, [B, P]; see `LMHead`."""
        return self._head(params, vectors_BPD, target_tokens_BP, smoothing, method="nll")

    def _head(self, params: Any, *args: Any, method: str | None = None) -> Any:
        return self.head.apply(
            {"params": params["lm_head"]}, params["word_embedding"], *args, method=method
        )

    def run(
        self,
        params: Any,
        batch: Batch,
        memory: Any = None,
        dropout_key: jax.Array | None = None,
        rows_B: jax.Array | None = None,
        **more: Any,
    ) -> Any:
        """Returns the `Output` of the transformer on a segment, or on rows `rows_B` of a segment.
        Without `memory` the memory has no slots; without `dropout_key` dropout is off. `more` are
        arguments of `XLNet` and of Flax's `apply`.
        """
        if memory is None:
            memory = empty_memory(self.transformer.config, len(batch.tokens), 0)
        rngs = None if dropout_key is None else {"dropout": dropout_key}
        return self.transformer.apply({"params": params}, batch, memory, rows_B, rngs=rngs, **more)

    def row_losses(
        self,
        params: Any,
        batch: Batch,
        memory: Memory | None,
        dropout_key: jax.Array | None = None,
        rows_B: jax.Array | None = None,
    ) -> RowLosses:
        """The losses of a segment; arguments as in `run`."""
        run = functools.partial(self.run, params, batch, memory, dropout_key, rows_B)
        auxiliary = None if batch.auxiliary is None else self.auxiliary
        out, seen = (run(), {}) if auxiliary is None else run(mutable=["layer_outputs"])
        smoothing = 0.0 if dropout_key is None else self.label_smoothing
        nll_BP = self.nll(params, out.target_vectors_BPD, batch.target_tokens, smoothing)
        weight_BP, weight_B = self.weights(batch, nll_BP.dtype)
        sums: dict[str, tuple[Any, jax.Array]] = {
            "tokens": (heads.weighed(nll_BP, weight_BP).sum(axis=1), weight_B)
        }
        if auxiliary is not None:
            (streams_LBTD,) = seen["layer_outputs"]["layers"]["content_stream"]
            variables = {"params": params["auxiliary_heads"]}
            sums["auxiliary"] = (
                auxiliary.apply(variables, streams_LBTD, out.target_vectors_BPD, batch),
                weight_B,
            )
        if self.sentences:
            variables = {"params": {name: params[name] for name in ("pooler", "sentence_head")}}
            rngs = None if dropout_key is None else {"dropout": jax.random.fold_in(dropout_key, 1)}
            rows_B = jnp.arange(len(weight_B)) if rows_B is None else rows_B
            head: Any = functools.partial(self.sentence_head.apply, variables, rngs=rngs)
            nll_B = head(out.hidden_BTD, batch, rows_B)
            label_B = batch.label_weight.astype(weight_B.dtype)
            sums["sentences"] = heads.weighed(nll_B, label_B), label_B
        return RowLosses(sums, out.memory)


def mean_loss(
    params: Any,
    model: Any,
    batch: Any,
    memory: Any,
    dropout_key: jax.Array | None = None,
    rows_B: jax.Array | None = None,
    divisors: Mapping[str, jax.Array] | None = None,
) -> tuple[jax.Array, RowLosses]:
    """Returns the loss that training minimises, and the losses of the rows. The minimised loss is
    the sum over all losses of coefficient times mean, in nats per token for text.

    Given a part of a batch, its `rows_B` and the `divisors` of the whole batch, returns the share
    of this part in the minimised loss.
    """
    rows: RowLosses = model.row_losses(params, batch, memory, dropout_key, rows_B)
    divisor: Mapping[str, jax.Array] = model.divisors(batch) if divisors is None else divisors
    shares: list[jax.Array] = [
        coefficient * (rows.sums[name][0].sum() / jnp.maximum(divisor[name], 1))
        for name, coefficient in model.coefficients.items()
        if name in rows.sums
    ]
    return sum(shares[1:], shares[0]), rows
