"""Goodput: the time of a run over all its restarts, divided into training and causes of lost time.

The clock always runs for exactly one cause. Every save writes the sums to `time.jsonl` of the work
directory. The next start continues from the sums of its step; the time from that save to the start
(work to repeat, and the wait for a machine) is counted as `restarts`. So the seconds add up to the
time since the first start, except pauses after a clean end.

All processes take the same time for a step, because they wait for each other inside it. A straggler
is a host that spends too much time outside the step: waiting for data, in Python, in saves. A slow
chip is not detected.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import time
from collections.abc import Iterator

import jax
import numpy as np

from xlnet_jax.distributed.processes import Session
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

DEVICE, HOST = "device", "host"
LOST = ("start", "restore", "compile", "data", "save", "evaluation", "restarts")
OF_A_STEP = (DEVICE, "data", HOST, "save")
"""Causes of the time of a step; in all but the first the host works or waits."""
STRAGGLER_FACTOR, STRAGGLER_SHARE = 1.5, 0.25
"""Lower bounds of the host time of a straggler: a multiple of the median host time, and a share of
the step. The work of the device hides host time below this share.
"""


class Goodput:
    """The clock of one process. It starts with the cause `start`."""

    def __init__(self) -> None:
        self.began = time.time()
        self.seconds: dict[str, float] = {cause: 0.0 for cause in (DEVICE, HOST, *LOST)}
        self._causes = ["start"]
        self._mark = time.perf_counter()

    @property
    def cause(self) -> str:
        """The cause for which the clock runs."""
        return self._causes[-1]

    def now(self) -> dict[str, float]:
        """A copy of the seconds by cause, up to now."""
        self._turn()
        return dict(self.seconds)

    def training(self) -> float:
        """Seconds of the device and the host so far, with their waits for data and saves."""
        self._turn()
        return sum(self.seconds[cause] for cause in OF_A_STEP)

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self.cause] += now - self._mark
        self._mark = now

    @contextlib.contextmanager
    def measure(self, cause: str) -> Iterator[None]:
        """Counts the time of the block for a cause. The outermost cause counts, so a wait for data
        in an evaluation counts as `evaluation`; but inside `host` and `start` the inner cause
        counts.
        """
        self._turn()
        self._causes.append(cause if self.cause in (HOST, "start") else self.cause)
        try:
            yield
        finally:
            self._turn()
            self._causes.pop()

    def work(self) -> None:
        """Starts training: from here on, time without another cause is host time."""
        self._turn()
        self._causes[0] = HOST

    def resume_from(self, lines: list[Json]) -> None:
        """Adds the seconds of earlier starts: `lines` of `time.jsonl` up to the step of this
        start.
        """
        if last := last_complete(lines):
            for cause, seconds in last["seconds"].items():
                self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
            if not last["ended"]:
                self.seconds["restarts"] += max(0.0, self.began - last["time"])

    def line(self, step: int, ended: bool = False, stopped: bool = False) -> Json:
        """A line for `time.jsonl`. `ended`: the run ends cleanly, so the time after it is not lost;
        `stopped`: a signal ends it.
        """
        now = {"step": step, "time": time.time(), "ended": ended, "stopped": stopped}
        return now | {"seconds": self.now(), "memory": memory()}


def memory() -> dict[str, int | None]:
    """Peak bytes so far, of this process and of its fullest device (None if devices report no
    peak).
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    of_devices = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    of_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"host": of_host, "device": max(of_devices, default=None)}


def last_complete(lines: list[Json]) -> Json | None:
    """The last line of `time.jsonl` with all needed keys."""
    for line in reversed(lines):
        seconds = line.get("seconds")
        if (
            isinstance(seconds, dict)
            and {DEVICE, HOST} <= seconds.keys()
            and line.get("time")
            and "ended" in line
        ):
            return line
    return None


def end_of(line: Json | None, last_step: Json, bad_steps: int) -> str | None:
    """How a start of a run ended, from its last lines of `time.jsonl` and `metrics.jsonl`; None
    without a line of `time.jsonl`.

    end        at its last step, or at `--stop_at`
    signal     by SIGTERM and the like
    diverged   by `bad_steps` in a row
    lost       by a kill, the loss of a machine or an error; or the run is still running
    """
    if line is None:
        return None
    if (last_step.get("consecutive_bad") or 0) >= bad_steps:
        return "diverged"
    return "end" if line["ended"] else "signal" if line.get("stopped") else "lost"


def summary(line: Json | None) -> Json:
    """`seconds` by cause (`steps` is training) and `goodput`, the share of training, from a line of
    `time.jsonl`.
    """
    if line is None:
        return {"seconds": None, "goodput": None}
    spent = line["seconds"]
    seconds = {
        "steps": spent[DEVICE] + spent[HOST],
        **{cause: spent.get(cause, 0.0) for cause in LOST},
    }
    return {"seconds": seconds, "goodput": seconds["steps"] / max(sum(seconds.values()), 1e-9)}


def result(workdir: str, step: int, last: Json, line: Json | None) -> Json:
    """The result of `train`, from its last lines of `metrics.jsonl` and of `time.jsonl`."""
    of_step = {name: last.get(name) for name in ("loss", "tokens_per_second")}
    return {"step": step, **of_step, "workdir": workdir, **summary(line)}


def time_line(line: Json) -> str:
    """A line of the log about a line of `time.jsonl`, the largest loss first."""
    spent = summary(line)
    seconds = spent["seconds"]
    total = max(sum(seconds.values()), 1e-9)
    steps = seconds.pop("steps")
    lost = sorted(((each, cause) for cause, each in seconds.items() if each >= 0.05), reverse=True)
    parts = [f"{cause} {each:.1f} s ({100 * each / total:.1f} %)" for each, cause in lost]
    training = f"{total:.1f} s in all, training {steps:.1f} s ({100 * spent['goodput']:.1f} %)"
    return f"{training}; lost: {', '.join(parts) or '-'}"


def stragglers(seconds_PC: np.ndarray) -> list[int]:
    """Returns the numbers of the processes for which others wait, the slowest first. `seconds_PC`:
    seconds per step of P processes by the causes of `OF_A_STEP`.
    """
    outside_P = seconds_PC[:, 1:].sum(axis=1)
    bound_P = np.maximum(
        STRAGGLER_FACTOR * _median(outside_P), STRAGGLER_SHARE * seconds_PC.sum(axis=1)
    )
    return [
        int(process) for process in np.argsort(-outside_P) if outside_P[process] > bound_P[process]
    ]


def _median(x: np.ndarray) -> float:
    return float(np.quantile(x, 0.5, method="lower"))


class StepTimes:
    """Compares the step times of all processes every `every` steps (0 = never); process 0 logs them
    and names stragglers.

    The numbers go through the coordination service while the device computes.
    """

    def __init__(self, goodput: Goodput, processes: Session, every: int, start: int) -> None:
        self._goodput, self._processes, self._every = goodput, processes, every
        self._since = start
        self._before = goodput.now()

    def at(self, step: int) -> None:
        """Called by all processes after every dispatch."""
        steps = step - self._since
        if not self._every or not (watch := self._processes.watch) or steps < self._every:
            return
        spent = self._goodput.now()
        mine = [(spent[cause] - self._before[cause]) / steps for cause in OF_A_STEP]
        texts = self._processes.collect(json.dumps(mine), "comparing step times")
        # The wait here for other processes does not count in the next comparison.
        self._since, self._before = step, self._goodput.now()
        if jax.process_index():
            return
        ms_PC = 1e3 * np.array([json.loads(text) for text in texts])
        step_P = ms_PC.sum(axis=1)
        outside_P = ms_PC[:, 1:].sum(axis=1)
        log.info(
            "step times, %d steps to %d: %.1f ms per step; on the host %.1f in the median "
            "process, %.1f in the slowest",
            steps,
            step,
            step_P.max(),
            _median(outside_P),
            outside_P.max(),
        )
        for process in stragglers(ms_PC):
            log.warning(
                "straggler: process %s: %.0f ms of a step of %.0f ms on the host (data "
                "%.0f, Python %.0f, save %.0f)",
                watch.name_of(process),
                outside_P[process],
                step_P[process],
                *ms_PC[process, 1:],
            )
