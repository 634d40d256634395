"""Evaluations on the way: each belongs to a step, is written once it is complete, made again if it was cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from typing import Any

from xlnet_jax.config import Config
from xlnet_jax.errors import Stopped, uncovered
from xlnet_jax.parallel import distributed
from xlnet_jax.train.accounting import Account
from xlnet_jax.train.heldout import Heldout
from xlnet_jax.train.metrics import MetricsWriter, read_lines
from xlnet_jax.train.signals import StopRequest
from xlnet_jax.train.watchdog import Watchdog

log = logging.getLogger("xlnet_jax")


def missing(config: Config, workdir: str, step: int, processes: distributed.Session) -> bool:
    """Whether the evaluation of a saved step was cut off, by a stop right after its checkpoint or inside of it."""
    every = config.evaluation.every
    if not (every and step and step % every == 0):
        return False
    done = read_lines(os.path.join(workdir, "evaluations.jsonl"))
    # Another process may see the file a little later than the one that writes it.
    return bool(processes.of_first(all(line["step"] != step for line in done)))


class CutOff(Stopped):
    """A signal came in an evaluation; all processes stop here."""


@dataclasses.dataclass
class Evaluations:
    """Scores the held-out split and adds a line to `evaluations.jsonl`."""

    heldout: Heldout
    writer: MetricsWriter
    processes: distributed.Session
    request: StopRequest
    account: Account
    watchdog: Watchdog

    def __call__(self, step: int, params: Any) -> float:
        """Returns the seconds it took. Raises CutOff; nothing is written then."""
        began = time.perf_counter()
        alone = self.processes.watch is None
        waiting = self.request.waiting("evaluation", raises=True) if alone else contextlib.nullcontext()
        try:
            with self.account.of("evaluation"), waiting, uncovered():
                result = self.heldout(params, self._between)
        except CutOff:
            raise
        except Stopped as stopped:
            if not alone:
                raise
            raise CutOff(self.request.name) from stopped
        seconds = time.perf_counter() - began
        self.writer.evaluation({"step": step, **result.scores(), "seconds": seconds})
        log.info("step %d: held-out loss %.4f (%.4f without memory)", step, result.loss, result.loss_without_memory)
        return seconds

    def _between(self) -> None:
        """After every batch: all processes ask whether one of them got a signal."""
        self.watchdog.progress()
        if stopping := self.processes.stop(self.request.name):
            raise CutOff(stopping)
