"""Reports at intervals how long each host takes for a step, and the straggler that the others wait for.

All processes of a run take the same time for a step, because they wait for each other inside it. They differ in the
time that a host spends outside the step: waiting for its data, in Python, in saves. The device hides this time while it
is shorter than the step; a host where it is longer is the straggler. This does not detect a slow chip.

The numbers go through the coordination service, and process 0 reads them one dispatch later: the loop does not wait.
"""

from __future__ import annotations

import json
import logging
import statistics
from typing import NamedTuple

from xlnet_jax.parallel.processes import Session
from xlnet_jax.run.goodput import DEVICE, HOST, Goodput

log = logging.getLogger("xlnet_jax")

FACTOR = 1.5
"""A straggler's host takes at least this many times as long as the median host."""
SHARE = 0.25
"""And at least this share of the step: the device hides less."""

CAUSES = ("data", HOST, "save")


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
    median = statistics.median_low(row.outside for row in rows)
    slow = [row for row in rows if row.outside > FACTOR * median and row.outside > SHARE * row.step]
    return sorted(slow, key=lambda row: -row.outside)


class StepTimes:
    """Publishes the step times of this process; in process 0 also logs those of all processes.

    Args:
      every: steps between two tables; 0 = no tables.
    """

    def __init__(self, goodput: Goodput, processes: Session, every: int, start: int) -> None:
        self._account, self._processes, self._every = goodput, processes, every
        self._since, self._steps = start, 0
        self._before = dict(goodput.seconds)

    def at(self, step: int) -> None:
        """Called by all processes after every dispatch."""
        if not self._every or not self._processes.watch:
            return
        self.close()
        if step - self._since < self._every:
            return
        spent = self._account.line(step)["seconds"]
        self._steps = step - self._since
        each = {cause: (spent[cause] - self._before[cause]) / self._steps for cause in (DEVICE, *CAUSES)}
        self._since, self._before = step, spent
        self._processes.publish(f"steps/{step}", json.dumps([sum(each.values()), *(each[cause] for cause in CAUSES)]))

    def close(self) -> None:
        """In process 0: logs the times that were published before the last dispatch, which all processes share."""
        if not self._steps or self._processes.watch is None or self._processes.watch.process:
            return
        texts = self._processes.published(f"steps/{self._since}")
        rows = [Row(process, self._processes.hosts[process], *json.loads(text)) for process, text in texts.items()]
        for line in table(rows, self._since, self._steps):
            log.info("%s", line)
        for row in stragglers(rows):
            log.warning(
                "straggler: process %d (%s): %.0f ms of a step of %.0f ms on the host (data %.0f, Python %.0f, "
                "save %.0f); the median host takes %.0f", row.process, row.host, *(1e3 * x for x in (
                    row.outside, row.step, row.data, row.python, row.save,
                    statistics.median_low(each.outside for each in rows))),
            )  # fmt: skip
        self._steps = 0


def table(rows: list[Row], step: int, steps: int) -> list[str]:
    """One line per process, in milliseconds per step."""
    head = f"step times, {steps} steps to {step}, ms per step:  process  host  step  data  Python  save"
    return [head, *(
        f"{row.process:7d}  {row.host}  {1e3 * row.step:.1f}  {1e3 * row.data:.1f}  {1e3 * row.python:.1f}  "
        f"{1e3 * row.save:.1f}" for row in rows
    )]  # fmt: skip
