"""Reports the metrics of a dispatch in JSON lines and a bar or log, ends a run that diverges, and
draws the loss curve.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.progress import Progress

from xlnet_jax.config import Config
from xlnet_jax.data.batches.loader import TrainingData
from xlnet_jax.data.batches.stream import Plan, Stream
from xlnet_jax.errors import Diverged
from xlnet_jax.messages import how_to_install
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.metrics import MetricsWriter, read_jsonl
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

LOG_EVERY = 100
"""Steps between two log lines if no progress bar is shown."""

LOG_FIRST = (1, 2, 5, 10, 20, 50)
"""Further logged steps: users can see early that a run does not learn."""

TRAINING, PICTURE = "training", "loss.png"

BUSY_SECONDS = 30.0
"""Seconds between two lines of the log during a long evaluation."""


@dataclasses.dataclass
class Reporter:
    """Reports the metrics of each dispatch in order.

    Attributes:
      stream: None for batches that are not of the corpus.
      seconds_at_peak: seconds of a step (`flops.seconds_at_peak`); None for an unknown peak.
      last: line of the last step.
      rates: tokens per second of every dispatch.
      clock: `goodput.training()` at the end of the last dispatch.
    """

    config: Config
    data: TrainingData
    stream: Stream | None
    plan: Plan
    seconds_at_peak: float | None
    writer: MetricsWriter
    goodput: Goodput
    bar: Progress
    last: Json | None = None
    rates: list[float] = dataclasses.field(default_factory=list)
    clock: float = 0.0

    def __call__(self, steps: range, values: dict[str, np.ndarray]) -> None:
        """Writes a line per step. Raises Diverged after too many bad steps in a row."""
        before = self.clock
        self.clock = self.goodput.training()
        rate = len(steps) / (self.clock - before)
        by_row: Any = values.pop("rows_B", ())
        tokens_per_second = rate * (self.config.train.batch_size * self.config.data.segment_len)
        self.rates.append(tokens_per_second)
        row: Json = {}
        for i, done in enumerate(steps):
            step = done + 1
            row = {"step": step, **{name: number(column[i]) for name, column in values.items()}}
            if self.config.pretrains:
                row["perplexity"] = perplexity(row["loss"])
            row |= self._by_corpus(done, [x_KB[i] for x_KB in by_row])
            row["tokens_per_second"] = tokens_per_second
            row["mfu"] = None if self.seconds_at_peak is None else rate * self.seconds_at_peak
            self.writer.write("metrics", row)
            self.last = row
            if self.bar.disable and (step in LOG_FIRST or step % LOG_EVERY == 0):
                log.info(
                    "step %d: loss %s, %.0f tokens/s",
                    step,
                    loss_text(row["loss"]),
                    tokens_per_second,
                )
            if (bad := row["consecutive_bad"]) >= self.config.train.max_bad_steps:
                what = "non-finite steps" + " or spikes" * bool(self.config.train.spike_zscore)
                raise Diverged(
                    f"step {step}: {bad} {what} in a row, the first at step {step + 1 - bad}; "
                    "lower optimizer.learning_rate, or look at the data with `xlnet-jax inspect "
                    f"--step={step - bad}` (inspect counts from 0)"
                )
        self.bar.update(
            self.bar.task_ids[0], completed=steps[-1] + 1, note=f"loss {loss_text(row['loss'])}"
        )

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Shows `what`, such as `compiling`, while no steps run: in the bar, whose clock continues,
        or in the log.
        """
        self.bar.update(self.bar.task_ids[0], description=what)
        if self.bar.disable:
            log.info("%s ...", what)
        try:
            yield
        finally:
            self.bar.update(self.bar.task_ids[0], description=TRAINING)

    def _by_corpus(self, step: int, by_row: list[np.ndarray]) -> Json:
        """Returns the epoch; with several corpora, the epoch and mean loss of each corpus, from the
        sum and weight of each row.
        """
        if self.stream is None:
            return {}
        epochs = self.stream.epochs(step + 1, self.plan)
        if len(epochs) == 1:
            return {"epoch": epochs[0]}
        row: Json = {}
        B = self.config.train.batch_size
        corpus_B, _ = self.stream.deal(step, np.arange(B), self.plan)
        for index, name in enumerate(self.data.names):
            of_it_B = corpus_B == index
            total, weight = (x_B[:B][of_it_B].sum(dtype=np.float64) for x_B in by_row)
            loss = number(total / weight) if weight else None
            row |= {f"epoch/{name}": epochs[index], f"loss/{name}": loss}
        return row


def loss_text(loss: float | None) -> str:
    """A loss for the log."""
    return "not finite" if loss is None else f"{loss:.4f}"


def perplexity(loss: float | None) -> float | None:
    """exp(loss); None if the result is not finite."""
    return math.exp(loss) if loss is not None and loss < 700 else None


def number(value: np.ndarray | np.floating) -> int | float | None:
    """A number for JSON, in which a non-finite number is null."""
    plain = value.item()
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def draw_losses(workdir: str, heldout_loss: float | None, unigram: float | None) -> str | None:
    """Draws `loss.png` of a finished run: the training loss by step, with the final held-out loss
    and its unigram baseline as lines; see `write_plot` for result and errors.
    """
    lines = [line for line in read_jsonl(workdir, "metrics.jsonl") if line.get("loss") is not None]
    curves = {"training loss": ([line["step"] for line in lines], [line["loss"] for line in lines])}
    levels = {"held-out loss, at the end": heldout_loss, "unigram cross-entropy": unigram}
    return write_plot(
        os.path.join(workdir, PICTURE), "Held-out and training loss", "step", curves, levels
    )


def write_plot(
    path: str,
    title: str,
    xlabel: str,
    curves: Mapping[str, Any],
    levels: Mapping[str, float | None],
    **scale: str,
) -> str | None:
    """Writes a PNG of curves (x, nats) and horizontal lines, by name.

    Returns the path, or None without matplotlib. Raises BadInput (a full disk, a lost permission)
    or RestartMe (the bucket does not answer).
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info(
            "no picture without matplotlib: %s, and rerun the same command",
            how_to_install("quickstart"),
        )
        return None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(*curve, linewidth=0.8, label=name)
    for number, (name, level) in enumerate(levels.items(), 1):
        if level is not None:
            axes.axhline(level, color=f"C{number}", linestyle="--", label=name)
    axes.set(title=title, xlabel=xlabel, ylabel="nats per target", **scale)
    axes.legend()
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120)
    with files.translate_errors(path):
        files.write(path, png.getvalue())
    return path
