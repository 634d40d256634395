"""Which process of a run this one is, and its connections: where they go, how they are made, and
the messages on them.

No device has been used yet. See `rendezvous` for what is said.
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
"""Limit for a message; a longer one is not from this program."""

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
      configured: whether the coordinator is a setting of the user, which may be wrong, and not from
        the cluster.
    """

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None
    configured: bool = dataclasses.field(default=True, compare=False)


def find_process_info(config: Config, any_number: bool = False) -> ProcessInfo | None:
    """The number of this process and of all processes; None if it is the only one.

    From the keys `distributed.*`, the environment, or JAX's detection of TPU VM, GKE and SLURM.
    Raises BadInput if a needed setting is missing, or a number is invalid (with `any_number` it may
    be too large), and RestartMe if the cluster does not answer.
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
    devices, configured = None, known[0] is not None
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
    """Adds the results of JAX's own detection to what is known; the last one is the local devices.

    Private (checked with JAX 0.10.2 and 0.11.0): the public function detects and starts at once.
    """
    from jax._src.clusters import ClusterEnv, GceTpuCluster, GkeTpuCluster, SlurmCluster

    try:
        # JAX would also ask Kubernetes, which can answer only for pods of a job, and fails in any
        # other pod.
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
    # Detection gives a task of SLURM one device, also the only task of a node; JAX itself reads
    # this variable.
    one_per_node = os.environ.get("SLURM_NTASKS") == os.environ.get("SLURM_STEP_NUM_NODES")
    return (*known, None if one_per_node or "JAX_LOCAL_DEVICE_IDS" in os.environ else devices)


class Link:
    """One end of a connection.

    Attributes:
      hello: what the other process said at the rendezvous.
      heard: when it said something last.
      ended: set when it has announced its end, or its connection has closed.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.hello: Json = {}
        self.heard = time.monotonic()
        self.ended = asyncio.Event()

    def send(self, **message: Any) -> None:
        """Sends a message. If the other end is gone, `receive` says so."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, seconds: float) -> Json:
        """The next message. Raises ConnectionError: silent for so long, gone, or another
        program.
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
    """The host of process 0, and the ports there: of JAX's coordination service, and of the
    rendezvous.
    """
    host, _, text = me.coordinator.rpartition(":")
    port = int(text)
    # JAX gives every SLURM job a coordinator's port from 61440 on; the next one may belong to the
    # next job.
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
        # If nobody listens at a port of this host, the system may choose that port for our own end:
        # TCP then connects the socket to itself. It would hear its own signs of life for ever, and
        # keep process 0 from the port.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection
