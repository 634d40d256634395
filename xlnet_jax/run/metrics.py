"""Metrics of a work directory: one JSON line per step, TensorBoard events, one JSON line per evaluation.

Values are written as the device computed them (float32 printed exactly), so that two runs can be compared bit for bit.
When a run resumes, lines of steps after the checkpoint are cut off first: no step appears twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from xlnet_jax.run.events import Events
from xlnet_jax.run.jsonl import open_jsonl, read_jsonl
from xlnet_jax.storage import files

__all__ = ["MetricsWriter", "read_jsonl"]


class MetricsWriter:
    """Writes `metrics.jsonl`, `evaluations.jsonl`, `time.jsonl` and `tensorboard/` in the work directory; host 0 only.

    Args:
      step: the step the run resumes from; later lines are dropped.
      check: called before anything is written; raises if this run has lost its work directory to another.
    """

    def __init__(self, workdir: str, step: int, tensorboard: bool, check: Callable[[], None] | None = None) -> None:
        self._active = jax.process_index() == 0
        self.earlier: list[dict[str, Any]] = []
        """The lines of `time.jsonl` up to `step`."""
        self._events: Events | None = None
        if not self._active:
            return
        self._workdir, self._check = workdir, check
        with files.translate_errors(workdir):
            paths = [os.path.join(workdir, name) for name in ("metrics.jsonl", "evaluations.jsonl", "time.jsonl")]
            self._steps, self._evaluations, self._times = (open_jsonl(path, step) for path in paths)
            self.earlier = read_jsonl(paths[2])
            self._events = Events(workdir, step) if tensorboard else None
        self._failed = False

    def step(self, values: dict[str, Any]) -> None:
        """One training step; `values` has the key `step`."""
        if self._active:
            self._steps.append(values)
            self._draw("train", values)

    def evaluation(self, values: dict[str, Any]) -> None:
        """One evaluation; `values` has the key `step`."""
        if self._active:
            self._evaluations.append(values)
            self._draw("heldout", values)

    def times(self, values: dict[str, Any]) -> None:
        """Where the time went up to a step; `values` has the key `step`."""
        if self._active:
            self._times.append(values)

    def _draw(self, prefix: str, values: dict[str, Any]) -> None:
        if self._events:
            for name, value in values.items():
                if name != "step" and value is not None:
                    self._events.add(f"{prefix}/{name}", value, values["step"])

    def flush(self) -> None:
        """To the disk or the bucket; called before every checkpoint, so that no line is missing before its step.

        After an error it can be called again; no line is then lost or written twice.

        Raises:
          RestartMe: the bucket does not answer, or another run has this work directory now.
          BadInput: a full disk, a lost permission.
        """
        if not self._active:
            return
        self._failed = True
        if self._check:
            self._check()
        with files.translate_errors(self._workdir):
            self._steps.flush()
            self._evaluations.flush()
            self._times.flush()
            if self._events:
                self._events.flush()
        self._failed = False

    def close(self) -> None:
        """Flushes and closes."""
        if not self._active:
            return
        try:
            if not self._failed:  # or it would wait for the same disk or bucket again
                self.flush()
        finally:
            self._steps.close()
            self._evaluations.close()
            self._times.close()
            if self._events:
                self._events.close()
