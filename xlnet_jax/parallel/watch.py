"""The connections between the processes of a run: who is lost is named, and all end with the same exit code.

Process 0 is connected to all others, from the rendezvous to the end. JAX's coordination service notices a lost process
too, but later, and ends the others by abort() without its name: see `hold_aborts`. A thread for each connection reads
JSON objects, one per line:

    beat             sign of life, four times in `heartbeat` seconds
    bye, why         this process ends with that exit code; a connection that closes without a bye is a lost process
    end, why, wait   process 0 passes on the end of another process

A lost process ends this one from outside the main thread, which by then waits for the lost one inside a collective
operation that never returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

from xlnet_jax import messages
from xlnet_jax.errors import RestartMe

log = logging.getLogger("xlnet_jax")

MESSAGE_BYTES = 1 << 20
"""Limit for a message; a longer one is not from this program."""
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


class Link:
    """One end of a connection. `send` may be called from any thread, `receive` from one.

    Attributes:
      host: the name of the other host.
      hello: what the other process said at the rendezvous.
    """

    def __init__(self, connection: socket.socket, host: str) -> None:
        self.host = host
        self.hello: dict[str, Any] = {}
        self._socket, self._lines = connection, connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Sends a message. If the other end is gone, `receive` says so."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message. Raises ConnectionError: silent for so long, gone, or another program."""
        try:
            self._socket.settimeout(seconds)
            message = json.loads(self._lines.readline(MESSAGE_BYTES))
        except TimeoutError as error:
            raise ConnectionError(f"silent for {seconds:g} s") from error
        except (OSError, ValueError) as error:
            raise ConnectionError("its connection closed") from error
        if not isinstance(message, dict):
            raise ConnectionError("it is another program")
        return message

    def close(self) -> None:
        """Closes the connection, and ends a `receive` in another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()


class Watch:
    """The connections of this process: in process 0 to all others, in the others to process 0.

    Args:
      process: the number of this process.
      heartbeat: seconds of silence after which a process counts as lost.

    Attributes:
      links: by process number; guarded by `changed`.
      started: whether the run has begun: until then a lost process may return.
      server: in process 0 the listening socket.
    """

    def __init__(self, process: int, heartbeat: float) -> None:
        self.process, self.heartbeat = process, heartbeat
        self.links: dict[int, Link] = {}
        self.changed = threading.Condition()
        self.started = False
        self.server: socket.socket | None = None
        self._left: set[int] = set()
        self._ending = False
        self._leaving = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._leaving.wait(self.heartbeat / 4):
            with self.changed:
                if not self._leaving.is_set():
                    self.tell(beat=1)

    def tell(self, but: int = -1, **message: Any) -> None:
        """Sends a message to all connected processes but one."""
        for process, link in list(self.links.items()):
            if process != but:
                link.send(**message)

    def listen(self, process: int, link: Link) -> None:
        """Reads the messages of a process until its connection closes; the body of a thread."""
        try:
            while True:
                self._heard(process, link, link.receive(self.heartbeat))
        except ConnectionError as error:
            with self.changed:
                started = self.started
                self.links.pop(process, None)
                self.changed.notify_all()
            link.close()
            if not started and not self._leaving.is_set():
                log.warning("process %d (%s) disconnected: %s", process, link.host, error)
            elif process not in self._left:
                line = f"lost process {process} ({link.host}): {error}; rerun the same command on all hosts"
                self._end(RestartMe.exit_code, line, 0.0, process)

    def _heard(self, process: int, link: Link, message: dict[str, Any]) -> None:
        if "bye" in message:
            with self.changed:
                self._left.add(process)
                self.changed.notify_all()
            if message["bye"]:
                line = f"process {process} ({link.host}) ended: {message.get('why')}"
                self._end(int(message["bye"]), line, GRACE_SECONDS, process)
        elif "end" in message:
            self._end(int(message["end"]), str(message.get("why")), float(message["wait"]), process)

    def _end(self, code: int, line: str, wait: float, origin: int) -> None:
        """Passes the end of a process on, and ends this one, unless it ends by itself within `wait` seconds."""
        with self.changed:
            if self._ending or self._leaving.is_set():
                return
            self._ending = True
        if self.process == 0:
            self.tell(origin, end=code, why=line, wait=wait)
        if not self._leaving.wait(wait):
            messages.error(f"xlnet-jax, process {self.process}", line, code)
            sys.stdout.flush()
            # Not sys.exit: the main thread and the threads of JAX wait for a process that will not answer.
            os._exit(code)

    def leave(self, code: int, why: str) -> None:
        """Announces the end of this process, and waits a little for the others.

        Process 0 runs the coordination service, so it stays until the others have announced their end; they stay until
        it closes. No process sends after its bye: unread data would reset the connection, and a bye in flight would be
        lost with it.
        """
        with self.changed:
            self._leaving.set()
            self.tell(bye=code, why=why)
            self.changed.wait_for(
                lambda: not (self.links.keys() - self._left if self.process == 0 else self.links), GRACE_SECONDS
            )
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._leaving.set()
        for link in list(self.links.values()):
            link.close()
        if self.server is not None:
            # Ends `accept` in its thread, which close() alone does not.
            with contextlib.suppress(OSError):
                self.server.shutdown(socket.SHUT_RDWR)
            self.server.close()
