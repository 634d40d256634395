"""Held-out permutation-LM loss: fixed orders, the whole split, with memory and without.

Every block of W windows is read once, and its memory is carried from window to window. All draws (targets, orders,
segments) are keyed by (window, block), and the host sums losses per row in float64: neither the batch size nor the
devices change the result beyond the rounding of float32 inside a row.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.errors import BadInput
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.parallel.processes import Session
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.recipe import Recipe

log = logging.getLogger("xlnet_jax")

FINAL_BATCHES = 32
"""Batches of blocks in the evaluation after the last step, if the configuration sets no number of blocks."""


@dataclasses.dataclass(frozen=True)
class HeldoutResult:
    """Means in nats per target token."""

    loss: float
    loss_without_memory: float
    tokens: int
    """Targets scored."""
    target_counts: np.ndarray
    """int64 [V]: how often each piece was a target."""
    by_corpus: dict[str, float]
    """Loss of each of several corpora, by name; empty if there is only one."""

    @property
    def perplexity(self) -> float:
        """Permutation perplexity: exp(loss). Comparable only under the same targets, tokenizer and segment length."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def scores(self) -> dict[str, Any]:
        """Losses and number of targets by name, as written and printed; None for a value that is not finite."""
        scores = {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "loss_without_memory": self.loss_without_memory,
            "tokens": self.tokens,
            **{f"loss/{name}": loss for name, loss in self.by_corpus.items()},
        }
        return {name: value if math.isfinite(value) else None for name, value in scores.items()}

    def unigram_cross_entropy(self, train_counts: np.ndarray) -> float:
        """Cross-entropy of the same targets under the train split's piece frequencies (add-one), nats."""
        probability = (train_counts + 1) / (train_counts + 1).sum()
        return float(-(self.target_counts * np.log(probability)).sum() / self.target_counts.sum())


class HeldoutLoss:
    """Compiles once, runs any number of times.

    Args:
      mixture: the held-out splits.
      blocks: number of blocks to score of each corpus; 0 = all.
    """

    def __init__(self, recipe: Recipe, mesh: Mesh, mixture: Mixture, blocks: int = 0) -> None:
        config = recipe.config
        if blocks < 0:
            raise BadInput(f"--blocks={blocks} must not be negative; 0 = the whole split")
        batch_size = config.evaluation.batch_size or config.train.batch_size
        meshes.check_batch_size(batch_size, mesh, "evaluation.batch_size")
        mixture.check(config)
        self._batch_size = batch_size
        rows = meshes.rows_here(batch_size, mesh)
        self._dispatches = loader.HeldoutDispatches(mixture, config, blocks, batch_size, rows)
        self._config, self._mesh = config, mesh

        def run(params: Any, batches: Batch) -> tuple[jax.Array, jax.Array]:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                return _losses(recipe, params, batches)

        everywhere = NamedSharding(mesh, PartitionSpec())
        self._run = jax.jit(run, out_shardings=everywhere)

    def __call__(self, params: Any, between: Callable[[], None] = lambda: None) -> HeldoutResult:
        """Scores the split with `params` (placed on the mesh).

        Args:
          between: called after every dispatch; an exception from it ends the evaluation.
        """
        names = self._dispatches.mixture.names
        totals_C3 = np.zeros((len(names), 3))
        counts_V = np.zeros(self._config.model.vocab_size, np.int64)

        def add(index: int, sent: tuple[jax.Array, jax.Array]) -> None:
            sums_3B, here_V = jax.device_get(sent)
            corpus_B = self._dispatches.corpus_of(index)
            np.add.at(totals_C3, corpus_B[corpus_B >= 0], sums_3B.T.astype(np.float64)[corpus_B >= 0])
            np.add(counts_V, here_V, out=counts_V)

        pending = None
        for index, batch in enumerate(loader.prefetched(self._dispatches, self._config)):
            sent = self._run(params, meshes.place(batch, self._mesh, self._batch_size))
            # Read the sums of the last dispatch while this one runs.
            if pending:
                add(*pending)
            pending = index, sent
            between()
        assert pending is not None, "a split that passes `check` has a block"
        add(*pending)
        loss, alone, tokens = totals_C3.sum(axis=0)
        each = {name: row[0] / row[2] for name, row in zip(names, totals_C3, strict=True)} if len(names) > 1 else {}
        return HeldoutResult(loss / tokens, alone / tokens, int(tokens), counts_V, each)


def _losses(recipe: Recipe, params: Any, batches: Batch) -> tuple[jax.Array, jax.Array]:
    """For W stacked windows per row.

    Returns:
      float32 [3, B]: summed losses with memory and without, and targets. int32 [V]: how often each piece is a target.
    """

    def window(memory: Memory, batch: Batch) -> tuple[Memory, jax.Array]:
        carried = recipe.model.row_losses(params, batch, memory)
        fresh = dataclasses.replace(batch, continues=jnp.zeros_like(batch.continues))
        alone = recipe.model.row_losses(params, fresh, memory)
        return carried.memory, jnp.stack([carried.loss_B, alone.loss_B, carried.weight_B])

    memory = empty_memory(recipe.config.model, batches.direction.shape[1])
    _, sums_W3B = jax.lax.scan(window, memory, batches)
    scored = (batches.target_weights > 0).astype(jnp.int32)
    counts_V = jnp.zeros(recipe.config.model.vocab_size, jnp.int32).at[batches.target_tokens].add(scored)
    return sums_W3B.sum(axis=0), counts_V


def open_heldout(config: Config) -> Mixture | None:
    """The held-out splits, or None if training evaluates nothing.

    Raises BadInput if `evaluation.every` asks for them and they are missing. For the evaluation after the last step,
    which is on by default, a warning is enough.
    """
    if config.evaluation.every:
        return open_mixture(config, "heldout")
    if not config.evaluation.final:
        return None
    try:
        heldout = open_mixture(config, "heldout")
        heldout.check(config)
    except BadInput as error:
        log.warning("there will be no held-out loss: %s", error)
        return None
    return heldout


def blocks_of(config: Config) -> int:
    """Blocks to score of each corpus during training; 0 = all. An evaluation by default has `FINAL_BATCHES`."""
    some = FINAL_BATCHES * (config.evaluation.batch_size or config.train.batch_size)
    return config.evaluation.blocks or (0 if config.evaluation.every else some)


def due(config: Config, step: int) -> bool:
    """Whether this step is followed by an evaluation."""
    every, last = config.evaluation.every, config.evaluation.final and step == config.train.steps
    return step > 0 and (last or (every > 0 and step % every == 0))


def missing(config: Config, workdir: str, step: int, processes: Session) -> bool:
    """Whether a saved step lacks its evaluation, because the run stopped after the checkpoint or in the evaluation."""
    if not due(config, step):
        return False
    # Another process may see the file a little later than the one that writes it.
    return bool(processes.of_first(not workdirs.line_of(workdir, "evaluations", step)))
