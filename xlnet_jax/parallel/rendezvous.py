"""The processes of a run find each other before JAX starts, watch each other, and end with the same exit code.

Process 0 listens; every other process connects, sends its number and its settings, and keeps the connection for the
whole run. At the start, missing processes are named and different settings are an error: JAX's own start would fail
without the number of the missing process, and would let processes with different settings run together. Process 0
listens until the run ends and refuses every other run: JAX's coordination service would let it in, and abort the
healthy one. That service notices a lost process too, but later, and ends the others by abort() without its name: see
`processes.hold_aborts`. Only the standard library is used: no device has been used yet.

An event loop in a thread of its own reads and writes JSON objects, one per line:

    hello            process, host, values (that must be equal everywhere)
    waiting          the missing processes, for the logs of the others
    go               all processes are here and agree; the name of process 0's host
    beat             sign of life, four times in `distributed.heartbeat_seconds`
    end, why, wait   the exit code and the message of the sender, or of another process if process 0 passes it on: all
                     end with them, within `wait` seconds. A connection that closes without an end is a lost process

A lost process ends this one from outside the main thread, which by then waits for the lost one inside a collective
operation that never returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any, Literal

from xlnet_jax import messages
from xlnet_jax.config import DistributedConfig
from xlnet_jax.errors import BadInput, RestartMe, XLNetError

log = logging.getLogger("xlnet_jax")

COUNT = "distributed.processes"
TICK_SECONDS = 0.2
CONNECT_SECONDS = 5.0
MESSAGE_BYTES = 1 << 20
"""Limit for a message; a longer one is not from this program."""
GRACE_SECONDS = 5.0
"""Time for a process to end on its own after the end of another one. Shorter than the delay of `hold_aborts`."""


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
      BadInput: values differ (names the first key, with both values and hosts), a process number came twice, another
        run uses the port, or this user may not listen on it.
      RestartMe: a process did not come in time, or a run with the same settings still uses the port.
    """
    watch = Watch(me, values, settings)
    try:
        watch.run(watch.join() if me.process else watch.lead())
    except BaseException:
        watch.close()
        raise
    return watch


class Link:
    """One end of a connection.

    Attributes:
      hello: what the other process said at the rendezvous.
      heard: when it said something last.
      ended: set when it has announced its end, or its connection has closed.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.hello: dict[str, Any] = {}
        self.heard = time.monotonic()
        self.ended = asyncio.Event()

    def send(self, **message: Any) -> None:
        """Sends a message. If the other end is gone, `receive` says so."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, seconds: float) -> dict[str, Any]:
        """The next message. Raises ConnectionError: silent for so long, gone, or another program."""
        try:
            async with asyncio.timeout(seconds):
                message = json.loads(await self.reader.readline())
        except TimeoutError as error:
            raise ConnectionError(f"silent for {seconds:g} s") from error
        except (OSError, ValueError, RecursionError) as error:
            raise ConnectionError("its connection closed") from error
        if not isinstance(message, dict):
            raise ConnectionError("it is another program")
        self.heard = time.monotonic()
        return message


class Watch:
    """The connections of this process: in process 0 to all others, in the others to process 0.

    Attributes:
      process: the number of this process.
      links: by process number.
      phase: "ending" from the first end or loss of another process on, "leaving" from the end of this one on.
    """

    def __init__(self, me: ProcessInfo, values: dict[str, Any], settings: DistributedConfig) -> None:
        self.process, self.count, self.settings = me.process, me.processes, settings
        self.host, self.ports = address(me, settings)
        hello = {"process": me.process, "host": socket.gethostname(), "values": values | {COUNT: me.processes}}
        # In the form in which they arrive at the other end, so that only real differences count.
        self.hello: dict[str, Any] = json.loads(json.dumps(hello))
        self.links: dict[int, Link] = {}
        self.phase: Literal["meeting", "running", "ending", "leaving"] = "meeting"
        self._began = self._reported = time.monotonic()
        self._fault: XLNetError | None = None
        self._server: asyncio.Server | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._loop.call_soon(self._beat)
        self._thread = threading.Thread(target=self._loop.run_forever, name="watch", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the thread of the connections."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def lead(self) -> None:
        """Process 0's side of the rendezvous."""
        # One connection for each process, and as many for the coordination service.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        listening = await self._listening_socket()
        self._server = await asyncio.start_server(self._welcome, sock=listening, limit=MESSAGE_BYTES, backlog=1024)
        try:
            while missing := [process for process in range(1, self.count) if process not in self.links]:
                hosts = {0: self.hello["host"]} | {p: link.hello["host"] for p, link in sorted(self.links.items())}
                here = ", ".join(f"{process} on {host}" for process, host in hosts.items())
                self._wait_for(_who(missing), f"here: {here}", self.settings.rendezvous_seconds)
                await asyncio.sleep(TICK_SECONDS)
                if self._fault:
                    raise self._fault
            for _, link in sorted(self.links.items()):
                self._compare(link.hello, *sorted(self.hello["values"].keys() | link.hello["values"].keys()))
        except XLNetError as fault:
            self.phase = "leaving"
            self._tell(end=fault.exit_code, why=str(fault))
            raise
        self.phase = "running"
        self._tell(go=self.hello["host"])

    def _wait_for(self, who: str, why: str, seconds: float) -> None:
        """Logs who is missing, every `report_seconds`; raises RestartMe after `seconds`."""
        now = time.monotonic()
        if now - self._began > seconds:
            limit = f"{self.settings.rendezvous_seconds:g} s"
            raise RestartMe(f"{who} did not come within {limit} ({why}); start it, then restart all")
        if now - self._reported > self.settings.report_seconds:
            self._reported = now
            line = f"waiting for {who} of {self.count} ({why})"
            log.warning("%s", line)
            self._tell(waiting=line)

    async def _listening_socket(self) -> socket.socket:
        """The listening socket. Raises the refusal of the run that uses the ports."""
        try:
            listening(self.ports[0]).close()  # gRPC would share it with another run
            return listening(self.ports[1])
        except OSError as error:
            # If another run listens here, its answer says so.
            with contextlib.suppress(OSError):
                await self._connect("localhost", CONNECT_SECONDS)
            ports = f"ports {self.ports[0]} and {self.ports[1]} of this host: {os.strerror(error.errno or 0)}"
            other = "another distributed.coordinator and distributed.rendezvous_port"
            if error.errno == errno.EACCES:
                raise BadInput(f"{ports}; set {other}, from 1024 on") from error
            raise RestartMe(f"{ports}; wait until they are free, or set {other}") from error

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The life of a connection to process 0."""
        link = Link(reader, writer)
        # asyncio would log a cancelled connection with a traceback.
        with contextlib.suppress(ConnectionError, asyncio.CancelledError), contextlib.closing(writer):
            hello = link.hello = await link.receive(CONNECT_SECONDS)
            if [type(hello.get(name)) for name in self.hello] != [type(value) for value in self.hello.values()]:
                return  # another program
            try:
                self._admit(hello)
            except XLNetError as refusal:
                link.send(end=refusal.exit_code, why=str(refusal))
                if self.phase == "meeting" and hello["process"] != 0:
                    self._fault = refusal
            else:
                self.links[hello["process"]] = link
                await self._listen(hello["process"], link)

    def _admit(self, hello: dict[str, Any]) -> None:
        """Raises the refusal of a process that cannot belong to this run."""
        process, host = hello["process"], hello["host"]
        if self.phase != "meeting" or process == 0:
            # A process of this run may be back before the run has ended.
            raise (RestartMe if hello["values"] == self.hello["values"] else BadInput)(
                f"port {self.ports[1]} of {self.hello['host']}: another run is here; wait for its end, or set another "
                "distributed.coordinator"
            )
        self._compare(hello, COUNT)
        other = self.links.get(process)
        if other and time.monotonic() - other.heard > self.settings.heartbeat_seconds / 2:
            # All that is left of a host that went away, and is back.
            other.ended.set()
            other.writer.close()
        elif other:
            raise BadInput(
                f"process {process} of {self.count} came from {other.hello['host']} and {host}; give every process its "
                "own distributed.process_id, counted from 0"
            )

    def _compare(self, hello: dict[str, Any], *names: str) -> None:
        """Raises BadInput for the first of these values that differs from that of another process."""
        for name in names:
            mine, other = (each["values"].get(name) for each in (self.hello, hello))
            if mine != other:
                raise BadInput(
                    f"{name} is {mine!r} in process 0 ({self.hello['host']}) and {other!r} in process "
                    f"{hello['process']} ({hello['host']}); start the same command with the same versions everywhere"
                )

    async def join(self) -> None:
        """The side of the other processes: connects, sends hello, waits for `go` or `end`."""
        # Process 0 gives up first and names the missing process; this limit is for the case that process 0 is missing.
        limit = self.settings.rendezvous_seconds + CONNECT_SECONDS
        while self.phase == "meeting":
            try:
                await self._connect(self.host, self.settings.heartbeat_seconds)
            except OSError as error:
                why = error.strerror or str(error) or "no answer"
                self._wait_for("process 0", f"{self.host}:{self.ports[1]}: {why}", limit)
                await asyncio.sleep(TICK_SECONDS)

    async def _connect(self, host: str, patience: float) -> None:
        """Connects to process 0 and waits until the run begins.

        Raises OSError: no answer, or none for `patience` seconds; BadInput or RestartMe: the refusal of process 0.
        """
        connection = await asyncio.to_thread(connected, host, self.ports[1])
        link = self.links[0] = Link(*await asyncio.open_connection(sock=connection, limit=MESSAGE_BYTES))
        try:
            link.send(**self.hello)
            while "go" not in (message := await link.receive(patience)):
                if "waiting" in message:
                    log.warning("%s", message["waiting"])
                if "end" in message:
                    raise (BadInput if message["end"] == BadInput.exit_code else RestartMe)(str(message.get("why")))
        except BaseException:
            self.links.pop(0).writer.close()
            raise
        link.hello, self.phase = {"host": message["go"]}, "running"
        self._listening = asyncio.create_task(self._listen(0, link))

    def _beat(self) -> None:
        if self.phase != "leaving":
            self._tell(beat=1)
            self._loop.call_later(self.settings.heartbeat_seconds / 4, self._beat)

    def _tell(self, but: int = -1, **message: Any) -> None:
        """Sends a message to all connected processes but one."""
        for process, link in self.links.items():
            if process != but:
                link.send(**message)

    async def _listen(self, process: int, link: Link) -> None:
        """Reads the messages of a process until its connection closes."""
        who = f"process {process} ({link.hello['host']})"
        try:
            while True:
                message = await link.receive(self.settings.heartbeat_seconds)
                if "end" in message:
                    link.ended.set()
                    self._end(process, message["end"], message["why"], message["wait"])
        except ConnectionError as error:
            if self.phase == "meeting":
                log.warning("%s disconnected: %s", who, error)  # it may come back
            elif not link.ended.is_set():
                self._end(process, RestartMe.exit_code, f"lost {who}: {error}; rerun the same command on all hosts", 0)
        finally:
            link.ended.set()
            link.writer.close()
            if self.links.get(process) is link:
                del self.links[process]

    def _end(self, origin: int, code: int, why: str, wait: float) -> None:
        """Passes the end of a process on, and ends this one, unless it ends by itself within `wait` seconds."""
        if code and self.phase == "running":
            self.phase = "ending"
            if self.process == 0:
                self._tell(origin, end=code, why=why, wait=wait)
            self._loop.call_later(wait, self._exit, code, why)

    def _exit(self, code: int, why: str) -> None:
        if self.phase == "ending":
            self.phase = "leaving"
            messages.end(code, why)

    def leave(self, code: int, why: str) -> None:
        """Announces the end of this process, and waits a little for the others.

        Process 0 runs the coordination service, so it stays until the others have announced their end; they stay until
        it announces its own. No process sends after its end: unread data would reset the connection, and an end in
        flight would be lost with it.
        """
        if self.phase != "leaving":
            self.run(self._leave(code, f"process {self.process} ({self.hello['host']}) ended: {why}"))

    async def _leave(self, code: int, why: str) -> None:
        self.phase = "leaving"
        self._tell(end=code, why=why, wait=GRACE_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                for link in list(self.links.values()):
                    await link.ended.wait()

    def close(self) -> None:
        """Closes all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if self._server is not None:
            self._server.close()
        self._runner.close()  # cancels all tasks, each of which closes its connection


def address(me: ProcessInfo, settings: DistributedConfig) -> tuple[str, tuple[int, int]]:
    """The host of process 0, and the ports there: of JAX's coordination service, and of the rendezvous."""
    host, _, port = me.coordinator.rpartition(":")
    return host.strip("[]"), (int(port), settings.rendezvous_port or _beside(int(port)))


def _beside(port: int) -> int:
    """The port of the rendezvous: the one after the coordinator's.

    JAX gives every SLURM job a coordinator's port from 61440 on; the next one may belong to the next job.
    """
    return port + 1 if port < 61440 else port - 4096


def listening(port: int) -> socket.socket:
    """A socket that listens at a port of this host, with IPv6 if there is. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)


def connected(host: str, port: int) -> socket.socket:
    """A connection to a port of a host. Raises OSError."""
    connection = socket.create_connection((host, port), CONNECT_SECONDS)
    if connection.getsockname() == connection.getpeername():
        # If nobody listens at a port of this host, the system may choose that port for our own end: TCP then connects
        # the socket to itself. It would hear its own signs of life for ever, and keep process 0 from the port.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection


def _who(processes: list[int]) -> str:
    shown = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
    return f"process{'es' * (len(processes) > 1)} {shown}"
