"""One connection between two processes of a run: where it goes, how it is made, and the messages on it.

Only the standard library is used: no device has been used yet. See `rendezvous` for what is said.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import socket
import time
from typing import Any

from xlnet_jax.config import DistributedConfig

CONNECT_SECONDS = 5.0
MESSAGE_BYTES = 1 << 20
"""Limit for a message; a longer one is not from this program."""


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """The place of this process in the run.

    Attributes:
      coordinator: HOST:PORT of JAX's coordination service, in process 0.
      devices: the local device numbers to use, if a scheduler starts one process per device; None = all.
      configured: whether the coordinator is a setting of the user, which may be wrong, and not from the cluster.
    """

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None
    configured: bool = dataclasses.field(default=True, compare=False)


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


def address(me: ProcessInfo, settings: DistributedConfig) -> tuple[str, tuple[int, int]]:
    """The host of process 0, and the ports there: of JAX's coordination service, and of the rendezvous."""
    host, _, text = me.coordinator.rpartition(":")
    port = int(text)
    # JAX gives every SLURM job a coordinator's port from 61440 on; the next one may belong to the next job.
    beside = port + 1 if port < 61440 else port - 4096
    return host.strip("[]"), (port, settings.rendezvous_port or beside)


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
