"""How Orbax writes and reads arrays: in which chunks and by whom; where processes wait; what a
failure leaves.

Under data parallelism every process needs all parameters, and the bucket would send them to each.
Instead an array is read split over the devices that will hold copies of it (`mesh.spread`), and an
all-gather copies it to where it is wanted (`Checkpoints.gather`).

An array is stored in chunks, which can only be read whole. So it is split between chunks: no
process reads one twice, and none reads more than without the split, even if the checkpoint was
written by other devices. Orbax's own `use_load_and_broadcast` is not used: the hosts of one replica
read everything, a replica must be whole hosts, and the broadcast is part of the read, where a
process waits for others that may have found their files damaged.
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
    # Every replica writes a slice, but not of a bias: it would be a thousand slices of 96 bytes.
    saving = ocp.options.ArrayOptions.Saving(
        scoped_storage_options_creator=_chunks, min_slice_bytes_for_replica_parallel=2**16
    )
    return ocp.Context(
        array_options=ocp.options.ArrayOptions(saving=saving), async_options=_Async()
    )


def _chunks(key: Any, value: Any) -> Any:
    """Orbax's options for an array: chunks of at most 1 MiB, because a chunk can only be read
    whole: see `mesh.spread`.

    Not if a size is odd, such as a vocabulary of 30522 = 6 x 5087: Orbax would cut it into single
    rows.
    """
    del key
    even = all(size < 64 or size % 64 == 0 for size in value.shape)
    return ocp.options.ArrayOptions.Saving.StorageOptions(chunk_byte_size=2**20 if even else None)


class _Async(ocp.options.AsyncOptions):
    """Orbax's options, with `_barrier`, which only its older interface has (checked with
    orbax-checkpoint 0.12.8).
    """

    def v0(self) -> Any:
        return dataclasses.replace(super().v0(), barrier_sync_fn=_barrier)


def _barrier(*, key: str, timeout_ms: int) -> None:
    """Orbax's barrier, except in a thread of a save in which this process has failed.

    Orbax waits there for the other processes, which wait for this one to write its part: for 20
    minutes. The error ends the run in all of them instead.
    """
    failed = (
        sys.exception() is not None and threading.current_thread() is not threading.main_thread()
    )
    if not failed:
        multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def unless_late(hook: Callable[[Any], None], raised: Any) -> None:
    """`sys.unraisablehook` without one kind of traceback: after an error TensorStore calls back
    into an event loop of Orbax that is closed, once for each other array of the tree. The error
    itself is raised.
    """
    if not (
        isinstance(raised.exc_value, RuntimeError)
        and str(raised.exc_value) == "Event loop is closed"
    ):
        hook(raised)
