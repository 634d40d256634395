"""The processes of a run find each other before JAX starts: missing ones are named, different settings are an error.

Process 0 listens; every other process connects, sends its number and its settings, and keeps the connection for the
whole run (see `watch`). JAX's own start would fail without the number of the missing process, and would let processes
with different settings run together. Process 0 listens until the run ends and refuses every other run: JAX's
coordination service would let it in, and abort the healthy one. Only the standard library is used: no device has been
used yet. Messages, besides those of the watch:

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
import os
import resource
import socket
import threading
import time
from typing import Any

from xlnet_jax.config import DistributedConfig
from xlnet_jax.errors import BadInput, RestartMe, XLNetError
from xlnet_jax.parallel.watch import Link, Watch

log = logging.getLogger("xlnet_jax")

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


def meet(me: ProcessInfo, values: dict[str, Any], settings: DistributedConfig) -> Watch:
    """Waits until all processes are here and agree.

    Args:
      values: the values that must be equal in all processes, by their name in messages.
      settings: the port and the time limits.

    Returns:
      The connections of this process.

    Raises:
      BadInput: values differ (names the first key, with both values and hosts), a process number came twice, or another
        run uses the port.
      RestartMe: a process did not come in time, or a run with the same settings still uses the port.
    """
    hello = {
        "process": me.process,
        "processes": me.processes,
        "host": socket.gethostname(),
        # In the form in which they arrive at the other end, so that only real differences count.
        "values": json.loads(json.dumps(values)),
    }
    watch = Watch(me.process, settings.heartbeat_seconds)
    host, _, port = me.coordinator.rpartition(":")
    ports = int(port), settings.rendezvous_port or _beside(int(port))
    try:
        if me.process == 0:
            _Leader(hello, ports, settings, watch).meet()
        else:
            _join(hello, host.strip("[]"), ports[1], settings, watch)
    except BaseException:
        watch.close()
        raise
    return watch


def _beside(port: int) -> int:
    """The port of the rendezvous: the one after the coordinator's.

    JAX gives every SLURM job a coordinator's port from 61440 on; the next one may belong to the next job.
    """
    return port + 1 if port < 61440 else port - 4096


class _Leader:
    """Process 0's side of the rendezvous."""

    def __init__(
        self, hello: dict[str, Any], ports: tuple[int, int], settings: DistributedConfig, watch: Watch
    ) -> None:
        self.hello, self.ports, self.settings, self.watch = hello, ports, settings, watch
        self.fault: XLNetError | None = None

    def meet(self) -> None:
        # One connection for each process, and as many for the coordination service.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        self.watch.server = self._listen()
        threading.Thread(target=self._accept, args=(self.watch.server,), name="rendezvous", daemon=True).start()
        links, count, deadline = self.watch.links, self.hello["processes"], self.settings.rendezvous_seconds
        began = reported = time.monotonic()
        with self.watch.changed:
            while not self.fault and (missing := [p for p in range(1, count) if p not in links]):
                self.watch.changed.wait(TICK_SECONDS)
                hosts = {0: self.hello["host"], **{process: link.host for process, link in sorted(links.items())}}
                here = ", ".join(f"{process} on {host}" for process, host in hosts.items())
                now = time.monotonic()
                if now - began > deadline:
                    self.fault = RestartMe(
                        f"{_who(missing)} did not come within {deadline:g} s (here: {here}); start it, then restart all"
                    )
                elif now - reported > self.settings.report_seconds:
                    reported = now
                    line = f"waiting for {_who(missing)} of {count} (here: {here})"
                    log.warning("%s", line)
                    self.watch.tell(waiting=line)
            if fault := self.fault or self._difference():
                self.watch.tell(end=fault.exit_code, why=str(fault))
                raise fault
            self.watch.started = True
            self.watch.tell(go=True)

    def _listen(self) -> socket.socket:
        """The listening socket. Raises the refusal of the run that uses the ports."""
        try:
            _server(self.ports[0]).close()  # gRPC would share it with another run
            return _server(self.ports[1])
        except OSError as error:
            # If another run listens here, its answer says so.
            with contextlib.suppress(OSError):
                _connect(self.hello, "localhost", self.ports[1], CONNECT_SECONDS, self.watch)
            raise RestartMe(
                f"ports {self.ports[0]} and {self.ports[1]} of this host: {os.strerror(error.errno or 0)}; wait until "
                "they are free, or set another distributed.coordinator and distributed.rendezvous_port"
            ) from error

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, address = server.accept()
            except OSError:
                if server.fileno() < 0:
                    return  # closed at the end of the run
                time.sleep(TICK_SECONDS)  # such as no free file descriptor
                continue
            threading.Thread(target=self._welcome, args=(Link(connection, address[0]),), daemon=True).start()

    def _welcome(self, link: Link) -> None:
        """The life of a connection, in its own thread."""
        try:
            link.hello = link.receive(CONNECT_SECONDS)
        except ConnectionError:
            link.hello = {}
        process = link.hello.get("process")
        if not isinstance(process, int) or "values" not in link.hello:
            link.close()
            return
        link.host = str(link.hello.get("host"))
        with self.watch.changed:
            refusal = self._refusal(process, link)
            if refusal is None:
                self.watch.links[process] = link
            elif not self.watch.started and process != 0:
                self.fault = refusal
            self.watch.changed.notify_all()
        if refusal is None:
            self.watch.listen(process, link)
        else:
            link.send(end=refusal.exit_code, why=str(refusal))
            link.close()

    def _refusal(self, process: int, link: Link) -> XLNetError | None:
        host, count, hello = self.hello["host"], self.hello["processes"], link.hello
        if self.watch.started or process == 0:
            # A process of this run may be back before the run has ended.
            same = all(hello.get(name) == self.hello[name] for name in ("processes", "values"))
            return (RestartMe if same else BadInput)(
                f"port {self.ports[1]} of {host}: another run is here; wait for its end, or set another "
                "distributed.coordinator"
            )
        if hello.get("processes") != count:
            return _different("distributed.processes", count, self.hello, hello.get("processes"), hello)
        if process in self.watch.links or not 0 < process < count:
            hosts = f"{self.watch.links[process].host} and {link.host}" if process in self.watch.links else link.host
            return BadInput(
                f"process {process} of {count} came from {hosts}; give every process its own "
                "distributed.process_id, counted from 0"
            )
        return None

    def _difference(self) -> XLNetError | None:
        mine = self.hello["values"]
        for _, link in sorted(self.watch.links.items()):
            other = link.hello["values"]
            for name in sorted(mine.keys() | other.keys()):
                if mine.get(name) != other.get(name):
                    return _different(name, mine.get(name), self.hello, other.get(name), link.hello)
        return None


def _server(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)


def _different(name: str, here: Any, mine: dict[str, Any], there: Any, other: dict[str, Any]) -> BadInput:
    return BadInput(
        f"{name} is {here!r} in process {mine['process']} ({mine['host']}) and {there!r} in process "
        f"{other['process']} ({other['host']}); start the same command with the same versions everywhere"
    )


def _who(processes: list[int]) -> str:
    shown = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
    return f"process{'es' * (len(processes) > 1)} {shown}"


def _join(hello: dict[str, Any], host: str, port: int, settings: DistributedConfig, watch: Watch) -> None:
    """The side of the other processes: connects, sends hello, waits for `go` or `end`."""
    process, deadline = hello["process"], settings.rendezvous_seconds
    began = reported = time.monotonic()
    what = "no answer"
    # Process 0 gives up first and names the missing process; this limit is for the case that process 0 is missing.
    while (now := time.monotonic()) - began < deadline + CONNECT_SECONDS:
        if now - reported > settings.report_seconds:
            reported = now
            log.warning("process %d waits for process 0 at %s:%d (%s)", process, host, port, what)
        try:
            link = _connect(hello, host, port, settings.heartbeat_seconds, watch)
            watch.started = True
            threading.Thread(target=watch.listen, args=(0, link), name="watch", daemon=True).start()
            return
        except OSError as error:
            what = error.strerror or str(error) or "no answer"
            time.sleep(TICK_SECONDS)
    raise RestartMe(
        f"process {process}: process 0 at {host}:{port} did not come within {deadline:g} s ({what}); "
        "start it, then restart all"
    )


def _connect(hello: dict[str, Any], host: str, port: int, patience: float, watch: Watch) -> Link:
    """Connects to process 0 and waits until the run begins.

    Raises OSError: no answer, or none for `patience` seconds; BadInput or RestartMe: the refusal of process 0.
    """
    link = watch.links[0] = Link(socket.create_connection((host, port), timeout=CONNECT_SECONDS), host)
    try:
        link.send(**hello)
        while "go" not in (message := link.receive(patience)):
            if "waiting" in message:
                log.warning("%s", message["waiting"])
            if "end" in message:
                raise (BadInput if message["end"] == BadInput.exit_code else RestartMe)(str(message.get("why")))
    except BaseException:
        watch.links.pop(0).close()
        raise
    return link
