"""The processes of a run find each other before JAX starts: missing ones are named, different settings are an error.

Process 0 listens; every other process connects, sends its number and its settings, and keeps the connection for the
whole run (see `watch`). JAX's own start would fail without the number of the missing process, and would let processes
with different settings run together. Only the standard library is used: no device has been used yet.

Messages are JSON objects, one per line:

    hello      process, processes, host, values (that must be equal everywhere)
    waiting    the missing processes, for the logs of the others
    go         all processes are here and agree
    end, why   the run does not start: the exit code and the message for the user
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import selectors
import socket
import threading
import time
from typing import Any

from xlnet_jax.errors import BadInput, RestartMe, XLNetError

log = logging.getLogger("xlnet_jax")

MESSAGE_BYTES = 1 << 20
"""Limit for a message; a longer one is not from this program."""
TICK_SECONDS = 0.2
CONNECT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """The place of this process in the run.

    Attributes:
      coordinator: HOST:PORT of JAX's coordination service, in process 0.
      devices: the local device numbers to use, if a scheduler starts one process per device; None = all.
    """

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """In seconds: the limit of the rendezvous, and the interval of log lines about missing processes."""

    deadline: float
    report: float


class Link:
    """One end of a connection. `send` may be called from any thread."""

    def __init__(self, connection: socket.socket, host: str = "") -> None:
        self.socket = connection
        self.host = host
        self.heard = time.monotonic()
        self._buffer = b""
        self._sending = threading.Lock()

    def send(self, **message: Any) -> bool:
        """Sends a message; returns False if the other end is gone."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self.socket.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """The received messages, when the socket is readable; None if the other end is gone or is another program."""
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self.heard = time.monotonic()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MESSAGE_BYTES:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()


def meet(me: ProcessInfo, port: int, values: dict[str, Any], timeouts: Timeouts) -> dict[int, Link]:
    """Waits until all processes are here and agree.

    Args:
      port: on the host of the coordinator.
      values: the values that must be equal in all processes, by their name in messages.

    Returns:
      By process number: in process 0 the links to all others, in other processes the link to process 0.

    Raises:
      BadInput: values differ (names the first key, with both values and hosts), or a process number came twice.
      RestartMe: a process did not come in time.
    """
    hello = {
        "process": me.process,
        "processes": me.processes,
        "host": socket.gethostname(),
        # In the form in which they arrive at the other end, so that only real differences count.
        "values": json.loads(json.dumps(values)),
    }
    if me.process == 0:
        return _Leader(me, port, hello, timeouts).meet()
    return {0: _follow(me, port, hello, timeouts)}


class _Leader:
    """Process 0's side of the rendezvous."""

    def __init__(self, me: ProcessInfo, port: int, hello: dict[str, Any], timeouts: Timeouts) -> None:
        self.me, self.port, self.timeouts = me, port, timeouts
        self.hellos: dict[int, dict[str, Any]] = {0: hello}
        self.links: dict[int, Link] = {}
        self.unknown: set[Link] = set()
        """Connections without a hello yet."""

    def meet(self) -> dict[int, Link]:
        began = reported = time.monotonic()
        with self._listen(began) as server, selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while missing := [p for p in range(self.me.processes) if p not in self.hellos]:
                for key, _ in selector.select(TICK_SECONDS):
                    self._serve(selector, server, key.data)
                now = time.monotonic()
                if now - began > self.timeouts.deadline:
                    self._end(RestartMe(f"{_who(missing)} did not come within {self.timeouts.deadline:g} s "
                                        f"(here: {self._here()}); start it, then restart all"))  # fmt: skip
                if now - reported > self.timeouts.report:
                    reported = now
                    line = f"waiting for {_who(missing)} of {self.me.processes} (here: {self._here()})"
                    log.warning("%s", line)
                    for link in self.links.values():
                        link.send(waiting=line)
        for link in self.unknown:
            link.close()
        self._compare()
        for link in self.links.values():
            link.send(go=True)
            link.heard = time.monotonic()
        return self.links

    def _listen(self, began: float) -> socket.socket:
        """The listening socket. A run that is ending may still hold the port: waits for it."""
        reported = began
        while True:
            try:
                if socket.has_dualstack_ipv6():
                    return socket.create_server(("", self.port), family=socket.AF_INET6, dualstack_ipv6=True)
                return socket.create_server(("", self.port))
            except OSError as error:
                now = time.monotonic()
                if now - began > self.timeouts.deadline:
                    raise RestartMe(
                        f"port {self.port} of this host: {error.strerror or error}; set distributed.rendezvous_port"
                    ) from error
                if now - reported > self.timeouts.report:
                    reported = now
                    log.warning("port %d of this host: %s; retrying", self.port, error.strerror or error)
                time.sleep(TICK_SECONDS)

    def _serve(self, selector: selectors.BaseSelector, server: socket.socket, link: Link | None) -> None:
        if link is None:
            connection, address = server.accept()
            connection.settimeout(CONNECT_SECONDS)
            link = Link(connection, address[0])
            self.unknown.add(link)
            selector.register(connection, selectors.EVENT_READ, link)
            return
        messages = link.receive()
        if messages is None:
            # It disconnected before all were here: it may reconnect, so its number is free.
            selector.unregister(link.socket)
            self._forget(link)
            return
        for hello in messages:
            self._welcome(link, hello)

    def _forget(self, link: Link) -> None:
        link.close()
        self.unknown.discard(link)
        for process in [p for p, each in self.links.items() if each is link]:
            log.warning("process %d (%s) disconnected", process, link.host)
            del self.links[process], self.hellos[process]

    def _welcome(self, link: Link, hello: dict[str, Any]) -> None:
        if link not in self.unknown or not isinstance(hello.get("process"), int) or "values" not in hello:
            return
        process = hello["process"]
        link.host = str(hello.get("host"))
        if hello.get("processes") != self.me.processes:
            self.links[-1 - process] = link
            self._end(_different("distributed.processes", self.me.processes, self.hellos[0],
                                 hello.get("processes"), hello))  # fmt: skip
        if process in self.hellos or not 0 <= process < self.me.processes:
            hosts = f"{self.hellos[process]['host']} and {link.host}" if process in self.hellos else link.host
            self.links[-1 - process] = link
            self._end(BadInput(f"process {process} of {self.me.processes} came from {hosts}; "
                               "give every process its own distributed.process_id, counted from 0"))  # fmt: skip
        self.unknown.discard(link)
        self.hellos[process], self.links[process] = hello, link

    def _compare(self) -> None:
        mine = self.hellos[0]
        for process in sorted(self.links):
            other = self.hellos[process]
            for name in sorted(mine["values"].keys() | other["values"].keys()):
                here, there = mine["values"].get(name), other["values"].get(name)
                if here != there:
                    self._end(_different(name, here, mine, there, other))

    def _here(self) -> str:
        return ", ".join(f"{p} on {self.hellos[p]['host']}" for p in sorted(self.hellos))

    def _end(self, error: XLNetError) -> None:
        for link in self.links.values():
            link.send(end=error.exit_code, why=str(error))
            link.close()
        raise error


def _different(name: str, here: Any, mine: dict[str, Any], there: Any, other: dict[str, Any]) -> BadInput:
    return BadInput(
        f"{name} is {here!r} in process {mine['process']} ({mine['host']}) and {there!r} in process "
        f"{other['process']} ({other['host']}); start the same command with the same versions everywhere"
    )


def _who(processes: list[int]) -> str:
    shown = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
    return f"process{'es' * (len(processes) > 1)} {shown}"


def _follow(me: ProcessInfo, port: int, hello: dict[str, Any], timeouts: Timeouts) -> Link:
    """The side of the other processes: connects, sends hello, waits for `go` or `end`."""
    host = me.coordinator.rsplit(":", 1)[0].strip("[]")
    began = reported = time.monotonic()
    what = "no answer"
    # Process 0 gives up first and names the missing process; this limit is for the case that process 0 is missing.
    while (now := time.monotonic()) - began < timeouts.deadline + CONNECT_SECONDS:
        if now - reported > timeouts.report:
            reported = now
            log.warning("process %d waits for process 0 at %s:%d (%s)", me.process, host, port, what)
        try:
            link = Link(socket.create_connection((host, port), timeout=CONNECT_SECONDS), host)
        except OSError as error:
            what = error.strerror or str(error) or "no answer"
            time.sleep(TICK_SECONDS)
            continue
        link.send(**hello)
        word = _word(link, began + timeouts.deadline + CONNECT_SECONDS)
        if "go" in word:
            link.socket.settimeout(CONNECT_SECONDS)
            return link
        link.close()
        if word:
            raise (BadInput if word["end"] == BadInput.exit_code else RestartMe)(str(word.get("why")))
        what = "it hung up"
        time.sleep(TICK_SECONDS)
    raise RestartMe(
        f"process {me.process}: process 0 at {host}:{port} did not come within {timeouts.deadline:g} s ({what}); "
        "start it, then restart all"
    )


def _word(link: Link, until: float) -> dict[str, Any]:
    """The last message of process 0, `go` or `end`; empty if it closes the connection."""
    link.socket.settimeout(TICK_SECONDS)
    while time.monotonic() < until:
        messages = link.receive()
        if messages is None:
            break
        for message in messages:
            if "go" in message or "end" in message:
                return message
            if "waiting" in message:
                log.warning("%s", message["waiting"])
    return {}
