"""Messages between the processes of a run: heartbeats, exit codes, and the agreement on a common stop.

A thread in every process holds the connections of the rendezvous: process 0 to all others, the others to process 0. It
ends the whole process when another one is lost, because by then the main thread waits for the lost one inside a
collective operation that never returns. JAX notices the loss at the same time or later, and aborts: see `hold_aborts`.

    beat         heartbeat
    bye, why     this process ends with that exit code; a connection that closes without a bye is a lost process
    end, why     process 0 forwards the end of another process
    stop         a signal came to this process: ask all processes for their boundary
    poll         reply with your boundary (`at`), and wait there until you know after which one to stop
    stop_after   stop at the first boundary after this one
"""

from __future__ import annotations

import ctypes
import logging
import os
import selectors
import signal
import sys
import threading
import time
from typing import Any

from xlnet_jax import messages
from xlnet_jax.errors import RestartMe
from xlnet_jax.parallel.rendezvous import TICK_SECONDS, Link

log = logging.getLogger("xlnet_jax")

GRACE_SECONDS = 5.0
"""Time for a process to end on its own after the end of another one. Shorter than the delay of `hold_aborts`."""


def hold_aborts() -> None:
    """Delays an abort of this process by six seconds.

    When process 0 is lost, and with it JAX's coordination service, JAX calls abort() in every other process at once,
    from a thread of its own. The watch notices the loss too and ends the process with a clear message and exit code 42,
    but may be slower. JAX offers no way to prevent the abort: `jax_enable_recoverability` covers the loss of any
    process except 0, the client's `missed_heartbeat_callback` cannot be a Python function (std::bad_cast, jaxlib 0.10),
    and abort() overrides blocked and ignored signals. The handler is libc's sleep(), called with the signal's number,
    6; no Python code runs in it. An abort for any other reason proceeds after the delay.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


class Watch:
    """The thread, and its interface for the main thread.

    Args:
      process: the number of this process.
      links: the result of `rendezvous.meet`.
      heartbeat: seconds of silence after which a process counts as lost.
    """

    def __init__(self, process: int, links: dict[int, Link], heartbeat: float) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.process, self.links, self.heartbeat = process, dict(links), heartbeat
        self._closing = threading.Event()
        self._left: set[int] = set()
        self._leaving = False
        self._ending: tuple[float, int, str] | None = None
        # The agreement to stop at the same step; guarded by the condition.
        self._turn = threading.Condition(threading.RLock())
        self._at = -1
        self._frozen = False
        self._asked: str | None = None
        self._waiting_for: dict[int, int | None] | None = None
        self._reason = ""
        self._agreed: tuple[int, str] | None = None

    def start(self) -> None:
        """From here on this process ends when another one is lost."""
        self._thread.start()

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        for process, link in self.links.items():
            link.heard = time.monotonic()
            selector.register(link.socket, selectors.EVENT_READ, process)
        beaten = 0.0
        while not self._closing.is_set() and (self.links or self._ending):
            for key, _ in selector.select(TICK_SECONDS):
                process = key.data
                messages = self.links[process].receive()
                for message in messages or ():
                    self._heard(process, message)
                if messages is None:
                    selector.unregister(key.fileobj)
                    if process not in self._left:
                        self._lost(process, "its connection closed")
                    self.links.pop(process).close()
            now = time.monotonic()
            if now - beaten > self.heartbeat / 4 and not self._leaving:
                beaten = now
                self._tell(beat=1)
            for process, link in list(self.links.items()):
                if now - link.heard > self.heartbeat and process not in self._left:
                    self._lost(process, f"silent for {self.heartbeat:g} s")
            if self._ending and now > self._ending[0] and not self._leaving:
                self._exit(*self._ending[1:])

    def _tell(self, but: int = -1, **message: Any) -> None:
        for process, link in list(self.links.items()):
            if process != but:
                link.send(**message)

    def _heard(self, process: int, message: dict[str, Any]) -> None:
        if "bye" in message:
            self._left.add(process)
            if message["bye"]:
                line = f"process {process} ({self.links[process].host}) ended: {message.get('why')}"
                self._pass_on(int(message["bye"]), line, process)
                self._end_soon(int(message["bye"]), line)
            elif process == 0:
                # Process 0 has ended and cannot answer a signal that came too late.
                self._decide(self._agreed)
        elif "end" in message:
            self._end_soon(int(message["end"]), str(message.get("why")))
        elif "stop" in message:
            self._poll(str(message["stop"]))
        elif "poll" in message:
            with self._turn:
                self._frozen = True
                self.links[process].send(at=self._at)
        elif "at" in message:
            self._answer(process, int(message["at"]))
        elif "stop_after" in message:
            self._decide((int(message["stop_after"]), str(message["why"])))

    def _lost(self, process: int, how: str) -> None:
        if self._ending or self._leaving:
            return
        line = f"lost process {process} ({self.links[process].host}): {how}; rerun the same command on all hosts"
        self._pass_on(RestartMe.exit_code, line, process)
        self._exit(RestartMe.exit_code, line)

    def _pass_on(self, code: int, line: str, but: int) -> None:
        if self.process == 0:
            self._tell(but, end=code, why=line)

    def _end_soon(self, code: int, line: str) -> None:
        # After a loss there is nothing to wait for; after a clean end of another process, this one probably ends too.
        if line.startswith("lost process") and not self._leaving:
            self._exit(code, line)
        self._ending = self._ending or (time.monotonic() + GRACE_SECONDS, code, line)

    def _exit(self, code: int, line: str) -> None:
        messages.error(f"xlnet-jax, process {self.process}", line, code)
        sys.stdout.flush()
        # Not sys.exit: the main thread and the threads of JAX wait for a process that will not answer.
        os._exit(code)

    def stop(self, at: int, signal_name: str | None) -> str | None:
        """Whether all stop here; every process asks at every boundary, and all get the same answer at the same one.

        Args:
          at: the increasing number of this boundary.
          signal_name: of the signal that this process received; None = none.

        Returns:
          Which signal came to which process; None = continue.
        """
        with self._turn:
            if signal_name and self._asked is None and self._agreed is None:
                self._asked = signal_name
                self._frozen = True
                if self.process == 0:
                    self._poll(f"{signal_name} in process 0")
                else:
                    self._tell(stop=f"{signal_name} in process {self.process}")
            self._turn.wait_for(lambda: not self._frozen)
            self._at = at
            return self._agreed[1] if self._agreed and at > self._agreed[0] else None

    def _poll(self, why: str) -> None:
        """In process 0: stops all processes at their next boundary and asks for its number. Ignores a second signal."""
        with self._turn:
            if self._waiting_for is not None:
                return
            self._frozen, self._reason = True, why
            self._waiting_for = {p: None for p in list(self.links) if p not in self._left}
            self._tell(poll=1)
            self._answer(0, self._at)

    def _answer(self, process: int, at: int) -> None:
        with self._turn:
            if self._waiting_for is None or self._agreed is not None:
                return
            self._waiting_for[process] = at
            known = [done for done in self._waiting_for.values() if done is not None]
            if len(known) < len(self._waiting_for):
                return
            self._tell(stop_after=max(known), why=self._reason)
            self._decide((max(known), self._reason))

    def _decide(self, stop: tuple[int, str] | None) -> None:
        with self._turn:
            self._agreed, self._frozen = stop, False
            self._turn.notify_all()

    def leave(self, code: int, why: str) -> None:
        """Announces the end of this process, and waits a little for the others.

        Process 0 runs the coordination service, so it stays until the others have announced their end; they stay until
        it closes. No process sends after its bye: unread data would reset the connection, and a bye in flight would be
        lost with it.
        """
        self._leaving = True
        self._tell(bye=code, why=why)
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until and (set(self.links) - self._left if self.process == 0 else self.links):
            time.sleep(0.02)
        self._closing.set()
        self._thread.join(2 * TICK_SECONDS + 1)
        for link in list(self.links.values()):
            link.close()
