"""Goodput: the time of a run over all its restarts, divided into training and the causes of lost time.

The clock always runs for exactly one cause. Every save writes the sums to `time.jsonl` of the work directory, and the
next start continues from the sums of the step it resumes from; the time between that save and the next start (repeated
work, and waiting for a machine) is lost to restarts. Nothing is counted twice and nothing is left out: the seconds add
up to the time since the first start, except pauses after a clean end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

DEVICE, HOST = "device", "host"
LOST = ("start", "restore", "compile", "data", "save", "evaluation", "check", "restarts")


class Goodput:
    """The clock of one process. It starts with the cause `start`."""

    def __init__(self) -> None:
        self.began = time.time()
        self.seconds: dict[str, float] = {cause: 0.0 for cause in (DEVICE, HOST, *LOST)}
        self._causes = ["start"]
        self._mark = time.perf_counter()

    @property
    def cause(self) -> str:
        """The cause that the clock runs for now."""
        return self._causes[-1]

    def now(self) -> dict[str, float]:
        """A copy of the seconds by cause, up to now."""
        self._turn()
        return dict(self.seconds)

    def training(self) -> float:
        """Seconds so far of the device and the host, and in which they waited for data and saves."""
        self._turn()
        return sum(self.seconds[cause] for cause in (DEVICE, HOST, "data", "save"))

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self._causes[-1]] += now - self._mark
        self._mark = now

    @contextlib.contextmanager
    def measure(self, cause: str) -> Iterator[None]:
        """Counts the time inside for a cause. The outermost cause counts: waiting for data in an evaluation is
        evaluation. Exceptions: inside `host` and `start`, the inner cause counts.
        """
        self._turn()
        self._causes.append(cause if self.cause in (HOST, "start") else self.cause)
        try:
            yield
        finally:
            self._turn()
            self._causes.pop()

    def work(self) -> None:
        """Training starts: from here on, time without another cause is the host's part of training."""
        self._turn()
        self._causes[0] = HOST

    def resume_from(self, lines: list[dict[str, Any]]) -> None:
        """Adds the seconds of earlier starts: `lines` of `time.jsonl`, up to the step that this start resumes from."""
        if last := last_complete(lines):
            for cause, seconds in last["seconds"].items():
                self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
            if not last["ended"]:
                self.seconds["restarts"] += max(0.0, self.began - last["time"])

    def line(self, step: int, ended: bool = False) -> dict[str, Any]:
        """A line for `time.jsonl`. `ended`: the run ends cleanly here, and the time after it is not lost."""
        return {"step": step, "time": time.time(), "ended": ended, "seconds": self.now()}


def last_complete(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last line of `time.jsonl` with all that is read."""
    return next(filter(_complete, reversed(lines)), None)


def _complete(line: dict[str, Any]) -> bool:
    seconds = line.get("seconds")
    if not isinstance(seconds, dict) or not seconds.keys() >= {DEVICE, HOST} or "ended" not in line:
        return False
    return all(isinstance(value, int | float) for value in (line.get("time"), *seconds.values()))


def summary(line: dict[str, Any] | None) -> dict[str, Any]:
    """From a line of `time.jsonl`: `seconds` by cause (`steps` is training), and `goodput`, the share of training."""
    if line is None:
        return {"seconds": None, "goodput": None}
    spent = line["seconds"]
    seconds = {"steps": spent[DEVICE] + spent[HOST], **{cause: spent.get(cause, 0.0) for cause in LOST}}
    return {"seconds": seconds, "goodput": seconds["steps"] / max(sum(seconds.values()), 1e-9)}


def result(
    workdir: str, step: int, loss: float | None, tokens_per_second: float | None, line: dict[str, Any] | None
) -> dict[str, Any]:
    """The result of `train`."""
    return {"step": step, "loss": loss, "tokens_per_second": tokens_per_second, "workdir": workdir, **summary(line)}


def described(line: dict[str, Any]) -> str:
    """One line for the log, the largest loss first."""
    seconds = summary(line)["seconds"]
    total, steps = max(sum(seconds.values()), 1e-9), seconds.pop("steps")
    lost = sorted(((spent, cause) for cause, spent in seconds.items() if spent >= 0.05), reverse=True)
    parts = [f"{cause} {spent:.1f} s ({100 * spent / total:.1f} %)" for spent, cause in lost]
    return (
        f"{total:.1f} s in all, training {steps:.1f} s ({100 * steps / total:.1f} %); lost: {', '.join(parts) or '-'}"
    )
