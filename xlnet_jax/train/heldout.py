"""Held-out permutation-LM loss: fixed orders, the whole split, with memory and without.

Every block of W windows is read once, its memory carried from window to window. All draws (targets, orders, segments)
are keyed by (window, block), and losses are added up per row, on the host, in float64: neither the batch size nor the
devices change the result beyond the rounding of float32 inside a row.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax import objective
from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import Config
from xlnet_jax.data import examples, loader
from xlnet_jax.data.corpus import Corpus
from xlnet_jax.data.stream import rows_of
from xlnet_jax.errors import BadInput
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train.state import make_model


@dataclasses.dataclass(frozen=True)
class HeldoutResult:
    """Means in nats per target token."""

    loss: float
    loss_without_memory: float
    tokens: int
    """Targets scored."""
    target_counts: np.ndarray
    """int64 [V]: how often each piece was a target."""

    @property
    def perplexity(self) -> float:
        """Permutation perplexity: exp(loss). Comparable only under the same targets, tokenizer and segment length."""
        return math.exp(self.loss)

    def unigram_cross_entropy(self, train_counts: np.ndarray) -> float:
        """Cross-entropy of the same targets under the train split's piece frequencies (add-one), nats."""
        probability = (train_counts + 1) / (train_counts + 1).sum()
        return float(-(self.target_counts * np.log(probability)).sum() / self.target_counts.sum())


class Heldout:
    """Compiles once, runs as often as wanted.

    Args:
      corpus: the held-out split.
      blocks: how many blocks to score; 0 = all.
    """

    def __init__(self, config: Config, mesh: Mesh, corpus: Corpus, blocks: int = 0) -> None:
        if blocks < 0:
            raise BadInput(f"--blocks={blocks} must not be negative; 0 = the whole split")
        batch_size = config.evaluation.batch_size or config.train.batch_size
        meshes.check_batch_size(batch_size, mesh, "evaluation.batch_size")
        examples.check(corpus, examples.layout(config.data, config.model.memory_len), corpus.split)
        available = loader.heldout_pass(corpus, config).blocks
        rows = rows_of(jax.process_index(), jax.process_count(), batch_size)
        self._dispatches = loader.HeldoutDispatches(
            corpus, config, min(blocks or available, available), batch_size, rows
        )
        self._config, self._mesh = config, mesh

        def run(params: Any, batches: Batch) -> tuple[jax.Array, jax.Array]:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                return _losses(config, params, batches)

        everywhere = NamedSharding(mesh, PartitionSpec())
        self._run = jax.jit(run, out_shardings=(everywhere, everywhere))

    def __call__(self, params: Any) -> HeldoutResult:
        """Scores the split with `params` (placed on the mesh)."""
        totals = np.zeros(2)
        counts = np.zeros(self._config.model.vocab_size, np.int64)
        pending = None
        for batch in loader.prefetched(self._dispatches, self._config):
            counts += np.bincount(batch.target_tokens[batch.target_weights > 0], minlength=len(counts))
            sent = self._run(params, meshes.place(batch, self._mesh))
            # Read the sums of the dispatch before while this one runs.
            totals += _read(pending)
            pending = sent
        totals += _read(pending)
        counts = _over_hosts(counts)
        tokens = int(counts.sum())
        return HeldoutResult(totals[0] / tokens, totals[1] / tokens, tokens, counts)


def _losses(config: Config, params: Any, batches: Batch) -> tuple[jax.Array, jax.Array]:
    """Summed losses of W stacked windows per row, with memory and without: float32 [B] each."""
    model = make_model(config)

    def window(memory: Memory, batch: Batch) -> tuple[Memory, tuple[jax.Array, jax.Array]]:
        carried = objective.row_losses(model, params, batch, memory)
        alone = dataclasses.replace(batch, continues=jnp.zeros_like(batch.continues))
        return carried.memory, (carried.loss_B, objective.row_losses(model, params, alone, memory).loss_B)

    memory = empty_memory(config.model, batches.direction.shape[1])
    _, (with_WB, without_WB) = jax.lax.scan(window, memory, batches)
    return with_WB.sum(axis=0), without_WB.sum(axis=0)


def _read(sums: tuple[jax.Array, jax.Array] | None) -> np.ndarray:
    """Both totals of a dispatch, added up in float64."""
    if sums is None:
        return np.zeros(2)
    return np.array([np.asarray(rows, np.float64).sum() for rows in jax.device_get(sums)])


def _over_hosts(counts: np.ndarray) -> np.ndarray:
    """Adds up what each host counted in its own rows."""
    if jax.process_count() == 1:
        return counts
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(counts)).sum(axis=0)
