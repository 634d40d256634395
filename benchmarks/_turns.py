"""Turns of sides that are compared: other work on the machine slows all of them down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """What one run of a side took, and what it returned."""

    seconds: float
    cpu_seconds: float
    result: Any


def timed(run: Callable[[], Any]) -> Turn:
    """Calls `run`, which waits for its result."""
    began, cpu = time.perf_counter(), time.process_time()
    result = run()
    return Turn(time.perf_counter() - began, time.process_time() - cpu, result)


def taken(sides: Mapping[Any, Callable[[], Turn]], rounds: int) -> dict[Any, list[Turn]]:
    """The turns of each side, one in each round."""
    turns: dict[Any, list[Turn]] = {side: [] for side in sides}
    for number in range(rounds):
        # Every other round backwards: no side always runs after the same other one.
        for side in list(sides)[:: -1 if number % 2 else 1]:
            turns[side].append(sides[side]())
    return turns
