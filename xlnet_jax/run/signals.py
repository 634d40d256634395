"""SIGTERM and Ctrl-C: the first signal asks for a clean end, the second ends the process at once.

The effect of the first signal depends on the phase of the process:

    start-up, restoring, the first compilation, `evaluate`     ends now; there is nothing to save
    waiting for data                                           ends now, if the current state can be saved
    anywhere else                                              continues to the next boundary, where the loop checks

A Python signal handler runs only between two bytecode instructions, and a compilation is a single one that takes
minutes. So a thread also receives the signals, through the file descriptor that the C handler writes to.

`jax.experimental.multihost_utils.reached_preemption_sync_point` is not used. It is always false in a single process;
with several processes its notifier takes over SIGTERM, ignores all other signals (no Ctrl-C), and does not cover
evaluation, compilation or waiting for data. `parallel.watch` guarantees the same property: all processes stop at one
step. A preempted TPU VM gets SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from xlnet_jax import messages
from xlnet_jax.errors import Interrupted, RestartMe, Stopped

log = logging.getLogger("xlnet_jax")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
START_SECONDS = 1.0
"""Time for the main thread to notice a signal while there is nothing to save."""
CLEANUP_SECONDS = 10.0
"""Further time for it to release its resources, such as the lock of a bucket."""
DATA_SECONDS = 10.0
"""Time after a signal for data to arrive, where the current state cannot be saved without it."""


class Phase(NamedTuple):
    """What the main thread is doing, where a signal must do more than ask."""

    what: str
    raises: bool
    seconds: float
    """Time after which the process is ended from outside the main thread."""
    since: float


class StopRequest:
    """Context manager that catches both signals; true after the first one. At its end it restores the old handlers.

    Attributes:
      end: ends the process with an exit code and a message, and informs the other processes of the run.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.end: Callable[[int, str], None] = _end
        self._previous: dict[int, Any] = {}
        self._phase: Phase | None = None
        self._raised = False
        self._closed = False
        self._first = ""
        self._pipe = (-1, -1)
        self._wakeup = -1
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)

    def __bool__(self) -> bool:
        return self.name is not None

    def __enter__(self) -> StopRequest:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._phase = Phase("start-up", True, START_SECONDS, time.monotonic())
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._pipe[1])
        self._thread.join()
        os.close(self._pipe[0])

    def working(self) -> None:
        """From here on there is something to save: signals only ask, and the loop saves.

        The first call raises Stopped if a signal came before it.
        """
        if self._phase is not None:
            self._phase = None
            self.check()

    def check(self) -> None:
        """Raises Stopped if a signal came."""
        if self.name is not None:
            raise Stopped(f"{self.name}: rerun the same command to resume")

    @contextlib.contextmanager
    def waiting(self, what: str, raises: bool) -> Iterator[None]:
        """Used around an operation that may never return.

        Args:
          raises: a signal raises Stopped here; otherwise the process is ended `DATA_SECONDS` after the signal.
        """
        before = self._phase
        if before is None:
            self._phase = Phase(what, raises, math.inf if raises else DATA_SECONDS, time.monotonic())
        try:
            if raises:
                self.check()
            yield
        finally:
            self._phase = before

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.name is not None:
            _end_at_once(number)
        self.name = signal.Signals(number).name
        phase = self._phase
        if phase and phase.raises:
            self._raised = True
            log.warning("%s during %s: ending; a second signal ends at once", self.name, phase.what)
            raise Stopped(f"{self.name} during {phase.what}: rerun the same command to resume")
        log.warning("%s: saving after this dispatch; a second signal ends at once", self.name)

    def _listen(self) -> None:
        """Ends the process if the main thread does not, because it is inside a library."""
        first = threading.Event()
        threading.Thread(target=self._patience, args=(first,), name="signals_patience", daemon=True).start()
        count = 0
        while numbers := os.read(self._pipe[0], 64):
            for number in numbers:
                if number in SIGNALS:
                    count += 1
                    if count > 1:
                        _end_at_once(number)
                    self._first = signal.Signals(number).name
                    first.set()
        self._closed = True
        first.set()

    def _patience(self, first: threading.Event) -> None:
        first.wait()
        came = time.monotonic()
        while not self._closed:
            phase = self._phase
            # After Stopped was raised the main thread is about to end, unless a library swallowed the exception.
            more = CLEANUP_SECONDS if self._raised else 0.0
            if phase and time.monotonic() - max(came, phase.since) > phase.seconds + more:
                self.end(RestartMe.exit_code, f"{self._first} during {phase.what}: rerun the same command to resume")
            time.sleep(0.05)


def _end_at_once(number: int) -> None:
    line = f"second {signal.Signals(number).name}: ending at once; the newest checkpoint is good"
    try:
        messages.error("xlnet-jax", line, Interrupted.exit_code)
    finally:
        # Not sys.exit: it would wait for writers and readers in other threads.
        os._exit(Interrupted.exit_code)


def _end(code: int, line: str) -> None:
    messages.error("xlnet-jax", line, code)
    os._exit(code)


_active: list[StopRequest] = []


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """The active StopRequest, or a new one: a command enters it first, and the functions that it calls share it.

    Converts Stopped to RestartMe.
    """
    if _active:
        yield _active[-1]
        return
    try:
        with StopRequest() as stop:
            _active.append(stop)
            try:
                yield stop
            finally:
                _active.remove(stop)
    except Stopped as stopped:
        raise RestartMe(str(stopped)) from stopped
