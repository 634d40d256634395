"""The number of this process in its run, and the addresses and messages of its connections.

Uses no device. `rendezvous` lists the messages.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import re
import socket
import time
from typing import Any

from xlnet_jax.config import Config, DistributedConfig
from xlnet_jax.errors import BadInput, RestartMe, summary
from xlnet_jax.storage.files import Json

CONNECT_SECONDS = 5.0
MESSAGE_BYTES = 1 << 20
"""Limit of a message; a longer message is from another program."""

ENVIRONMENT = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
"""Environment variables that replace unset keys of `distributed`."""


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """The place of this process in the run.

    Attributes:
      coordinator: HOST:PORT of JAX's coordination service, in process 0.
      devices: the local device numbers to use, if a scheduler starts one process per device;
        None = all.
      configured: whether the user has set the coordinator, perhaps to a wrong address; False =
        the cluster has set it.
    """

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None
    configured: bool = dataclasses.field(default=True, compare=False)


def find_process_info(config: Config, any_number: bool = False) -> ProcessInfo | None:
    """Returns the place of this process in the run; None if it is the only process.

    The values come from the keys `distributed.*`, the environment, or JAX's detection of TPU VM,
    GKE and SLURM. Raises BadInput if a needed setting is missing, or a number is invalid (with
    `any_number` it may be too large), and RestartMe if the cluster does not answer.
    """
    given = config.distributed
    known: list[Any] = [
        given.coordinator or None,
        given.processes or None,
        None if given.process_id < 0 else given.process_id,
    ]
    for i, (name, variable) in enumerate(ENVIRONMENT.items()):
        if known[i] is None and (text := os.environ.get(variable)):
            if name != "coordinator" and not re.fullmatch("[0-9]+", text):
                raise BadInput(
                    f"the environment variable {variable}={text} must be a number, counted from 0"
                )
            known[i] = text if name == "coordinator" else int(text)
    devices = None
    configured = known[0] is not None
    if given.detect and None in known and known[1] != 1:
        *known, devices = _detected(known, int(given.rendezvous_seconds))
    if known[1] == 1 or known == [None, None, None]:
        return None
    for value, (name, variable) in zip(known, ENVIRONMENT.items(), strict=True):
        if value is None:
            raise BadInput(
                f"neither distributed.{name} nor {variable} is set; several processes need all "
                "three of distributed.coordinator, .processes and .process_id"
            )
    coordinator, processes, process = known
    valid = re.fullmatch(
        r"(\[[\da-fA-F:]+\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?):(\d{1,5})", coordinator, re.ASCII
    )
    if not valid or not 0 < int(valid[3]) < 65536:
        raise BadInput(f"distributed.coordinator={coordinator} must be HOST:PORT")
    if given.rendezvous_port == int(valid[3]):
        raise BadInput(
            f"distributed.rendezvous_port={valid[3]} is the coordinator's "
            "port, too; choose another one"
        )
    if process >= processes and not any_number:
        raise BadInput(
            f"distributed.process_id={process} must lie in [0, distributed.processes={processes})"
        )
    return ProcessInfo(coordinator, processes, process, devices, configured)


def _detected(known: list[Any], seconds: int) -> tuple[Any, ...]:
    """Returns the `known` coordinator, number of processes and process number, completed by JAX's
    detection, and the local devices.

    Uses a private function (checked with JAX 0.10.2 and 0.11.0): the public one also starts JAX.
    """
    from jax._src.clusters import ClusterEnv, GceTpuCluster, GkeTpuCluster, SlurmCluster

    try:
        # JAX's detection of Kubernetes is left out: it fails in a pod that belongs to no job.
        cluster = next(
            (
                each
                for each in (SlurmCluster, GkeTpuCluster, GceTpuCluster)
                if each.is_env_present()
            ),
            None,
        )
        if cluster is None:
            return (*known, None)
        *known, devices = ClusterEnv.auto_detect_unset_distributed_params(
            known[0], known[1], known[2], None, cluster.name, seconds
        )
    except (RuntimeError, OSError, ValueError) as error:
        advice = "set distributed.detect=false for a single process"
        raise RestartMe(
            f"the cluster does not report which process this is: {summary(error)}; {advice}"
        ) from error
    # JAX gives each task of SLURM one device, even if it is the only task of a node; then all
    # devices are used. JAX itself reads JAX_LOCAL_DEVICE_IDS.
    one_per_node = os.environ.get("SLURM_NTASKS") == os.environ.get("SLURM_STEP_NUM_NODES")
    return (*known, None if one_per_node or "JAX_LOCAL_DEVICE_IDS" in os.environ else devices)


class Link:
    """One end of a connection.

    Attributes:
      hello: the hello of the other process.
      heard: time of its last message.
      ended: set when it has announced its end, or its connection has closed.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.hello: Json = {}
        self.heard = time.monotonic()
        self.ended = asyncio.Event()

    def send(self, **message: Any) -> None:
        """Sends a message. If the other end is gone, `receive` raises an error."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, seconds: float) -> Json:
        """Returns the next message. Raises ConnectionError if no message comes in time, if the
        connection closes, or if the other end is another program.
        """
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
    """The host of process 0, and its ports of JAX's coordination service and of the rendezvous."""
    host, _, text = me.coordinator.rpartition(":")
    port = int(text)
    # JAX gives every SLURM job a coordinator port from 61440 on; the next port may belong to the
    # next job.
    beside = port + 1 if port < 61440 else port - 4096
    return host.strip("[]"), (port, settings.rendezvous_port or beside)


def listen_at(port: int) -> socket.socket:
    """A socket that listens at a port of this host, with IPv6 if possible. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)


def connect(host: str, port: int) -> socket.socket:
    """A connection to a port of a host. Raises OSError."""
    connection = socket.create_connection((host, port), CONNECT_SECONDS)
    if connection.getsockname() == connection.getpeername():
        # If no process listens at a port of this host, the system may choose this port for our end.
        # TCP then connects the socket to itself: the socket would receive its own beats for ever,
        # and process 0 could not use the port.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection
