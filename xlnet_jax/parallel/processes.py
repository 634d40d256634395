"""Several processes in one run: which one this is, their common start, and their common end.

`session` does nothing in a single process. Otherwise it runs the rendezvous, starts `jax.distributed`, and watches the
others until the run ends. All processes end with the same exit code: the one of the first that ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

import xlnet_jax
from xlnet_jax import config as configs
from xlnet_jax import messages
from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput, RestartMe, Stopped, XLNetError, summary
from xlnet_jax.parallel.mesh import available_devices
from xlnet_jax.parallel.rendezvous import Link, ProcessInfo, Timeouts, meet
from xlnet_jax.parallel.watch import Watch, hold_aborts

log = logging.getLogger("xlnet_jax")

ENVIRONMENT = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
"""Environment variables that replace unset keys of `distributed`."""

MAY_DIFFER = {
    "distributed.coordinator", "distributed.processes", "distributed.process_id", "distributed.detect",
    "data.corpus", "data.read_threads", "data.prefetch", "data.workers", "log.compilation_cache",
}  # fmt: skip
"""Keys about where and how a host works, not about the result. The corpus is compared by its hash."""

SETTLE_SECONDS = 3.0
"""Time for which a failed process waits for news of the end of another one, which may be the cause."""


class Session:
    """Communication with the other processes of a run; a single process answers itself.

    Barriers and values use JAX's coordination service, not the devices: Gloo gives a late process 30 s to join a
    collective operation, and a compilation may take longer. JAX has no public interface to that service.

    Args:
      patience: seconds to wait for the slowest process. A lost process ends the others sooner.
    """

    def __init__(self, watch: Watch | None = None, patience: float = 0.0) -> None:
        self.watch, self.patience = watch, patience
        self._count = 0
        self._boundaries = 0

    def stop(self, signal_name: str | None) -> str | None:
        """The signal that ends the run at this boundary, the same in all processes; None = continue. See `Watch.stop`.

        All processes ask after every dispatch and every batch of an evaluation; this method counts the boundaries.
        """
        self._boundaries += 1
        return self.watch.stop(self._boundaries, signal_name) if self.watch else signal_name

    def end(self, code: int, line: str) -> None:
        """Ends this process at once, from any thread, and informs the others."""
        messages.error(f"xlnet-jax{f', process {self.watch.process}' if self.watch else ''}", line, code)
        if self.watch:
            self.watch.leave(code, line)
        os._exit(code)

    def barrier(self, what: str) -> None:
        """Waits until all processes are here. They must reach the same barriers in the same order.

        Raises:
          RestartMe: some processes did not come; the message names them, and `what`, their work before the barrier.
        """
        if not self.watch:
            return
        service, name = self._service()
        service.key_value_set(f"{name}/{self.watch.process}", platform.node())
        try:
            service.wait_at_barrier(name, int(self.patience * 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            came = {int(key.rpartition("/")[2]) for key, _ in service.key_value_dir_get(name)}
            missing = [f"{p} ({host})" for p, host in self.hosts().items() if p not in came]
            raise RestartMe(
                f"{what}: waited {self.patience:g} s (distributed.rendezvous_seconds) for process "
                f"{', '.join(missing) or '?'}; rerun the same command on every host to resume"
            ) from error

    def of_first(self, value: int) -> int:
        """The value of process 0."""
        if not self.watch:
            return value
        service, name = self._service()
        if self.watch.process == 0:
            service.key_value_set(name, str(int(value)))
        return int(service.blocking_key_value_get(name, int(self.patience * 1000)))

    def gather(self, text: str) -> list[str]:
        """The texts of all processes, in process order."""
        if not self.watch:
            return [text]
        service, name = self._service()
        # An empty value cannot be distinguished from a missing one.
        service.key_value_set(f"{name}/{self.watch.process}", f"={text}")
        patience = int(self.patience * 1000)
        said = [service.blocking_key_value_get(f"{name}/{i}", patience) for i in range(jax.process_count())]
        return [each[1:] for each in said]

    def publish(self, name: str, text: str) -> None:
        """Publishes a text for the other processes; a name may be used only once."""
        if self.watch:
            _client().key_value_set(f"xlnet_jax/{name}/{self.watch.process}", text)

    def fetch(self, name: str, process: int, seconds: float) -> str | None:
        """Waits for the text that a process publishes under a name, and removes it. None if it does not arrive."""
        key = f"xlnet_jax/{name}/{process}"
        try:
            text = _client().blocking_key_value_get(key, int(seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None
        _client().key_value_delete(key)
        return text

    def hosts(self) -> dict[int, str]:
        """The host name of each process, if published: in a `session` all processes publish it."""
        told = {int(key.rpartition("/")[2]): host for key, host in _client().key_value_dir_get("xlnet_jax/host")}
        return {process: told.get(process, "unknown host") for process in range(jax.process_count())}

    def _service(self) -> tuple[Any, str]:
        """The client of the coordination service, and a unique name, the same in all processes."""
        self._count += 1
        return _client(), f"xlnet_jax/{self._count}"


def _client() -> Any:
    from jax._src.distributed import global_state

    return global_state.client


def sum_over_processes(counts: np.ndarray) -> np.ndarray:
    """Sums non-negative int64 arrays over all processes."""
    if jax.process_count() == 1:
        return counts
    # JAX has no 64-bit integers by default.
    halves = np.stack([counts >> 31, counts & 0x7FFFFFFF]).astype(np.int32)
    high, low = np.asarray(multihost_utils.process_allgather(halves)).astype(np.int64).sum(axis=0)
    return (high << 31) + low


def find_process_info(config: Config) -> ProcessInfo | None:
    """The number of this process and of all processes; None if it is the only one.

    From the keys `distributed.*`, the environment, or JAX's detection of TPU VM, GKE and SLURM.

    Raises:
      BadInput: a needed setting is missing, or a number is invalid.
      RestartMe: the cluster does not answer.
    """
    given = config.distributed
    coordinator = given.coordinator or os.environ.get(ENVIRONMENT["coordinator"], "")
    processes = given.processes or _from_environment("processes", 0)
    process = given.process_id if given.process_id >= 0 else _from_environment("process_id", -1)
    devices = None
    if processes != 1 and given.detect and not (coordinator and processes and process >= 0):
        coordinator, processes, process, devices = _detected(config, coordinator, processes, process)
    if processes == 1 or not (coordinator or processes or process >= 0):
        return None
    for name, known in (("coordinator", coordinator), ("processes", processes), ("process_id", process >= 0)):
        if not known:
            raise BadInput(
                f"neither distributed.{name} nor {ENVIRONMENT[name]} is set; several processes need all three of "
                f"distributed.coordinator, .processes and .process_id"
            )
    port = coordinator.rpartition(":")[2]
    if ":" not in coordinator or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"distributed.coordinator={coordinator} must be HOST:PORT")
    if not 0 <= process < processes:
        raise BadInput(f"distributed.process_id={process} must lie in [0, distributed.processes={processes})")
    return ProcessInfo(coordinator, processes, process, devices)


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(ENVIRONMENT[name], "")
    if not text:
        return default
    if not text.isdigit():
        raise BadInput(f"the environment variable {ENVIRONMENT[name]}={text} must be a number, counted from 0")
    return int(text)


def _detected(config: Config, coordinator: str, processes: int, process: int) -> tuple[str, int, int, Any]:
    """Adds the results of JAX's own detection. JAX has no public function that only detects and does not start."""
    from jax._src.clusters import ClusterEnv, GceTpuCluster, GkeTpuCluster, SlurmCluster

    try:
        # JAX would also ask Kubernetes, which can answer only for pods of a job, and fails in any other pod.
        cluster = next((each for each in (SlurmCluster, GkeTpuCluster, GceTpuCluster) if each.is_env_present()), None)
        if cluster is None:
            return coordinator, processes, process, None
        found = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator or None, processes or None, process if process >= 0 else None, None, cluster.name,
            int(config.distributed.rendezvous_seconds),
        )  # fmt: skip
    except (RuntimeError, OSError, ValueError) as error:
        raise RestartMe(
            f"the cluster does not report which process this is: {summary(error)}; "
            "set distributed.detect=false for a single process"
        ) from error
    # With SLURM detection gives one device per task; JAX itself reads this variable, for tasks with several.
    devices = None if "JAX_LOCAL_DEVICE_IDS" in os.environ else found[3]
    return found[0] or "", found[1] or 0, -1 if found[2] is None else found[2], devices


@contextlib.contextmanager
def session(config: Config, identity: dict[str, Any]) -> Iterator[Session]:
    """Starts the processes of a run together, before any device is used, and ends them together.

    An error that leaves this context is sent to the other processes, which end with the same exit code. If a lost
    process caused the error, this process ends with 42 before the error gets here.

    Args:
      identity: values that must be equal in all processes, besides the configuration and the versions.

    Raises:
      BadInput, RestartMe: see `rendezvous.meet`.
    """
    me = find_process_info(config)
    if me is None:
        yield Session()
        return
    given = config.distributed
    links = _meet(config, me, identity)
    _keep_stdout()
    hold_aborts()
    watch = Watch(me.process, links, given.heartbeat_seconds)
    watch.start()
    try:
        _start_jax(config, me)
        processes = Session(watch, given.rendezvous_seconds)
        processes.publish("host", platform.node())
        processes.barrier("the start")
        available_devices()
        # The first collective operation connects all devices: run it now, while all processes are here.
        multihost_utils.sync_global_devices("start")
        yield processes
        # All processes get here, or the watch ends those that wait.
        jax.distributed.shutdown()
    except XLNetError as error:
        _leave(watch, error.exit_code, str(error))
        raise
    except Stopped as stopped:
        _leave(watch, RestartMe.exit_code, str(stopped))
        raise
    except KeyboardInterrupt:
        _leave(watch, 130, "interrupted")
        raise
    except Exception as error:
        traceback.print_exc()
        # If a host is lost, an operation with it may fail before the watch notices and ends this process with 42.
        of_jax = isinstance(error, jax.errors.JaxRuntimeError)
        time.sleep(given.heartbeat_seconds + SETTLE_SECONDS if of_jax else SETTLE_SECONDS)
        _leave(watch, 1, f"{type(error).__name__}: {summary(error)}")
        end_process(1)
    watch.leave(0, "")


def _meet(config: Config, me: ProcessInfo, identity: dict[str, Any]) -> dict[int, Link]:
    """Runs the rendezvous, with all values that must be equal."""
    given = config.distributed
    values = {name: value for name, value in configs.flat(config).items() if name not in MAY_DIFFER}
    values |= identity | {
        "the version of xlnet_jax": xlnet_jax.__version__,
        "the version of jax": jax.__version__,
        "the version of jaxlib": jax.lib.__version__,
        "the version of Python": platform.python_version(),
        "JAX_ENABLE_X64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
    }
    port = given.rendezvous_port or _beside(int(me.coordinator.rpartition(":")[2]))
    links = meet(me, port, values, Timeouts(given.rendezvous_seconds, given.report_seconds))
    log.info("process %d of %d, coordinator %s", me.process, me.processes, me.coordinator)
    return links


def _start_jax(config: Config, me: ProcessInfo) -> None:
    given = config.distributed
    # JAX's notifier would take over SIGTERM. The loop handles signals, and agrees with the others through the watch:
    # see run/signals.py.
    jax.config.update("jax_enable_preemption_service", False)
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):  # type: ignore[attr-defined]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        me.coordinator, me.processes, me.process, me.devices,
        # Longer than the watch's own limit: the watch must come first, because it names the silent process.
        heartbeat_timeout_seconds=int(3 * given.heartbeat_seconds) + 10,
        initialization_timeout=int(given.rendezvous_seconds) + 1,
        shutdown_timeout_seconds=int(given.rendezvous_seconds) + 1,
        cluster_detection_method="deactivate",
    )  # fmt: skip


def _keep_stdout() -> None:
    """Redirects output of libraries to stderr: Gloo greets every peer on stdout, where `--json` prints one object."""
    sys.stdout.flush()
    # From here on only this program writes to stdout.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)


def _beside(port: int) -> int:
    """The port of the rendezvous: the one after the coordinator's, or before it if that is the last port."""
    return port + 1 if port < 65535 else port - 1


_left: list[int] = []
"""The exit code, after this process has left the others with an error."""


def _leave(watch: Watch, code: int, why: str) -> None:
    watch.leave(code, why)
    _left.append(code)


def end_process(code: int) -> None:
    """Ends the process at once if it has left the others: JAX's work at a normal exit would wait for them."""
    if _left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
