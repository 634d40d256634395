"""Orbax's options: the chunks of arrays, the barriers of processes, and tracebacks after errors.

Under data parallelism every process needs all parameters, and the bucket would send all of them to
each process. Instead the devices that will hold copies of an array read different parts of it
(`mesh.spread`), and an all-gather completes the copies (`Checkpoints.gather`).

An array is stored in chunks, which can only be read whole. So an array is split only between
chunks: no process reads a chunk twice or reads more than without the split, even if other devices
wrote the checkpoint. Orbax's `use_load_and_broadcast` is not used. Its broadcast is part of the
read, so a process would wait for processes that may have found damaged files. Also, the hosts of
one replica would read everything, and a replica must consist of whole hosts.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from typing import Any

from orbax.checkpoint import multihost
from orbax.checkpoint import v1 as ocp


def context() -> ocp.Context:
    """Orbax's options for the saves of a run."""
    # Every replica writes a slice of a large array. A bias is not sliced: a thousand replicas would
    # write slices of 96 bytes.
    saving = ocp.options.ArrayOptions.Saving(
        scoped_storage_options_creator=_chunks, min_slice_bytes_for_replica_parallel=2**16
    )
    return ocp.Context(
        array_options=ocp.options.ArrayOptions(saving=saving), async_options=_Async()
    )


def _chunks(key: Any, value: Any) -> Any:
    """Orbax's options for an array: chunks of at most 1 MiB, because a chunk can only be read
    whole (see `mesh.spread`).

    An array with a size such as 30522 = 6 x 5087 is a single chunk: Orbax would cut it into single
    rows.
    """
    del key
    even = all(size < 64 or size % 64 == 0 for size in value.shape)
    return ocp.options.ArrayOptions.Saving.StorageOptions(chunk_byte_size=2**20 if even else None)


class _Async(ocp.options.AsyncOptions):
    """Orbax's asynchronous options with `_barrier`, which only its older interface can set (checked
    with orbax-checkpoint 0.12.8).
    """

    def v0(self) -> Any:
        return dataclasses.replace(super().v0(), barrier_sync_fn=_barrier)


def _barrier(*, key: str, timeout_ms: int) -> None:
    """Calls Orbax's barrier, except in the thread of a save that has failed in this process.

    In that thread Orbax would wait 20 minutes for the other processes, which wait for the part of
    this process. Without the wait, the error ends the run in all processes.
    """
    failed = (
        sys.exception() is not None and threading.current_thread() is not threading.main_thread()
    )
    if not failed:
        multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def unless_late(hook: Callable[[Any], None], raised: Any) -> None:
    """Calls `hook`, the previous `sys.unraisablehook`, except for late calls of TensorStore. After
    an error, TensorStore calls a closed event loop of Orbax for each other array of the tree. The
    error itself is raised elsewhere.
    """
    if not (
        isinstance(raised.exc_value, RuntimeError)
        and str(raised.exc_value) == "Event loop is closed"
    ):
        hook(raised)
