"""SIGTERM, Ctrl-C and SIGHUP (a closed terminal): the first signal asks for a clean end.

    start-up, restoring, the first compilation, `evaluate`     ends now: no work to save
    waiting for data                                           ends now, if the current state can be
                                                               saved
    anywhere else                                              continues to the next boundary, where
                                                               the loop asks

A thread receives the signals, through the file descriptor to which the C handler writes: a Python
handler runs only between two bytecode instructions, and a compilation is one instruction that takes
minutes. The Python handlers do nothing, so no signal interrupts a library. They are installed from
the start, because the first process of a container ignores a signal without handler.

At a shutdown the process gets SIGTERM twice: from the system, and forwarded by a launcher. A
launcher also turns one Ctrl-C into SIGINT and SIGTERM. So within `SAME_SECONDS` of the first signal
only a second SIGINT ends the process at once.

A SIGHUP that was ignored when the program started stays ignored, for `nohup`.

With several processes, `Session.stop` stops all of them at the same step.
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
"""Seconds after the first signal in which further signals, except a second Ctrl-C, are ignored."""
DATA_SECONDS = 10.0
"""Seconds to wait for data after a signal, if the state cannot be saved without the data."""


class StopRequest:
    """Whether a signal came: `name` is the name of the first signal, or None."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._working = False
        self._reader = ThreadPoolExecutor(1, "data")

    def working(self) -> None:
        """Marks the start of work that must be saved: from here on a signal only sets `name`, and
        the loop saves and ends.
        """
        self._working = True

    def take(self, elements: Iterator[Any], alone: bool) -> Any:
        """Waits for the next element and returns it. If the process is `alone`, a signal during the
        wait raises Stopped.

        With several processes the others may have started the step, which overwrites their copy of
        the state. So the wait goes on for `DATA_SECONDS` after the signal; then this process ends.
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
        came = 0.0
        interrupts = 0
        while numbers := os.read(pipe, 64):
            for number in (signal.Signals(number) for number in numbers):
                interrupts += number == signal.SIGINT
                if self.name is None:
                    came = time.monotonic()
                    self.name = number.name
                    if not self._working:
                        line = f"{self.name}: there was nothing to save; rerun the same command"
                        messages.end(RestartMe.exit_code, line)
                    log.warning(
                        "%s: saving after this dispatch; a second Ctrl-C ends at once", self.name
                    )
                elif interrupts > 1 or time.monotonic() - came > SAME_SECONDS:
                    line = f"second {number.name}: ending at once; the newest checkpoint is good"
                    messages.inform(None)  # no wait: the other processes find this process lost
                    messages.end(Interrupted.exit_code, line)


_active: list[StopRequest] = []


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Yields the active StopRequest, or a new StopRequest that nested calls share.

    After a signal the process ends with its exit code; another SIGTERM or SIGHUP has no effect.
    """
    if _active:
        yield _active[-1]
        return
    stop = StopRequest()
    reading, writing = os.pipe()
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
