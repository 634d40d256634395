"""Ends a process that makes no progress, after writing down where all its threads are.

Progress is a dispatch that has come back, a batch of an evaluation, a save. Compiling the step is none, and may take as
long as it does. The thread that looks is Python's: a library that hangs while it holds Python's lock hangs the watchdog
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
"""How long writing the stacks to the work directory may take: that may be what hangs."""


class Watchdog:
    """Context manager.

    Args:
      seconds: without progress, before the process is ended; 0 = never.
      path: the file the stacks go to, beside stderr.
      doing: says what the main thread is doing, for the line.
      end: ends this process with a code and a line, and tells the others of the run.
    """

    def __init__(self, seconds: float, path: str, doing: Callable[[], str], end: Callable[[int, str], None]) -> None:
        self.seconds, self.path, self._doing, self._end = seconds, path, doing, end
        self._last = time.monotonic()
        self._step = 0
        self._suspended = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def progress(self, step: int | None = None) -> None:
        """Something has been done; `step`: so many steps."""
        self._last = time.monotonic()
        if step is not None:
            self._step = step

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Around what may take as long as it does."""
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
                    f"{self._doing()}; the stacks are in {self.path}; run the same command to go on"
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
            # They are on stderr as well.
            log.error("%s could not be written: %s", self.path, error)
