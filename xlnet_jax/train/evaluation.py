"""Held-out loss: the whole split, with memory and without.

    permutation LM   every block of W windows is read once, and its memory is carried from window to
                     window; all draws (targets, orders, segments) are keyed by (window, block)
    left to right    the split is cut into contiguous streams; memory is carried from the first
                     segment of a stream to its last (Transformer-XL, section 3.2), so only the
                     first segment starts without memory
    diffusion        an unbiased estimate of an upper bound on -log p: each window has one random
                     set of masks, also keyed by (window, block); perplexity and bits are computed
                     from the bound

The host sums the losses of rows in float64, so the batch size and the devices change the result
only by the rounding of float32 inside a row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.progress import Progress

from xlnet_jax.batch import Batch
from xlnet_jax.compat import hooks
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.data.corpus.manifest import little_heldout
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import progress_bar, quantity
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.objectives.objective import Objective
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.progress import BUSY_SECONDS, loss_text, number, perplexity
from xlnet_jax.storage.files import Json
from xlnet_jax.train.recipe import Recipe

log = logging.getLogger("xlnet_jax")

FINAL_BLOCKS = 512
"""Default number of blocks to score if only the last step is evaluated."""

_OF_STREAMS = ("--context", "--target_share", "--streams")


def configured(
    workdir: str, overrides: Sequence[str], batch_size: int | None, step: int | None
) -> tuple[Config, int | None]:
    """Returns `workdir.config_at`; `batch_size` overrides `evaluation.batch_size`. Raises
    BadInput.
    """
    rows = [] if batch_size is None else [f"--config.evaluation.batch_size={batch_size}"]
    return workdirs.config_at(workdir, [*overrides, *rows], step)


def check_objective(
    config: Config, objective: Objective, option: str, name: str = "this model"
) -> None:
    """Raises BadInput unless the model has the `objective` that `option` needs, and reads a stream
    if `option` does.
    """
    if config.objective != objective:
        raise BadInput(
            f"{option} is for models of data.objective={objective.name}, but {name} has "
            f"data.objective={config.data.objective}; leave it out"
        )
    if config.data.whole_documents and option in _OF_STREAMS:
        raise BadInput(
            f"{option} reads text across documents, but {name} has data.documents=whole and reads "
            "single documents; leave it out"
        )


def held_out(workdir: str, config: Config) -> Mixture:
    """Opens the held-out splits of the corpora. Raises BadInput if a split cannot be opened or if
    its tokenizer is not the tokenizer of the run.
    """
    heldout = open_mixture(config, "heldout", weighted=False)
    workdirs.check_tokenizer(workdir, heldout)
    return heldout


def scores(
    totals_C3: np.ndarray,
    names: Sequence[str],
    counts_V: np.ndarray,
    train_counts_V: np.ndarray,
    share: float = 1.0,
) -> Json:
    """Returns the line of an evaluation, in nats per target; a non-finite value is None.

    Args:
      totals_C3: the summed loss with memory, the summed loss without memory and the number of
        targets of each corpus.
      counts_V, train_counts_V: how often each piece was a target, and how often it occurs in the
        train split.
      share: the share of the held-out splits that was scored.

    Returns:
      `heldout_loss`, `loss_without_memory`, `targets` (number scored), `heldout_share`; with
      several corpora also `heldout_loss/NAME` for each.
      `perplexity`: exp(heldout_loss), comparable only under the same targets, tokenizer and segment
      length.
      In masked diffusion each masked token counts T / n times, so `targets` counts all tokens and
      `heldout_loss` is a bound. `unigram_cross_entropy`: the cross-entropy of the same targets
      under the piece frequencies of the train split (add-one smoothing).
    """
    loss, alone, targets = totals_C3.sum(axis=0)
    log_share_V = np.log((train_counts_V + 1) / (train_counts_V + 1).sum())
    means = {
        "loss_without_memory": alone / targets,
        "targets": np.int64(targets),
        "heldout_share": np.float64(share),
        **{
            f"heldout_loss/{name}": row[0] / row[2]
            for name, row in zip(names, totals_C3, strict=True)
            if len(names) > 1
        },
        "unigram_cross_entropy": -(counts_V * log_share_V).sum() / targets,
    }
    mean = number(loss / targets)
    rest = {name: number(value) for name, value in means.items()}
    return {"heldout_loss": mean, "perplexity": perplexity(mean), **rest}


def bits_of_text(
    nats: float, counts_V: np.ndarray, tokenizer: Tokenizer
) -> dict[str, float | None]:
    """Returns bits per character, byte and word: the summed loss `nats` of the targets, divided by
    the characters, bytes or words of these targets.

    The number of words is the number of pieces that start a word (`Tokenizer.word_start`): pieces
    after a space, pieces of punctuation alone, and the unknown piece. Other special pieces are not
    text, but predicting them costs bits.
    """
    characters_V, bytes_V = tokenizer.text_lengths()
    words_V = tokenizer.word_start & (characters_V > 0)
    if tokenizer.special.unk is not None:
        words_V[tokenizer.special.unk] = True
    units = {"character": characters_V, "byte": bytes_V, "word": words_V}
    counts = {f"bits_per_{unit}": float(counts_V @ per_V) for unit, per_V in units.items()}
    bits = np.float64(nats / math.log(2))
    return {name: number(bits / count) if count else None for name, count in counts.items()}


class Hooks(NamedTuple):
    """Functions that an evaluation during training calls; an exception from `between` or `take`
    ends the evaluation.
    """

    between: Callable[[], None] = lambda: None
    """Called after every dispatch."""
    take: Callable[[Iterator[Any]], Any] = next
    """Waits for the next batch and returns it."""
    compiling: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Context of the first dispatch, which may compile."""


NO_HOOKS = Hooks()


class Evaluator(Protocol):
    """Scores parameters during training. Compiles once, runs any number of times."""

    def __call__(self, params: Any, hooks: Hooks = NO_HOOKS) -> Json:
        """Returns the line of an evaluation without its step, equal in all processes. `params` are
        on the mesh. The lowest `rank`, or `heldout_loss` without a `rank`, is the best checkpoint.
        """
        ...

    def described(self, scores: Json) -> str:
        """The scores as text for the log."""
        ...


def rows_at_once(config: Config, mesh: Mesh, batch_size: int = 0) -> int:
    """Returns the number of rows of a batch outside of training: `batch_size`, or the configured
    number if it is 0. Raises BadInput if the devices cannot share the rows.
    """
    size = batch_size or config.evaluation.batch_size or config.train.batch_size
    return meshes.device_rows(size, mesh, "evaluation.batch_size", elastic=config.train.elastic)


def bar_of(what: str, total: int, hooks: Hooks) -> Progress:
    """A progress bar; hidden in training, which shows the bar of the run."""
    return progress_bar(what, total if hooks is NO_HOOKS else 0)


def results(
    dispatches: loader.Dispatches, config: Config, send: Callable[[Any], Any], hooks: Hooks
) -> Iterator[Any]:
    """Yields the result of `send` for each dispatch, in order, on the host."""
    sent = None
    logged = time.monotonic()
    batches = loader.prefetched(dispatches, config)
    with bar_of("batches", len(dispatches), hooks) as bar:
        for index in range(len(dispatches)):
            batch = hooks.take(batches)
            with contextlib.nullcontext() if index else hooks.compiling():
                last, sent = sent, meshes.settled(send(batch))
            # Read the results of the previous dispatch while this one runs.
            if last is not None:
                yield jax.device_get(last)
                bar.advance(bar.task_ids[0])
            if bar.disable and time.monotonic() - logged >= BUSY_SECONDS:
                log.info("evaluated %d of %s", index, quantity(len(dispatches), "batch"))
                logged = time.monotonic()
            hooks.between()
        yield jax.device_get(sent)


class HeldoutLoss:
    """The `Evaluator` of pretraining. Compiles once, runs any number of times.

    Args:
      mixture, train_counts_V: the held-out splits, and how often each piece occurs in the train
        splits.
      blocks: number of blocks of each corpus to score, evenly spread; 0 = all. A left-to-right
        model scores whole streams that together hold this number of blocks.
      streams: number of streams into which the split of each corpus is cut, for a left-to-right
        model; 0 = see `SinglePass`.

    Attributes:
      scope: the part that is scored, such as `512 of 1,024 blocks, evenly spread, in 32 batches`.
    """

    def __init__(
        self,
        recipe: Recipe,
        mesh: Mesh,
        mixture: Mixture,
        train_counts_V: np.ndarray,
        blocks: int = 0,
        streams: int = 0,
    ) -> None:
        config = recipe.config
        batch_size = rows_at_once(config, mesh)
        mixture.check(config)
        reading, whole = (mixture.single_pass(config, streams, limit) for limit in (blocks, 0))
        self._rows = len(reading.rows_S3)
        # At most as many rows as there are streams or blocks.
        ways = meshes.row_devices(mesh)
        batch_size = min(batch_size, -(-self._rows // ways) * ways)
        if config.reads_streams:
            scored, total = (each.rows_S3[:, 2].sum() for each in (reading, whole))
            scope = f"{quantity(total, 'segment')} in {quantity(self._rows, 'stream')}"
        else:
            scored = self._rows
            total = len(whole.rows_S3)
            scope = quantity(total, "row" if config.data.whole_documents else "block")
        rows = meshes.rows_here(batch_size, mesh)
        self._dispatches = loader.HeldoutDispatches(mixture, config, reading, batch_size, rows)
        part, spread = (f"{scored:,} of ", ", evenly spread,") if scored < total else ("all ", "")
        self.scope = f"{part}{scope}{spread} in {quantity(len(self._dispatches), 'batch')}"
        self._share = scored / total
        self._batch_size = batch_size
        self._config = config
        self._mesh = mesh
        self._train_counts_V = train_counts_V

        def run(params: Any, memory: Any, batches: Batch) -> tuple[Any, tuple]:
            with meshes.RULES.applied():
                return _losses(recipe, params, memory, batches)

        everywhere = NamedSharding(mesh, PartitionSpec())
        of_memory = jax.tree.map(
            lambda axis: meshes.batch_sharding(mesh, leading=axis), recipe.row_axes
        )
        self._empty = jax.jit(
            lambda: recipe.empty_memory(self._batch_size), out_shardings=of_memory
        )
        self._run = jax.jit(run, out_shardings=(of_memory, everywhere), donate_argnums=1)

    def __call__(self, params: Any, hooks: Hooks = NO_HOOKS) -> Json:
        """Scores the split; see `scores`. Losses after the first are `heldout_loss_NAME`; a model
        without memory has no `loss_without_memory`.
        """
        names = self._dispatches.mixture.names
        totals_C3 = np.zeros((len(names), 3))
        counts_V = np.zeros(self._config.model.vocab_size)
        others: dict[str, np.ndarray] = {}
        memory = self._empty()

        def send(batch: Batch) -> Any:
            nonlocal memory
            memory, sums = self._run(
                params, memory, meshes.place(batch, self._mesh, self._batch_size)
            )
            return sums

        sums = results(self._dispatches, self._config, send, hooks)
        for index, (sums_3B, others_2B, targets_V) in enumerate(sums):
            corpus_B = self._dispatches.corpus_of(index)
            np.add.at(
                totals_C3, corpus_B[corpus_B >= 0], sums_3B.T.astype(np.float64)[corpus_B >= 0]
            )
            np.add(counts_V, targets_V, out=counts_V)
            for name, sum_2B in others_2B.items():
                others[name] = others.get(name, 0) + sum_2B.sum(axis=1, dtype=np.float64)
        scored = scores(totals_C3, names, counts_V, self._train_counts_V, self._share)
        scored |= {
            f"heldout_loss_{name}": number(total / max(weight, 1))
            for name, (total, weight) in others.items()
        }
        if not self._config.model.memory_len:
            del scored["loss_without_memory"]
        objective = self._config.objective
        if objective.whole or self._config.data.factorization_order != "spans":
            scored |= bits_of_text(
                totals_C3[:, 0].sum(), counts_V, self._dispatches.mixture.tokenizer
            )
        if self._config.reads_streams:
            scored["streams"] = self._rows
        return scored

    def described(self, scores: Json) -> str:
        """The losses, and the part of the split that was scored."""
        known = {
            "loss_without_memory": "%s without memory",
            "unigram_cross_entropy": "unigram cross-entropy %s",
        }
        others = "; ".join(
            text % loss_text(scores[name]) for name, text in known.items() if name in scores
        )
        return f"held-out loss {loss_text(scores['heldout_loss'])} ({others}) over {self.scope}"


def _losses(recipe: Recipe, params: Any, memory: Any, batches: Batch) -> tuple[Any, tuple]:
    """Scores W stacked windows of each row. Returns the memory after them, and

    float32 [3, B]: summed loss with memory, summed loss without memory, number of targets;
    float32 [2, B] for every other loss: its sums and weights;
    float32 [V]: how often each piece is a target; in `mdm` the sum of its weights.
    """
    bare = empty_memory(
        recipe.config.model, batches.direction.shape[1], hooks.empty_slots(recipe.config.compat)
    )

    def window(memory: Any, batch: Batch) -> tuple[Any, tuple]:
        carried = recipe.model.row_losses(params, batch, memory)
        others = dict(carried.sums)
        loss_B, weight_B = others.pop(recipe.first_loss)
        alone_B = loss_B
        if recipe.config.model.memory_len:
            fresh = dataclasses.replace(batch, continues=jnp.zeros_like(batch.continues))
            alone_B, _ = recipe.model.row_losses(params, fresh, bare).sums[recipe.first_loss]
        of_others = {name: jnp.stack(pair) for name, pair in others.items()}
        return carried.memory, (jnp.stack([loss_B, alone_B, weight_B]), of_others)

    memory, (sums_W3B, others) = jax.lax.scan(window, memory, batches)
    weights_WBP, _ = recipe.model.weights(batches)
    counts_V = jnp.zeros(recipe.config.model.vocab_size).at[batches.target_tokens].add(weights_WBP)
    return memory, (sums_W3B.sum(axis=0), jax.tree.map(lambda x: x.sum(axis=0), others), counts_V)


def open_heldout(config: Config, train: Mixture) -> Mixture | None:
    """The held-out splits of the corpora of `train`, or None if training evaluates nothing.

    Missing splits raise BadInput if `evaluation.every` is set. If only the evaluation after the
    last step needs them (the default), logs a warning and skips this evaluation. Warns of splits
    with few tokens.
    """
    if not (config.evaluation.every or config.evaluation.final):
        return None
    try:
        heldout = open_mixture(config, "heldout", opened=train)
        if not config.evaluation.every:
            for part in config.parts:
                heldout.check(part)
    except BadInput as error:
        if config.evaluation.every:
            raise
        log.warning("there will be no held-out loss: %s", error)
        return None
    for corpus in heldout.corpora:
        if warning := little_heldout(corpus.manifest):
            log.warning("%s: %s", corpus.path, warning)
    return heldout


def blocks_of(config: Config) -> int:
    """Blocks to score of each corpus during training; 0 = all. If only the last step is evaluated,
    the default is `FINAL_BLOCKS`.
    """
    return config.evaluation.blocks or (0 if config.evaluation.every else FINAL_BLOCKS)


def due(config: Config, step: int) -> bool:
    """Whether an evaluation follows this step."""
    every = config.evaluation.every
    last = config.evaluation.final and step == config.train.steps
    return step > 0 and (last or (every > 0 and step % every == 0))


def best(lines: list[Json]) -> Json | None:
    """Returns the earliest line of `evaluations.jsonl` with the highest score; None if no line has
    a score.
    """
    lines = [line for line in lines if line.get("score") is not None]
    return max(lines, key=lambda line: (line["score"], -line["step"]), default=None)


def ends(config: Config, lines: list[Json]) -> bool:
    """Whether a task ends early: none of its last `finetune.patience` evaluations was better than
    the best before them.
    """
    top = best(lines)
    return top is not None and 0 < config.finetune.patience <= sum(
        line["step"] > top["step"] for line in lines
    )
