"""Pictures in a work directory: the loss curve of a finished run, and its loss by the length of the context."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
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
    steps, losses = [line["step"] for line in lines], [line["loss"] for line in lines]

    def fill(axes: Any) -> None:
        axes.plot(steps, losses, linewidth=0.6, label="training loss")
        if heldout_loss is not None:
            axes.axhline(heldout_loss, color="tab:green", label="held-out loss, at the end")
            axes.axhline(unigram, color="tab:gray", linestyle="--", label="unigram cross-entropy")
        axes.set(xlabel="step", ylabel="nats per target", title="Held-out and training loss")

    return _picture(os.path.join(workdir, PICTURE), fill)


def draw_context(workdir: str, lengths: Sequence[int], losses: Mapping[str, Sequence[float]]) -> str | None:
    """Draws the mean loss of each model, by name, over the length of the context; see `draw` for result and errors."""

    def fill(axes: Any) -> None:
        for name, loss_C in losses.items():
            axes.plot(lengths, loss_C, marker=".", label=name)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="tokens of context", ylabel="nats per target", title="Loss on the same tokens by context")

    return _picture(os.path.join(workdir, CONTEXT_PICTURE), fill)


def _picture(path: str, fill: Callable[[Any], None]) -> str | None:
    """Writes a PNG of axes that `fill` draws on; see `draw`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("no picture without matplotlib: %s, and rerun the same command", how_to_install("quickstart"))
        return None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    fill(axes)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    with files.translate_errors(path):
        files.write(path, picture.getvalue())
    return path
