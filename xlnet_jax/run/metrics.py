"""Metrics of a work directory: one JSON line per step, TensorBoard events, one JSON line per evaluation.

Values are written as the device computed them (float32 printed exactly), so that two runs can be compared bit for bit.
When a run resumes, lines of steps after the checkpoint are cut off first: no step appears twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from xlnet_jax.run.append import AppendFile, AppendParts
from xlnet_jax.run.events import event, open_events
from xlnet_jax.run.jsonl import open_jsonl, read_jsonl, to_line
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
        self._workdir, self._check, self._failed = workdir, check, False
        self._files: dict[str, AppendFile | AppendParts] = {}
        self.earlier: list[dict[str, Any]] = []
        """The lines of `time.jsonl` up to `step`."""
        if self._active:
            with files.translate_errors(workdir):
                for name in ("metrics", "evaluations", "time"):
                    self._files[name] = open_jsonl(os.path.join(workdir, f"{name}.jsonl"), step)
                self.earlier = read_jsonl(os.path.join(workdir, "time.jsonl"))
                if tensorboard:
                    self._files["events"] = open_events(workdir, step)

    def step(self, values: dict[str, Any]) -> None:
        """One training step; `values` has the key `step`."""
        self._append("metrics", values, "train")

    def evaluation(self, values: dict[str, Any]) -> None:
        """One evaluation; `values` has the key `step`."""
        self._append("evaluations", values, "heldout")

    def times(self, values: dict[str, Any]) -> None:
        """Goodput up to a step; `values` has the key `step`."""
        self._append("time", values, None)

    def _append(self, name: str, values: dict[str, Any], prefix: str | None) -> None:
        if self._active:
            self._files[name].append(to_line(values), values["step"])
            if prefix and "events" in self._files:
                self._files["events"].append(event(prefix, values), values["step"])

    def flush(self) -> None:
        """To the disk or the bucket; called before every checkpoint, so that no line is missing before its step.

        After an error it can be called again; no line is then lost or written twice.

        Raises:
          RestartMe: the bucket does not answer, or another run has this work directory now.
          BadInput: a full disk, a lost permission.
        """
        self._failed = True
        if self._active and self._check:
            self._check()
        with files.translate_errors(self._workdir):
            for file in self._files.values():
                file.flush()
        self._failed = False

    def close(self) -> None:
        """Flushes, but not after an error: it would wait for the same disk or bucket again."""
        if self._active and not self._failed:
            self.flush()
