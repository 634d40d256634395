"""Which process of a run this one is: from the keys `distributed.*`, the environment, or the cluster."""

from __future__ import annotations

import os
import re
from typing import Any

from xlnet_jax.config import Config
from xlnet_jax.distributed.links import ProcessInfo
from xlnet_jax.errors import BadInput, RestartMe, summary

ENVIRONMENT = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
"""Environment variables that replace unset keys of `distributed`."""


def find_process_info(config: Config, any_number: bool = False) -> ProcessInfo | None:
    """The number of this process and of all processes; None if it is the only one.

    From the keys `distributed.*`, the environment, or JAX's detection of TPU VM, GKE and SLURM.

    Args:
      any_number: the number may be too large.

    Raises:
      BadInput: a needed setting is missing, or a number is invalid.
      RestartMe: the cluster does not answer.
    """
    given = config.distributed
    known: list[Any] = [given.coordinator or None, given.processes or None,
                        None if given.process_id < 0 else given.process_id]  # fmt: skip
    for i, (name, variable) in enumerate(ENVIRONMENT.items()):
        if known[i] is None and (text := os.environ.get(variable)):
            if name != "coordinator" and not re.fullmatch("[0-9]+", text):
                raise BadInput(f"the environment variable {variable}={text} must be a number, counted from 0")
            known[i] = text if name == "coordinator" else int(text)
    devices, configured = None, known[0] is not None
    if given.detect and None in known and known[1] != 1:
        *known, devices = _detected(known, int(given.rendezvous_seconds))
    if known[1] == 1 or known == [None, None, None]:
        return None
    for value, (name, variable) in zip(known, ENVIRONMENT.items(), strict=True):
        if value is None:
            raise BadInput(
                f"neither distributed.{name} nor {variable} is set; several processes need all three of "
                f"distributed.coordinator, .processes and .process_id"
            )
    coordinator, processes, process = known
    valid = re.fullmatch(r"(\[[\da-fA-F:]+\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?):(\d{1,5})", coordinator, re.ASCII)
    if not valid or not 0 < int(valid[3]) < 65536:
        raise BadInput(f"distributed.coordinator={coordinator} must be HOST:PORT")
    if given.rendezvous_port == int(valid[3]):
        raise BadInput(f"distributed.rendezvous_port={valid[3]} is the coordinator's port, too; choose another one")
    if process >= processes and not any_number:
        raise BadInput(f"distributed.process_id={process} must lie in [0, distributed.processes={processes})")
    return ProcessInfo(coordinator, processes, process, devices, configured)


def _detected(known: list[Any], seconds: int) -> tuple[Any, ...]:
    """Adds the results of JAX's own detection to what is known; the last one is the local devices.

    Private (checked with JAX 0.10.2 and 0.11.0): the public function detects and starts at once.
    """
    from jax._src.clusters import ClusterEnv, GceTpuCluster, GkeTpuCluster, SlurmCluster

    try:
        # JAX would also ask Kubernetes, which can answer only for pods of a job, and fails in any other pod.
        cluster = next((each for each in (SlurmCluster, GkeTpuCluster, GceTpuCluster) if each.is_env_present()), None)
        if cluster is None:
            return (*known, None)
        *known, devices = ClusterEnv.auto_detect_unset_distributed_params(
            known[0], known[1], known[2], None, cluster.name, seconds
        )
    except (RuntimeError, OSError, ValueError) as error:
        advice = "set distributed.detect=false for a single process"
        raise RestartMe(f"the cluster does not report which process this is: {summary(error)}; {advice}") from error
    # With SLURM detection gives one device per task; JAX itself reads this variable, for tasks with several.
    return (*known, None if "JAX_LOCAL_DEVICE_IDS" in os.environ else devices)
