"""SIGTERM, Ctrl-C and SIGHUP (a closed terminal): the first signal asks for a clean end.

    start-up, restoring, the first compilation, `evaluate`     ends now; there is nothing to save
    waiting for data                                           ends now, if the current state can be
                                                               saved
    anywhere else                                              continues to the next boundary, where
                                                               the loop asks

A thread receives the signals, through the file descriptor that the C handler writes to: a Python
handler runs only between two bytecode instructions, and a compilation is a single one that takes
minutes. The Python handlers do nothing, so no signal interrupts a library. They are there from the
start: the first process of a container ignores a signal without one, and 42 asks for a restart.

A machine that shuts down sends SIGTERM twice: from the system, and forwarded by a launcher. A
launcher also turns one Ctrl-C into SIGINT and SIGTERM. So within `SAME_SECONDS` of the first signal
only a second SIGINT ends at once.

SIGHUP stays ignored if it was when the program started: `nohup` asks for that.

With several processes `Session.stop` has all of them stop at one step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from xlnet_jax import messages
from xlnet_jax.errors import Interrupted, RestartMe, Stopped

log = logging.getLogger("xlnet_jax")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAME_SECONDS = 10.0
"""A signal this soon after the first is the same request, unless it is a second Ctrl-C."""
DATA_SECONDS = 10.0
"""Time after a signal for data to arrive, where the current state cannot be saved without it."""


class StopRequest:
    """Whether a signal came: `name` is that of the first one, or None."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._working = False
        self._reader = ThreadPoolExecutor(1, "data")

    def working(self) -> None:
        """From here on there is something to save: signals only ask, and the loop saves."""
        self._working = True

    def take(self, elements: Iterator[Any], alone: bool) -> Any:
        """The next element, which may never come. In a process that is `alone` a signal raises
        Stopped here.

        Otherwise the others may have started the step already, and their copy of this state is
        gone: then the process is ended `DATA_SECONDS` after the signal.
        """
        element = self._reader.submit(next, elements)
        while not wait([element], 0.05).done and not self.name:
            pass
        if alone and not element.done():
            raise Stopped(self.name)
        if not wait([element], DATA_SECONDS).done:
            line = f"{self.name} while waiting for data: rerun the same command to resume"
            messages.end(RestartMe.exit_code, line)
        return element.result()

    def _listen(self, pipe: int) -> None:
        came, interrupts = 0.0, 0
        while numbers := os.read(pipe, 64):
            for number in (signal.Signals(number) for number in numbers):
                interrupts += number == signal.SIGINT
                if self.name is None:
                    came, self.name = time.monotonic(), number.name
                    if not self._working:
                        line = f"{self.name}: there was nothing to save; rerun the same command"
                        messages.end(RestartMe.exit_code, line)
                    log.warning(
                        "%s: saving after this dispatch; a second Ctrl-C ends at once", self.name
                    )
                elif interrupts > 1 or time.monotonic() - came > SAME_SECONDS:
                    line = f"second {number.name}: ending at once; the newest checkpoint is good"
                    messages.inform(None)  # at once: the other processes find this one lost
                    messages.end(Interrupted.exit_code, line)


_active: list[StopRequest] = []


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """The active StopRequest, or a new one: a command enters it first, and the functions that it
    calls share it.

    After a signal the process is about to end with its own exit code: another SIGTERM or SIGHUP has
    no effect any more.
    """
    if _active:
        yield _active[-1]
        return
    stop, (reading, writing) = StopRequest(), os.pipe()
    os.set_blocking(writing, False)
    listener = threading.Thread(target=stop._listen, args=(reading,), name="signals", daemon=True)
    listener.start()
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handled = SIGNALS if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else SIGNALS[:2]
    previous = {number: signal.signal(number, lambda *_: None) for number in handled}
    _active.append(stop)
    try:
        yield stop
    finally:
        _active.remove(stop)
        for number, handler in previous.items():
            if number == signal.SIGINT or not stop.name:
                signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writing)
        listener.join()
        os.close(reading)
