"""The rendezvous: the processes of a run find each other before JAX starts, watch each other, and
end with the same exit code.

Process 0 listens; every other process connects, sends its number and its settings, and keeps the
connection for the whole run. At the start, missing processes are named and different settings are
an error: JAX's own start would fail without the number of the missing process, and would let
processes with different settings run together. Process 0 listens until the run ends and refuses
every other run: JAX's coordination service would accept the other run and abort the healthy run.
JAX's service also notices a lost process, but later, and ends the other processes by abort()
without the name of the lost process: see `processes.hold_aborts`. Uses the standard library only,
and no device.

An event loop in a separate thread reads and writes JSON objects, one per line:

    hello            process, host, values (equal in all processes), token (process 0 recognises its
                     own connection by it). A process that has already failed adds end and why, and
                     sends only the values that it knows
    waiting          the missing processes, for the logs of the others
    go               all processes are here and agree; the name of process 0's host
    beat             sign of life, four times in `distributed.heartbeat_seconds`
    end, why, wait   the exit code and the message with which all processes end, within `wait`
                     seconds. The process that ends first sends it, and process 0 passes it on. A
                     connection that closes without an end is a lost process

After the loss of a process another thread ends this process: the main thread then waits in a
collective operation that never returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any, Literal

from xlnet_jax import messages
from xlnet_jax.config import DistributedConfig
from xlnet_jax.distributed.links import (
    CONNECT_SECONDS,
    MESSAGE_BYTES,
    Link,
    ProcessInfo,
    address,
    connect,
    listen_at,
)
from xlnet_jax.errors import BadInput, RestartMe, XLNetError, error_of
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

COUNT = "distributed.processes"
COMMAND = "the command"
"""The name of a value of every hello. A sender without this value is another program. The end of a
process with another command does not end this run.
"""
ADDRESS = (
    "set distributed.coordinator (or JAX_COORDINATOR_ADDRESS) "
    "to an address of the host of process 0"
)
HELLO = {"process": int, "host": str, "values": dict, "token": str}
PORTS = (
    "stop what listens there, or set another distributed.coordinator and "
    "distributed.rendezvous_port"
)
NUMBER = "give every process its own distributed.process_id (or JAX_PROCESS_ID), counted from 0"
TICK_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""Time for a process to end by itself after the end of another process. Shorter than the delay of
`hold_aborts`.
"""


class Watch:
    """The connections of this process, by process number: in process 0 to all others, in the others
    to process 0.

    `stage` is "ending" from the first end or loss of another process, and "leaving" from the end of
    this process.
    """

    def __init__(self, me: ProcessInfo, values: Json, settings: DistributedConfig) -> None:
        self.process = me.process
        self.count = me.processes
        self.settings = settings
        self.host, self.ports = address(me, settings)
        self._configured = me.configured
        values = values | {COUNT: me.processes, COMMAND: messages.output.command}
        hello = {
            "process": me.process,
            "host": socket.gethostname(),
            "values": values,
            "token": secrets.token_hex(8),
        }
        # Converted to JSON and back, like received values, so that only real differences count.
        self.hello: Json = json.loads(json.dumps(hello))
        self.links: dict[int, Link] = {}
        self.stage: Literal["meeting", "running", "ending", "leaving"] = "meeting"
        self._began = self._reported = time.monotonic()
        self._fault: XLNetError | None = None
        # Tokens of the processes of this run that know why the meeting has ended.
        self._told: set[str] = set()
        self._itself = self._answered = False
        self._unknown = ""
        self._server: asyncio.Server | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._loop.call_soon(self._beat)
        self._thread = threading.Thread(target=self._loop.run_forever, name="watch", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the thread of the connections."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def name_of(self, process: int) -> str:
        """The number of a process, with its host if known: process 0 knows all hosts, others only
        the host of process 0.
        """
        known = self if process == self.process else self.links.get(process)
        return f"{process} ({known.hello['host']})" if known else str(process)

    def meet(self) -> Watch:
        """Waits until all processes are here and agree; returns itself. An error closes the
        connections.

        Raises:
          BadInput: values differ (names the first key, with both values and hosts), a process
            number came twice or is too large, another run or program uses the port, this user may
            not listen on the port, or the host of process 0 is unknown.
          RestartMe: a process did not come in time, or a run with the same settings still uses the
            port.
          XLNetError: another process has failed before; the error has the exit code of that
            process.
        """
        try:
            self.run(self._join() if self.process else self._lead())
        except BaseException:
            self.stage = "leaving"
            self.close()
            raise
        return self

    def announce(self, code: int, why: str) -> None:
        """Tells the other processes, which wait in `meet`, that this process has failed; waits for
        them like `meet`.
        """
        self.hello |= {"end": code, "why": why}
        # Every answer is an end: of this process or of another process.
        with contextlib.suppress(XLNetError):
            self.run(self._join() if self.process else self._lead())

    async def _lead(self) -> None:
        """Process 0's side of the rendezvous."""
        try:
            listening = await self._port(self.ports[1])
            self._server = await asyncio.start_server(
                self._welcome, sock=listening, limit=MESSAGE_BYTES, backlog=1024
            )
            if "end" in self.hello:
                raise error_of(
                    self.hello["end"],
                    f"process 0 ({self.hello['host']}) ended: {self.hello['why']}",
                )
            (await self._port(self.ports[0])).close()  # gRPC would share a port with another run
            self._search = asyncio.create_task(self._find_itself())
            await self._gather()
        except XLNetError as fault:
            await self._dismiss(fault)
            self.stage = "leaving"
            raise
        self.stage = "running"
        self._tell(go=self.hello["host"])

    async def _gather(self) -> None:
        """Returns when all processes are here and agree."""
        while missing := [process for process in range(1, self.count) if process not in self.links]:
            others = (f"{p} on {link.hello['host']}" for p, link in sorted(self.links.items()))
            # Every host gets this line: if it named all hosts, the bytes sent would grow as the
            # square of the number of hosts.
            here = _some([f"0 on {self.hello['host']}", *others]) + self._unknown
            cure = ADDRESS if self._unknown and not self.links else ""
            who = f"process{'es' * (len(missing) > 1)} {_some(missing)}"
            self._wait_for(who, f"here: {here}", self.settings.rendezvous_seconds, cure)
            await asyncio.sleep(TICK_SECONDS)
        if self._fault:
            raise self._fault
        for _, link in sorted(self.links.items()):
            self._compare(
                link.hello, *sorted(self.hello["values"].keys() | link.hello["values"].keys())
            )

    async def _dismiss(self, fault: XLNetError) -> None:
        """Tells all connected processes why the meeting ends. Also tells processes that connect
        later, unless all are to restart.
        """
        self._fault = fault
        self._tell(end=fault.exit_code, why=str(fault))
        for link in self.links.values():
            link.ended.set()
            self._told.add(link.hello["token"])
        if "end" not in self.hello:
            if fault.exit_code == RestartMe.exit_code or not self._missing():
                return
            log.warning("%s; telling the processes that come later", fault)
        while self._missing():
            await asyncio.sleep(TICK_SECONDS)

    def _missing(self) -> bool:
        """Whether a process that does not know the end may still connect."""
        seconds = time.monotonic() - self._began
        return bool(
            self._server
            and len(self._told) < self.count - 1
            and seconds < self.settings.rendezvous_seconds
        )

    async def _find_itself(self) -> None:
        """Checks that the coordinator address leads to this process: another process 0 could listen
        on another host.
        """
        while not self._itself and self.stage == "meeting":
            try:
                await self._connect(self.host, self.ports[1], CONNECT_SECONDS)
            except OSError as error:
                self._unknown = (
                    f"; {self.host}: {error.strerror}" if self._is_unknown(error) else ""
                )
                await asyncio.sleep(TICK_SECONDS)
            except XLNetError as refusal:
                self._fault = refusal
                if self._server:
                    self._server.close()  # no process connects here
                    self._server = None
                return

    def _is_unknown(self, error: OSError) -> bool:
        """Whether the user may have set a wrong host of process 0: a name server does not know the
        name.
        """
        return (
            self._configured
            and isinstance(error, socket.gaierror)
            and error.errno != socket.EAI_AGAIN
        )

    def _wait_for(self, who: str, why: str, seconds: float, cure: str) -> None:
        """Logs every `report_seconds` which process is missing. Raises the fault that ends the
        meeting. After `seconds`, raises BadInput with the `cure`, or RestartMe if no cure is given.
        """
        if self._fault:
            raise self._fault
        now = time.monotonic()
        if now - self._began > seconds:
            line = f"{who} did not come within {self.settings.rendezvous_seconds:g} s ({why})"
            raise (
                BadInput(f"{line}; {cure}")
                if cure
                else RestartMe(f"{line}; start it, then restart all")
            )
        if now - self._reported > self.settings.report_seconds:
            self._reported = now
            line = f"waiting for {who} of {self.count} ({why})"
            log.warning("%s", line)
            self._tell(waiting=line)

    async def _port(self, port: int) -> socket.socket:
        """Returns a socket of process 0 that listens at the port. Waits until the port is free: an
        earlier process may be about to end. Raises the refusal of another run that uses the port.
        """
        while True:
            try:
                return listen_at(port)
            except OSError as error:
                why = f"port {port} of {self.hello['host']}: {os.strerror(error.errno or 0)}"
                if error.errno == errno.EACCES:
                    raise BadInput(
                        f"{why}; set another distributed.coordinator and "
                        "distributed.rendezvous_port, from 1024 on"
                    ) from error
                with contextlib.suppress(OSError):
                    await self._connect("localhost", port, CONNECT_SECONDS)
                cure = PORTS if error.errno == errno.EADDRINUSE else ""
                self._wait_for("process 0", why, self.settings.rendezvous_seconds, cure)
                await asyncio.sleep(TICK_SECONDS)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles a connection to process 0 until it closes."""
        link = Link(reader, writer)
        # asyncio would log a cancelled connection with a traceback.
        with (
            contextlib.suppress(ConnectionError, asyncio.CancelledError),
            contextlib.closing(writer),
        ):
            hello = link.hello = await link.receive(CONNECT_SECONDS)
            if {name: type(hello.get(name)) for name in HELLO} != HELLO or COMMAND not in hello[
                "values"
            ]:
                return  # another program
            if hello["token"] == self.hello["token"]:
                self._itself = True
                self._unknown = ""
                return
            try:
                self._admit(hello)
            except XLNetError as refusal:
                link.send(end=refusal.exit_code, why=str(refusal))
                if self._agrees(hello):
                    self._told.add(hello["token"])
            else:
                self.links[hello["process"]] = link
                await self._listen(hello["process"], link)

    def _admit(self, hello: Json) -> None:
        """Raises the answer to a process that is not admitted: a refusal, or the end of the
        meeting.

        An error of a process of this run ends the meeting; an error of any other process does not.
        """
        process = hello["process"]
        host = hello["host"]
        ours = self._agrees(hello)
        if self.stage != "meeting" or (process == 0 and not ours):
            # A process of this run may be back before the run has ended.
            raise (RestartMe if hello["values"] == self.hello["values"] else BadInput)(
                self._occupied()
            )
        if "end" in hello:
            # The process may already be connected: a signal ends a process from another thread.
            end = error_of(hello["end"], f"process {process} ({host}) ended: {hello.get('why')}")
            if ours:
                self._fault = self._fault or end
            raise end
        try:
            self._check_number(hello, ours)
        except BadInput as wrong:
            if ours:
                self._fault = self._fault or wrong
            raise
        if self._fault:
            raise self._fault

    def _occupied(self) -> str:
        return (
            f"port {self.ports[1]} of {self.hello['host']}: another run is here; wait for its "
            "end, or set another distributed.coordinator"
        )

    def _agrees(self, hello: Json) -> bool:
        """Whether a process belongs to this launch: all values of its hello are equal, except the
        number of processes.
        """
        mine = self.hello["values"]
        values = hello["values"]
        return all(values[name] == mine[name] for name in (mine.keys() & values.keys()) - {COUNT})

    def _check_number(self, hello: Json, ours: bool) -> None:
        """Raises BadInput for a process number that is taken or too large. Closes the connection of
        an earlier process with this number if it is silent or, with `ours`, from another launch.
        """
        self._compare(hello, COUNT)
        process = hello["process"]
        host = hello["host"]
        if not 0 <= process < self.count:
            raise BadInput(
                f"distributed.process_id={process} ({host}) must lie in [0, "
                f"{COUNT}={self.count}); {NUMBER}"
            )
        other = self.links.get(process)
        if other and ours and not self._agrees(other.hello):
            other.send(end=BadInput.exit_code, why=self._occupied())
        elif other and time.monotonic() - other.heard > self.settings.heartbeat_seconds / 2:
            pass  # the old connection of a host that is back
        elif other or process == 0:
            first = other.hello["host"] if other else self.hello["host"]
            raise BadInput(
                f"process {process} of {self.count} came from {first} and {host}; {NUMBER}"
            )
        if other:
            other.ended.set()
            other.writer.close()

    def _compare(self, hello: Json, *names: str) -> None:
        """Raises BadInput for the first of these values that differs in another process."""
        for name in names:
            mine, other = (each["values"].get(name) for each in (self.hello, hello))
            if mine != other:
                raise BadInput(
                    f"{name} is {mine!r} in process 0 ({self.hello['host']}) and {other!r} in "
                    f"process {hello['process']} ({hello['host']}); start the same command with "
                    "the same versions everywhere"
                )

    async def _join(self) -> None:
        """The other processes' side of the rendezvous: connects, sends hello, waits for `go` or
        `end`.
        """
        # Longer than the limit of process 0: a running process 0 must report first, because
        # it names the missing process.
        limit = self.settings.rendezvous_seconds + CONNECT_SECONDS
        while self.stage == "meeting":
            try:
                await self._connect(self.host, self.ports[1], self.settings.heartbeat_seconds)
            except OSError as error:
                why = error.strerror or str(error) or "no answer"
                cure = ""
                if self._is_unknown(error):
                    cure = ADDRESS
                elif type(error) is ConnectionError and not self._answered:
                    # Connected, but process 0 has sent no message.
                    cure = PORTS
                self._wait_for("process 0", f"{self.host}:{self.ports[1]}: {why}", limit, cure)
                await asyncio.sleep(TICK_SECONDS)

    async def _connect(self, host: str, port: int, patience: float) -> None:
        """Connects to process 0 and waits until the run begins.

        Raises OSError if no answer comes for `patience` seconds, or XLNetError if process 0 refuses
        or sends an end.
        """
        connection = await asyncio.to_thread(connect, host, port)
        link = Link(*await asyncio.open_connection(sock=connection, limit=MESSAGE_BYTES))
        if self.process:
            self.links[0] = link
        try:
            link.send(**self.hello)
            while "go" not in (message := await link.receive(patience)):
                self._answered = True
                if "waiting" in message:
                    log.warning("%s", message["waiting"])
                if "end" in message:
                    raise error_of(message["end"], str(message.get("why")))
        except BaseException:
            self.links.pop(0, None)
            link.ended.set()
            link.writer.close()
            raise
        link.hello = {"host": message["go"]}
        self.stage = "running"
        self._listening = asyncio.create_task(self._listen(0, link))

    def _beat(self) -> None:
        if self.stage != "leaving":
            self._tell(beat=1)
            self._loop.call_later(self.settings.heartbeat_seconds / 4, self._beat)

    def _tell(self, but: int = -1, **message: Any) -> None:
        """Sends a message to all connected processes except `but`."""
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
            if link.ended.is_set():
                pass
            elif self.stage == "meeting":
                log.warning("%s disconnected: %s", who, error)  # it may come back
            else:
                self._end(
                    process,
                    RestartMe.exit_code,
                    f"lost {who}: {error}; rerun the same command on all hosts",
                    0,
                )
        finally:
            link.ended.set()
            link.writer.close()
            if self.links.get(process) is link:
                del self.links[process]

    def _end(self, origin: int, code: int, why: str, wait: float) -> None:
        """Passes the end of a process on, and ends this process, unless it ends by itself within
        `wait` seconds.
        """
        if self.stage == "meeting":
            self._fault = self._fault or error_of(code, why)
        elif code and self.stage == "running":
            self.stage = "ending"
            if self.process == 0:
                self._tell(origin, end=code, why=why, wait=wait)
            self._loop.call_later(wait, self._exit, code, why)

    def _exit(self, code: int, why: str) -> None:
        if self.stage == "ending":
            self.stage = "leaving"
            messages.end(code, why)

    def leave(self, code: int, why: str) -> None:
        """Announces the end of this process, and waits a little for the others.

        Process 0 runs the coordination service, so it stays until the others have announced their
        end; the others stay until process 0 has announced its end. No process sends a message after
        its end: unread data would reset the connection, and an end in flight would be lost.
        """
        if self.stage != "leaving":
            self.run(
                self._leave(code, f"process {self.process} ({self.hello['host']}) ended: {why}")
            )

    async def _leave(self, code: int, why: str) -> None:
        self.stage = "leaving"
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


def _some(names: list[Any]) -> str:
    """The first 8 names, for a message."""
    return ", ".join(map(str, names[:8])) + ", ..." * (len(names) > 8)
