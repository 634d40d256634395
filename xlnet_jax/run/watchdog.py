"""Ends a process that makes no progress, after it has written the stacks of all threads to stderr.

Progress is a finished dispatch, a batch of an evaluation, or a save. Compilation of the step
suspends the watchdog. Only time in which this process could run counts: after a stop longer than
the limit (SIGSTOP, Ctrl-Z, a machine that is moved) the process continues. A library that hangs
while it holds the GIL blocks the watchdog too; then the other processes of the run notice that this
process is silent. (`faulthandler.dump_traceback_later` would still write the stacks, but without
the GIL: in about one of some hundred stops it ended the process with SIGSEGV.)
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from xlnet_jax import messages
from xlnet_jax.errors import RestartMe

log = logging.getLogger("xlnet_jax")

INTERVALS = 20
"""Number of intervals into which the limit is divided."""


class Watchdog:
    """Ends the process after `seconds` without progress (0 = never), from the start until `cancel`.

    `messages.end` informs the other processes. Its message has the result of `doing`, the current
    work of the main thread.
    """

    def __init__(self, seconds: float, doing: Callable[[], str]) -> None:
        self.seconds = seconds
        self._doing = doing
        self._step, self._progress, self._watching = 0, 0, False
        self._over = threading.Event()
        self.progress()
        if seconds:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def progress(self, step: int | None = None) -> None:
        """Reports progress; `step`: the number of steps done."""
        self._step = self._step if step is None else step
        self._progress += 1
        self._watching = True

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends the watchdog around an operation without a time limit."""
        self._watching = False
        try:
            yield
        finally:
            self.progress()

    def cancel(self) -> None:
        """Ends the watch."""
        self._over.set()

    def _watch(self) -> None:
        """Counts the intervals without progress; an interval in which the process was stopped
        counts once, whatever its length.
        """
        seen, count, began = 0, 0, time.monotonic()
        while count < INTERVALS:
            if self._over.wait(self.seconds / INTERVALS):
                return
            before = began
            began = time.monotonic()
            if self._watching and began - before > self.seconds:
                text = (
                    "this process did not run for %.0f s (stopped, "
                    "or a library held Python's lock); it goes on"
                )
                log.warning(text, began - before)
            count = count + 1 if self._watching and self._progress == seen else 0
            seen = self._progress
        faulthandler.dump_traceback(file=2)
        # `faulthandler` stops after 100 threads and writes the oldest, the main thread, last.
        main = traceback.format_stack(sys._current_frames()[threading.main_thread().ident or 0])
        log.error("the main thread (most recent call last):\n%s", "".join(main))
        line = (
            f"no progress for {self.seconds:g} s (watchdog.seconds) "
            f"after step {self._step}, during {self._doing()}"
        )
        messages.end(
            RestartMe.exit_code, f"{line}; the stacks are above; rerun the same command to resume"
        )
