"""As many workers as a scheduler gives cores, which end with the process that started them."""

import multiprocessing
import os
import threading
import types

from xlnet_jax.data import workers


def test_the_cores_are_those_of_the_scheduler(monkeypatch):
    """Not all of the machine: a container or a job may use a part of them."""
    some = set(range(1 + (os.cpu_count() or 1)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: some)
    assert workers.cores() == len(some)


def test_a_worker_ends_with_its_parent(monkeypatch):
    """The whole process; fails if only the thread that waits for the parent ends."""
    alive, parent = os.pipe()
    ended = threading.Event()
    started = types.SimpleNamespace(sentinel=alive)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: started)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    workers.die_with_parent()
    assert not ended.wait(0.1)
    os.close(parent)
    assert ended.wait(10)
    os.close(alive)
