"""Reports at intervals how long each host takes for a step, and the straggler that the others wait for.

All processes of a run take the same time for a step, because they wait for each other inside it. They differ in the
time that a host spends outside the step: waiting for its data, in Python, in saves. The device hides this time while it
is shorter than the step; a host where it is longer is the straggler. This does not detect a slow chip.

The numbers go through the coordination service while the device computes.
"""

from __future__ import annotations

import json
import logging
import statistics
from typing import NamedTuple

import jax

from xlnet_jax.distributed.processes import Session
from xlnet_jax.run.goodput import DEVICE, HOST, Goodput

log = logging.getLogger("xlnet_jax")

FACTOR = 1.5
"""A straggler's host takes at least this many times as long as the median host."""
SHARE = 0.25
"""And at least this share of the step: the device hides less."""


class Row(NamedTuple):
    """The times of one process, in seconds per step."""

    process: int
    host: str
    step: float
    data: float
    python: float
    save: float

    @property
    def outside(self) -> float:
        """Time outside the step."""
        return self.data + self.python + self.save


def stragglers(rows: list[Row]) -> list[Row]:
    """The processes that the others wait for, the slowest first."""
    median = _median(rows)
    slow = [row for row in rows if row.outside > FACTOR * median and row.outside > SHARE * row.step]
    return sorted(slow, key=lambda row: -row.outside)


class StepTimes:
    """Collects the step times of all processes; process 0 logs them.

    Args:
      every: steps between two tables; 0 = no tables.
    """

    def __init__(self, goodput: Goodput, processes: Session, every: int, start: int) -> None:
        self._goodput, self._processes, self._every = goodput, processes, every
        self._since, self._before = start, goodput.now()

    def at(self, step: int) -> None:
        """Called by all processes after every dispatch."""
        steps = step - self._since
        if not self._every or not self._processes.watch or steps < self._every:
            return
        spent = self._goodput.now()
        device, data, python, save = ((spent[cause] - self._before[cause]) / steps
                                      for cause in (DEVICE, "data", HOST, "save"))  # fmt: skip
        times = json.dumps([device + data + python + save, data, python, save])
        texts = self._processes.gather(times, "comparing step times")
        # Without the time spent here, in which this process waits for the others.
        self._since, self._before = step, self._goodput.now()
        if jax.process_index() == 0:
            hosts = enumerate(self._processes.hosts)
            _log([Row(*host, *json.loads(text)) for host, text in zip(hosts, texts, strict=True)], step, steps)


def _log(rows: list[Row], step: int, steps: int) -> None:
    for line in table(rows, step, steps):
        log.info("%s", line)
    for row in stragglers(rows):
        times = (row.outside, row.step, row.data, row.python, row.save, _median(rows))
        log.warning(
            "straggler: process %d (%s): %.0f ms of a step of %.0f ms on the host (data %.0f, Python %.0f, save %.0f); "
            "the median host takes %.0f", row.process, row.host, *(1e3 * seconds for seconds in times),
        )  # fmt: skip


def _median(rows: list[Row]) -> float:
    return statistics.median_low(row.outside for row in rows)


def table(rows: list[Row], step: int, steps: int) -> list[str]:
    """One line per process, in milliseconds per step."""
    head = f"step times, {steps} steps to {step}, ms per step:  process  host  step  data  Python  save"
    return [head, *(
        f"{row.process:7d}  {row.host}  {1e3 * row.step:.1f}  {1e3 * row.data:.1f}  {1e3 * row.python:.1f}  "
        f"{1e3 * row.save:.1f}" for row in rows
    )]  # fmt: skip
