"""Worker processes: the number of cores for them, and their end when their parent process ends."""

from __future__ import annotations

import multiprocessing.connection
import os
import threading


def cores() -> int:
    """Returns the number of cores that a scheduler lets this process run on."""
    return len(os.sched_getaffinity(0))


def die_with_parent() -> None:
    """Ends this process, if it is a worker, when its parent is killed; otherwise it would
    wait for work for ever.
    """

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
