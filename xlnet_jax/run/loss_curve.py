"""Pictures in a work directory: the loss curve of a finished run, and its loss by the length of the context."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from xlnet_jax.messages import how_to_install
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.storage import files

PICTURE, CONTEXT_PICTURE = "loss.png", "context.png"

log = logging.getLogger("xlnet_jax")


def draw(workdir: str, heldout_loss: float | None, unigram: float | None) -> str | None:
    """Draws the training loss of every step, with the held-out loss and its unigram baseline as lines.

    Args:
      heldout_loss, unigram: after the last step; None where nothing was evaluated.

    Returns:
      The path of the PNG, or None where matplotlib is not installed.

    Raises:
      BadInput: a full disk, a lost permission.
      RestartMe: the bucket does not answer.
    """
    lines = [line for line in read_jsonl(os.path.join(workdir, "metrics.jsonl")) if line.get("loss") is not None]
    curves = {"training loss": ([line["step"] for line in lines], [line["loss"] for line in lines])}
    levels = {"held-out loss, at the end": heldout_loss, "unigram cross-entropy": unigram}
    return _picture(os.path.join(workdir, PICTURE), "Held-out and training loss", "step", curves, levels)


def draw_context(workdir: str, lengths: Sequence[int], losses: Mapping[str, Sequence[float]]) -> str | None:
    """Draws the mean loss of each model, by name, over the length of the context; see `draw` for result and errors."""
    curves = {name: (lengths, loss_C) for name, loss_C in losses.items()}
    title, xlabel = "Loss on the same tokens by context", "tokens of context"
    return _picture(os.path.join(workdir, CONTEXT_PICTURE), title, xlabel, curves, {}, xscale="log")


def _picture(
    path: str, title: str, xlabel: str, curves: Mapping[str, Any], levels: Mapping[str, float | None], **scale: str
) -> str | None:
    """Writes a PNG of curves (x, y) and of horizontal lines, by name; see `draw`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("no picture without matplotlib: %s, and rerun the same command", how_to_install("quickstart"))
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    with files.translate_errors(path):
        files.write(path, picture.getvalue())
    return path
