"""Held-out permutation-LM loss: fixed orders, the whole split, with memory and without.

Every block of W windows is read once, and its memory is carried from window to window. All draws (targets, orders,
segments) are keyed by (window, block), and the host sums losses per row in float64: neither the batch size nor the
devices change the result beyond the rounding of float32 inside a row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
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
from xlnet_jax.errors import BadInput, Stopped, reraise_stop
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.parallel.processes import Session, sum_over_processes
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.jsonl import read_jsonl
from xlnet_jax.run.metrics import MetricsWriter
from xlnet_jax.run.signals import StopRequest
from xlnet_jax.run.watchdog import Watchdog
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
        rows, self._first_here = meshes.rows_here(batch_size, mesh)
        self._batch_size = batch_size
        self._dispatches = loader.HeldoutDispatches(mixture, config, blocks, batch_size, rows)
        self._config, self._mesh = config, mesh

        def run(params: Any, batches: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
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
        counts = np.zeros(self._config.model.vocab_size, np.int64)
        pending = None
        for index, batch in enumerate(loader.prefetched(self._dispatches, self._config)):
            # If several processes have a row, one of them counts it.
            scored = (batch.target_weights > 0) & self._first_here[None, :, None]
            counts += np.bincount(batch.target_tokens[scored], minlength=len(counts))
            sent = self._run(params, meshes.place(batch, self._mesh, self._batch_size))
            # Read the sums of the last dispatch while this one runs.
            totals_C3 += self._by_corpus(pending)
            pending = index, sent
            between()
        totals_C3 += self._by_corpus(pending)
        loss, alone, tokens = totals_C3.sum(axis=0)
        each = {name: row[0] / row[2] for name, row in zip(names, totals_C3, strict=True)} if len(names) > 1 else {}
        return HeldoutResult(loss / tokens, alone / tokens, int(tokens), sum_over_processes(counts), each)

    def _by_corpus(self, sent: tuple[int, Any] | None) -> np.ndarray:
        """The sums of a dispatch for each corpus, in float64: [C, 3]."""
        totals_C3 = np.zeros((len(self._dispatches.mixture.names), 3))
        if sent is not None:
            index, sums_3B = sent
            corpus_B = self._dispatches.corpus_of(index)
            sums_B3 = np.stack([np.asarray(rows, np.float64) for rows in jax.device_get(sums_3B)], axis=1)
            np.add.at(totals_C3, corpus_B[corpus_B >= 0], sums_B3[corpus_B >= 0])
        return totals_C3


def _losses(recipe: Recipe, params: Any, batches: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For W stacked windows per row: summed losses with memory and without, and targets; float32 [B] each."""

    def window(memory: Memory, batch: Batch) -> tuple[Memory, tuple[jax.Array, jax.Array, jax.Array]]:
        carried = recipe.model.row_losses(params, batch, memory)
        fresh = dataclasses.replace(batch, continues=jnp.zeros_like(batch.continues))
        alone = recipe.model.row_losses(params, fresh, memory)
        return carried.memory, (carried.loss_B, alone.loss_B, carried.weight_B)

    memory = empty_memory(recipe.config.model, batches.direction.shape[1])
    _, (with_WB, without_WB, targets_WB) = jax.lax.scan(window, memory, batches)
    return with_WB.sum(axis=0), without_WB.sum(axis=0), targets_WB.sum(axis=0)


def open_heldout(config: Config, train: Mixture) -> Mixture | None:
    """The held-out splits, or None if training evaluates nothing.

    Raises BadInput if `evaluation.every` asks for them and they are missing. For the evaluation after the last step,
    which is on by default, a line in the log is enough.
    """
    if config.evaluation.every:
        return open_mixture(config, "heldout", opened=train)
    if not config.evaluation.final:
        return None
    without = [corpus.path for corpus in train.corpora if "heldout" not in corpus.manifest["splits"]]
    if without:
        log.info("%s has no held-out documents (`prepare --heldout`): there will be no held-out loss", without[0])
        return None
    heldout = open_mixture(config, "heldout", opened=train)
    try:
        heldout.check(config)
    except BadInput as error:
        log.info("there will be no held-out loss: %s", error)
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
    done = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    # Another process may see the file a little later than the one that writes it.
    return bool(processes.of_first(all(line["step"] != step for line in done)))


class CutOff(Stopped):
    """A signal came during an evaluation; all processes stop here."""


@dataclasses.dataclass
class Evaluator:
    """Scores the held-out split and adds a line to `evaluations.jsonl`."""

    heldout: HeldoutLoss
    writer: MetricsWriter
    processes: Session
    request: StopRequest
    goodput: Goodput
    watchdog: Watchdog
    train_counts_V: np.ndarray
    """int64: how often each piece occurs in the train split."""

    def __call__(self, step: int, params: Any) -> float:
        """Returns its seconds. Raises CutOff on a signal, and then writes nothing."""
        began = time.perf_counter()
        alone = self.processes.watch is None
        waiting = self.request.waiting("evaluation", raises=True) if alone else contextlib.nullcontext()
        try:
            with self.goodput.measure("evaluation"), waiting, reraise_stop():
                result = self.heldout(params, self._between)
        except Stopped as stopped:
            if isinstance(stopped, CutOff) or not alone:
                raise
            raise CutOff(self.request.name) from stopped
        seconds = time.perf_counter() - began
        unigram = result.unigram_cross_entropy(self.train_counts_V)
        scores = {**result.scores(), "unigram_cross_entropy": unigram, "seconds": seconds}
        self.writer.evaluation({"step": step, **scores})
        log.info(
            "step %d: held-out loss %.4f (%.4f without memory; unigram %.4f)",
            step, result.loss, result.loss_without_memory, unigram,
        )  # fmt: skip
        return seconds

    def _between(self) -> None:
        """Called after every batch: asks whether any process got a signal."""
        self.watchdog.progress()
        if stopping := self.processes.stop(self.request.name):
            raise CutOff(stopping)
