"""Metrics on disk: one JSON line per step, TensorBoard events, one JSON line per evaluation.

Values are written as the device computed them (float32 printed exactly), so that two runs can be compared bit for bit.
When a run resumes, lines of steps after the checkpoint are cut off first: no step appears twice.
"""

from __future__ import annotations

import json
import os
from typing import Any

import jax

from xlnet_jax import files
from xlnet_jax.config import Config
from xlnet_jax.model import flops


class MetricsWriter:
    """Writes `metrics.jsonl`, `evaluations.jsonl` and `tensorboard/` in the work directory; host 0 only.

    Args:
      step: the step the run resumes from; later lines are dropped.
    """

    def __init__(self, workdir: str, step: int, tensorboard: bool) -> None:
        self._active = jax.process_index() == 0
        self._events: Any = None
        if not self._active:
            return
        paths = [os.path.join(workdir, name) for name in ("metrics.jsonl", "evaluations.jsonl")]
        for path in paths:
            cut_back(path, step)
        self._steps, self._evaluations = (open(path, "a", encoding="utf-8") for path in paths)  # noqa: SIM115
        if tensorboard:
            from tensorboardX import SummaryWriter

            folder = os.path.join(workdir, "tensorboard")
            self._events = SummaryWriter(folder, purge_step=step + 1)

    def step(self, values: dict[str, Any]) -> None:
        """One training step; `values` has the key `step`."""
        self._write("_steps", "train", values)

    def evaluation(self, values: dict[str, Any]) -> None:
        """One evaluation; `values` has the key `step`."""
        self._write("_evaluations", "heldout", values)

    def _write(self, file: str, prefix: str, values: dict[str, Any]) -> None:
        if not self._active:
            return
        getattr(self, file).write(json.dumps(values) + "\n")
        if self._events:
            for name, value in values.items():
                if name != "step" and value is not None:
                    self._events.add_scalar(f"{prefix}/{name}", value, values["step"])

    def flush(self) -> None:
        """To the disk; called with every checkpoint, so that no line is missing before the step it resumes from."""
        if self._active:
            for file in (self._steps, self._evaluations):
                file.flush()
                os.fsync(file.fileno())
            if self._events:
                self._events.flush()

    def close(self) -> None:
        """Flushes and closes."""
        if self._active:
            self.flush()
            self._steps.close()
            self._evaluations.close()
            if self._events:
                self._events.close()


def read_lines(path: str) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file; a line cut off by a crash is left out. Empty if there is no file."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def cut_back(path: str, step: int) -> None:
    """Drops the lines of steps after `step`, by writing a new file beside and renaming it."""
    lines = read_lines(path)
    kept = [line for line in lines if line["step"] <= step]
    if os.path.exists(path):
        files.write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def utilisation(config: Config, steps_per_second: float) -> float | None:
    """Model FLOPs utilisation: needed FLOPs per second over the peak of all devices; None if no peak is published.

    The formula is in docs/training.md.
    """
    device = jax.devices()[0]
    peak = flops.PEAK_FLOPS.get(device.device_kind)
    if peak is None:
        return None
    return flops.step_flops(config) * steps_per_second / (peak * jax.device_count())
