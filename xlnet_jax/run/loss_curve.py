"""The loss curve of a finished run, a picture in its work directory."""

from __future__ import annotations

import io
import logging
import os
from typing import Any

from xlnet_jax.messages import how_to_install
from xlnet_jax.run.jsonl import read_jsonl
from xlnet_jax.storage import files

PICTURE = "loss.png"

log = logging.getLogger("xlnet_jax")


def draw(workdir: str, scores: dict[str, Any]) -> str | None:
    """Draws the training loss of every step, with the held-out loss and its unigram baseline as lines.

    Args:
      scores: the line of `evaluations.jsonl` for the last step; empty where there is none.

    Returns:
      The path of the PNG, or None where matplotlib is not installed.

    Raises:
      BadInput: a full disk, a lost permission.
      RestartMe: the bucket does not answer.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("no loss curve without matplotlib: %s, and rerun the same command", how_to_install("quickstart"))
        return None
    path = os.path.join(workdir, PICTURE)
    lines = [line for line in read_jsonl(os.path.join(workdir, "metrics.jsonl")) if line["loss"] is not None]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], linewidth=0.6, label="training loss")
    if scores.get("loss") is not None:
        axes.axhline(scores["loss"], color="tab:green", label="held-out loss, at the end")
        axes.axhline(scores["unigram_cross_entropy"], color="tab:gray", linestyle="--", label="unigram cross-entropy")
    axes.set(xlabel="step", ylabel="nats per target", title="Held-out and training loss")
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    with files.translate_errors(path):
        files.write(path, picture.getvalue())
    return path
