"""Worker processes: how many a machine bears, and that none outlives the process that started it."""

from __future__ import annotations

import multiprocessing.connection
import os
import threading


def cores() -> int:
    """Cores this process may run on: a scheduler may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def die_with_parent() -> None:
    """Ends this worker process when the one that started it is killed; it would wait for work for ever.

    In a process that is nobody's worker it does nothing.
    """

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
