"""Several processes in one run: their common start, their communication, and their common end.

`session` does nothing in a single process. Otherwise it runs the rendezvous, starts
`jax.distributed`, and watches the others until the run ends. All processes end with the exit code
of the first process that ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import xlnet_jax
from xlnet_jax import config as configs
from xlnet_jax import messages
from xlnet_jax.config import Config
from xlnet_jax.distributed.links import ProcessInfo, find_process_info
from xlnet_jax.distributed.mesh import available_devices, settled
from xlnet_jax.distributed.rendezvous import GRACE_SECONDS, Watch
from xlnet_jax.errors import RestartMe, XLNetError, summary
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

MAY_DIFFER = {
    "distributed.coordinator",
    "distributed.processes",
    "distributed.process_id",
    "distributed.detect",
    "data.corpus",
    "data.read_threads",
    "data.prefetch",
    "data.workers",
    "log.compilation_cache",
}
"""Keys that may differ between processes: they describe a host and do not change the result. The
corpus is compared by its hash.
"""

SETTLE_SECONDS = 3.0
"""Time for which a failed process waits for news that another process has ended, which may be the
cause.
"""


class Session:
    """Communication with the other processes of a run; a single process answers itself.

    Texts use JAX's coordination service, not the devices: Gloo gives a late process 30 s to join a
    collective operation, and a compilation may take longer. `barrier`, `broadcast` and `collect`
    wait `patience` seconds for the slowest process; a lost process ends the others sooner. The
    number of messages of a process does not depend on the number of processes.
    """

    def __init__(self, watch: Watch | None = None, patience: float = 0.0) -> None:
        self.watch = watch
        self.patience = patience
        self._meetings = 0
        self._asked: Any = 0

    def stop(self, signal_name: str | None) -> str | None:
        """Returns the signal that ends the run at this boundary, and its process; None = continue.

        All processes call this method at the same boundaries, after every dispatch and every batch
        of an evaluation, and get the same answer. The answer is a maximum over the devices, sent
        after one dispatch and read after the next dispatch is sent. So it is one boundary old, and
        nothing waits for it. `multihost_utils.reached_preemption_sync_point` is not used: its
        notifier takes over SIGTERM, ignores Ctrl-C, and covers steps only.
        """
        if not self.watch:
            return signal_name
        value = (
            int(signal.Signals[signal_name]) * self.watch.count + self.watch.process
            if signal_name
            else 0
        )
        asked, self._asked = self._asked, _largest(value)
        number, process = divmod(int(jax.device_get(asked)), self.watch.count)
        return f"{signal.Signals(number).name} in process {process}" if number else None

    def barrier(self, what: str) -> None:
        """Waits until all processes are here. All must call `barrier`, `broadcast` and `collect` in
        the same order.

        Raises RestartMe if a process did not come in time; the message names the missing processes
        and `what`, the work before the barrier.
        """
        if not self.watch:
            return
        self._meetings += 1
        try:
            _client().wait_at_barrier(f"xlnet_jax/{self._meetings}", int(self.patience * 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            # The error text names some of the missing processes, one per line.
            missing = sorted(map(int, re.findall(r"^\d+$", str(error), re.M)))
            named = ", ".join(map(self.watch.name_of, missing))
            raise RestartMe(
                f"{what}: waited {self.patience:g} s (distributed.rendezvous_seconds) for process "
                f"{named or '?'}; rerun the same command on every host to resume"
            ) from error
        if self.watch.process == 0:
            # All processes are here, so they have read the texts of the previous meeting.
            _client().key_value_delete(f"xlnet_jax/{self._meetings - 1}")

    def broadcast(self, text: str, what: str = "starting") -> str:
        """Waits like `barrier` and returns the text of process 0 in all processes."""
        if not self.watch:
            return text
        key = f"xlnet_jax/{self._meetings + 1}/0"
        if self.watch.process == 0:
            # The service does not distinguish an empty value from a missing value.
            _client().key_value_set(key, f"={text}")
        self.barrier(what)
        return text if self.watch.process == 0 else _client().key_value_try_get(key)[1:]

    def collect(self, text: str, what: str = "starting") -> list[str]:
        """Waits like `barrier`. Returns the texts of all processes, in process order, in process 0;
        [] in the others.
        """
        if not self.watch:
            return [text]
        folder = f"xlnet_jax/{self._meetings + 1}"
        _client().key_value_set(f"{folder}/{self.watch.process}", f"={text}")
        self.barrier(what)
        # A single request: a request for each of 1,000 processes took 240 s of processor time.
        found = _client().key_value_dir_get(folder) if self.watch.process == 0 else []
        texts = {int(key.rpartition("/")[2]): text for key, text in found}
        return [texts[process][1:] for process in sorted(texts)]


def _client() -> Any:
    """The client of JAX's coordination service: barriers and texts without devices.

    Uses a private variable (checked with JAX 0.10.2 and 0.11.0): `multihost_utils` offers both only
    as collective operations.
    """
    from jax._src.distributed import global_state

    return global_state.client


def _largest(value: int) -> jax.Array:
    """The maximum of `value` over all processes, computed by the devices. This function waits for
    the result only on CPUs (`mesh.settled`).
    """
    mesh = Mesh(np.array(available_devices()), ("devices",))
    spread = NamedSharding(mesh, PartitionSpec("devices"))
    whole = NamedSharding(mesh, PartitionSpec())
    values = jax.make_array_from_callback(
        (mesh.size,), spread, lambda _: np.full(1, value, np.int32)
    )
    with jax.set_mesh(mesh):
        return settled(jax.jit(jnp.max, out_shardings=whole)(values))


def _common_values(config: Config, me: ProcessInfo) -> Json:
    """The values that must be equal in all processes: the configuration and the versions."""
    values = {name: value for name, value in configs.flat(config).items() if name not in MAY_DIFFER}
    return values | {
        "the port of distributed.coordinator": me.coordinator.rpartition(":")[2],
        "the version of xlnet_jax": xlnet_jax.__version__,
        "the version of jax": jax.__version__,
        "the version of jaxlib": jax.lib.__version__,
        "the version of Python": platform.python_version(),
        "JAX_ENABLE_X64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
    }


@contextlib.contextmanager
def session(config: Config, identity: Json) -> Iterator[Session]:
    """Starts the processes of a run together, before any device is used, and ends them together.

    If an error leaves this context, printing it also ends the other processes. The command line
    then ends this process at once: JAX would wait for the others at a normal exit. Raises BadInput
    and RestartMe like `rendezvous.Watch.meet`.

    Args:
      identity: values that must be equal in all processes, besides the configuration and the
        versions.
    """
    me = find_process_info(config)
    if me is None:
        messages.inform(None)
        yield Session()
        return
    given = config.distributed
    watch = Watch(me, _common_values(config, me) | identity, given)
    messages.inform(watch.leave, me.process)
    watch.meet()
    log.info("process %d of %d, coordinator %s", me.process, me.processes, me.coordinator)
    _keep_stdout()
    hold_aborts()
    try:
        _start_jax(config, me)
        processes = Session(watch, given.rendezvous_seconds)
        # The first collective operation connects all devices. It runs now, while all processes are
        # here.
        jax.block_until_ready(_largest(0))
        yield processes
        # If a process does not get here, the watch ends the processes that wait for it.
        jax.distributed.shutdown()
    except XLNetError:
        raise
    except Exception as error:
        # If a host is lost, an operation may fail before the watch notices the loss and ends this
        # process with 42. Its type is not a sign: JAX raises some errors of Gloo as ValueError.
        lost = "RESOURCE_EXHAUSTED" not in str(error)
        seconds = SETTLE_SECONDS + lost * given.heartbeat_seconds
        log.error(
            "%s; waiting %.0f s for news of a lost process, which may be the cause",
            summary(error),
            seconds,
        )
        time.sleep(seconds)
        raise
    watch.leave(0, "")
    messages.inform(None)
    watch.close()


def announce(config: Config | None, overrides: Sequence[str], code: int, line: str) -> None:
    """Tells the other processes of an error before the `session`, in which they would wait for this
    process in vain.

    Waits for them until a signal comes, at most `distributed.rendezvous_seconds`. With code 42 it
    waits at most `GRACE_SECONDS`, because the others then end with 42 anyway. If no `config` could
    be loaded, the number of this process comes from `overrides`, the environment or the cluster.
    """
    try:
        if config is None:
            keys = [word for word in overrides if word.startswith("--config.distributed.")]
            config = configs.override(Config(), keys)
        if code == RestartMe.exit_code:
            config = config.changed(distributed={"rendezvous_seconds": GRACE_SECONDS})
        me = find_process_info(config, any_number=True)
    except XLNetError:
        return  # without valid settings the other processes are unknown; `line` names the error
    if me is None:
        return
    watch = Watch(me, {}, config.distributed)
    log.info(
        "telling the other processes, as soon as they come (%g s at most)",
        config.distributed.rendezvous_seconds,
    )
    main = threading.current_thread() is threading.main_thread()
    # In a container SIGTERM would have no effect without a handler.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
    try:
        watch.announce(code, line)
    except KeyboardInterrupt:
        log.warning("a signal: not all of the other processes were told")
    finally:
        if main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        watch.close()


def hold_aborts() -> None:
    """Delays an abort of this process by six seconds.

    If process 0 and its JAX coordination service are lost, JAX calls abort() in all other processes
    at once. The watch ends the process with a clear message and exit code 42, but may be slower.
    JAX has no option that prevents the abort: `jax_enable_recoverability` does not cover process 0,
    `missed_heartbeat_callback` cannot be a Python function (std::bad_cast, jaxlib 0.10), and
    abort() overrides blocked and ignored signals. The handler is libc's sleep(), called with the
    signal's number, 6. An abort for any other reason proceeds after the delay.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _start_jax(config: Config, me: ProcessInfo) -> None:
    given = config.distributed
    # JAX's notifier would take over SIGTERM, which run/signals.py handles; the processes agree in
    # `Session.stop`.
    jax.config.update("jax_enable_preemption_service", False)
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):  # type: ignore[attr-defined]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        me.coordinator,
        me.processes,
        me.process,
        me.devices,
        # Longer than the limit of the watch: the watch must be first, since it names the process.
        heartbeat_timeout_seconds=int(3 * given.heartbeat_seconds) + 10,
        initialization_timeout=int(given.rendezvous_seconds) + 1,
        shutdown_timeout_seconds=int(given.rendezvous_seconds) + 1,
        cluster_detection_method="deactivate",
    )


def _keep_stdout() -> None:
    """Redirects output of libraries to stderr: Gloo greets every peer on stdout, where `--json`
    prints one object.
    """
    sys.stdout.flush()
    # From here on only this program writes to stdout.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
