"""Evaluation by sliding one token at a time, as models without memory need it (Al-Rfou et al. 2018, arXiv 1808.04444).

Inside a segment the first positions have hardly any context. So every token is predicted from the last position of a
window of its own, which holds exactly the `context` tokens before it, and the window is computed from nothing. What
only other positions would use is left out: the last layer and the softmax have one row per window.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.batch import forward_text
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import quantity
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.run.progress import BUSY_SECONDS
from xlnet_jax.train.evaluation import bits_of_text, rows_at_once, scores
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import Recipe

log = logging.getLogger("xlnet_jax")


class Sliding:
    """The likelihood of each token of a text given exactly the `context` tokens before it.

    Compiles at the first call. Requires the mesh in use (`jax.set_mesh`).

    Args:
      recipe: of a model with absolute positions; `context` is at most its `data.segment_len`.
      batch_size: windows that are computed together, split over the rows of the mesh; 0 = as configured.
    """

    def __init__(self, recipe: Recipe, mesh: Mesh, context: int, batch_size: int = 0) -> None:
        model, longest = recipe.config.model, recipe.config.data.segment_len
        if model.position_scheme != "absolute":
            raise BadInput(
                f"model.position_scheme={model.position_scheme}: only models with absolute positions slide one "
                "token at a time; this one has a memory instead"
            )
        if not 1 <= context <= longest:
            raise BadInput(
                f"a context of {context} tokens does not fit; it must lie in [1, data.segment_len={longest}]"
            )
        self.batch_size = rows_at_once(recipe.config, mesh, batch_size)
        self.context = context
        self._everywhere, self._rows = NamedSharding(mesh, PartitionSpec()), meshes.batch_sharding(mesh)

        def run(params: Any, tokens_N: jax.Array, start_B: jax.Array) -> jax.Array:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                windows_BN = tokens_N[start_B[:, None] + jnp.arange(context + 1)[None]]
                return window_nll(recipe.model, params, windows_BN, slots=1)[:, 0]

        def run_first(params: Any, tokens_N: jax.Array) -> jax.Array:
            with nn.logical_axis_rules(meshes.RULES.without(meshes.RULES.batch).pairs()):
                return window_nll(recipe.model, params, tokens_N[None, : context + 1], slots=context)[0]

        self._run, self._run_first = (jax.jit(f, out_shardings=self._everywhere) for f in (run, run_first))

    def __call__(self, params: Any, tokens_N: np.ndarray) -> np.ndarray:
        """-log p in nats of all tokens but the first `context`: float32 [N - context].

        Args:
          params: placed on the mesh.
          tokens_N: int32, the text, equal in all processes.

        Raises BadInput if the text has no token with so many before it.
        """
        count = len(tokens_N) - self.context
        if count < 1:
            raise BadInput(
                f"a text of {len(tokens_N)} tokens is too short for a context of {self.context}; it needs "
                f"{self.context + 1}"
            )
        text_N = jax.device_put(np.asarray(tokens_N, np.int32), self._everywhere)
        run = lambda start_B: self._run(params, text_N, jax.device_put(start_B, self._rows))  # noqa: E731
        return in_batches(run, count, self.batch_size)

    def first(self, params: Any, tokens_N: np.ndarray) -> np.ndarray:
        """The same of tokens 1 to `context`, each given all before it: float32 [context]."""
        text_N = jax.device_put(np.asarray(tokens_N[: self.context + 1], np.int32), self._everywhere)
        return jax.device_get(self._run_first(params, text_N))


def in_batches(run: Callable[[np.ndarray], jax.Array], count: int, size: int) -> np.ndarray:
    """What `run` computes for the windows 0 to `count` - 1, of which it gets the numbers, int32 [size]."""
    parts: list[jax.Array] = []
    logged = time.monotonic()
    for first in range(0, count, size):
        # Past the end the last window is computed again, and cut off below.
        parts.append(run(np.minimum(first + np.arange(size, dtype=np.int32), count - 1)))
        # Not all at once: a CPU's collectives give up if too many programs wait.
        jax.block_until_ready(parts[-2:-1])
        if time.monotonic() - logged >= BUSY_SECONDS:
            log.info("evaluated %d of %s", first + size, quantity(count, "token"))
            logged = time.monotonic()
    return np.concatenate(jax.device_get(parts))[:count]


def window_nll(model: LanguageModel, params: Any, windows_BN: jax.Array, slots: int) -> jax.Array:
    """-log p of the last tokens of each window given all before them, at least float32 [B, slots]."""
    B, T = windows_BN.shape[0], windows_BN.shape[1] - 1
    at_BT = np.tile(np.arange(T, dtype=np.int32), (B, 1))
    batch = forward_text(windows_BN[:, :T], at_BT, np.zeros_like(at_BT), at_BT[:, -slots:], windows_BN[:, -slots:])
    none = empty_memory(model.transformer.config, B, 0)
    out: Any = model.transformer.apply({"params": params}, batch, none, deterministic=True)
    return model.nll(params, out.target_vectors_BPD, batch.target_tokens)


class SlidingLoss:
    """The held-out loss of a model with absolute positions, with all the context that it can use.

    Every token but the first is scored once, as by `evaluation.HeldoutLoss`; those of the first segment have less
    context than the others.

    Args:
      mixture: the held-out splits.
      train_counts_V: how often each piece occurs in the train splits.
      blocks: number of blocks to score of each corpus; 0 = all.

    Attributes:
      scope: for the log.
    """

    def __init__(
        self, recipe: Recipe, mesh: Mesh, mixture: Mixture, train_counts_V: np.ndarray, blocks: int = 0
    ) -> None:
        config = recipe.config
        mixture.check(config)
        self._sliding = Sliding(recipe, mesh, config.data.segment_len)
        self._mixture, self._train_counts_V = mixture, train_counts_V
        limit = blocks * config.data.windows_per_block * config.data.segment_len + 1
        self._tokens = [min(corpus.tokens, limit) if blocks else corpus.tokens for corpus in mixture.corpora]
        self.scope = f"{quantity(sum(self._tokens), 'window')} of {quantity(config.data.segment_len, 'token')}"

    def __call__(self, params: Any) -> dict[str, Any]:
        """See `evaluation.scores`; `context`, the tokens before each; there is no loss without memory."""
        totals_C3 = np.zeros((len(self._tokens), 3))
        counts_V = np.zeros(len(self._train_counts_V), np.int64)
        for number, (corpus, length) in enumerate(zip(self._mixture.corpora, self._tokens, strict=True)):
            tokens_N = corpus.read(np.zeros(1, np.int64), length)[0][0]
            losses = [self._sliding.first(params, tokens_N)]
            if length - 1 > self._sliding.context:
                losses.append(self._sliding(params, tokens_N))
            totals_C3[number] = np.concatenate(losses).astype(np.float64).sum(), np.nan, length - 1
            counts_V += np.bincount(tokens_N[1:], minlength=len(counts_V))
        share = sum(self._tokens) / sum(corpus.tokens for corpus in self._mixture.corpora)
        scored = scores(totals_C3, self._mixture.names, counts_V, self._train_counts_V, share)
        del scored["loss_without_memory"]
        bits = bits_of_text(totals_C3[:, 0].sum(), counts_V, self._mixture.tokenizer)
        return scored | bits | {"context": self._sliding.context}
