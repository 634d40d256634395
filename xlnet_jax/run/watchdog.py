"""Ends a process that makes no progress, after it has written the stacks of all threads.

Progress is a finished dispatch, a batch of an evaluation, or a save. Compilation of the step has no time limit: the
watchdog is suspended. The watchdog is a Python thread: a library that hangs while it holds the GIL blocks the watchdog
too; the other processes of the run then find this one silent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from xlnet_jax.errors import RestartMe
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")

WRITE_SECONDS = 10.0
"""Time limit for writing the stacks to the work directory: its file system may be the cause of the hang."""


class Watchdog:
    """Context manager.

    Args:
      seconds: without progress, after which the process is ended; 0 = never.
      path: the file for the stacks, which also go to stderr.
      doing: returns what the main thread is doing, for the message.
      end: ends this process with an exit code and a message, and informs the other processes of the run.
    """

    def __init__(self, seconds: float, path: str, doing: Callable[[], str], end: Callable[[int, str], None]) -> None:
        self.seconds, self.path, self._doing, self._end = seconds, path, doing, end
        self._last = time.monotonic()
        self._step = 0
        self._suspended = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def progress(self, step: int | None = None) -> None:
        """Reports progress; `step`: the number of steps done."""
        self._last = time.monotonic()
        if step is not None:
            self._step = step

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends the watchdog around an operation without a time limit."""
        self._suspended = True
        try:
            yield
        finally:
            self.progress()
            self._suspended = False

    def __enter__(self) -> Watchdog:
        self.progress()
        if self.seconds:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self.seconds:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(min(1.0, self.seconds / 4)):
            if not self._suspended and time.monotonic() - self._last > self.seconds:
                line = (
                    f"no progress for {self.seconds:g} s (watchdog.seconds) after step {self._step}, during "
                    f"{self._doing()}; the stacks are in {self.path}; rerun the same command to resume"
                )
                log.error("%s", line)
                self._dump()
                self._end(RestartMe.exit_code, line)
                return

    def _dump(self) -> None:
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            writing = threading.Thread(target=self._write, args=(file.read(),), daemon=True)
        writing.start()
        writing.join(WRITE_SECONDS)

    def _write(self, stacks: bytes) -> None:
        try:
            files.make_folder(os.path.dirname(self.path))
            files.write(self.path, stacks)
        except Exception as error:
            # The stacks are also on stderr.
            log.error("%s could not be written: %s", self.path, error)
