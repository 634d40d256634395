"""Bounds on the time of a step, from the work of each operation of its scheduled program.

An operation works on the core (bundles or products at the clock), in HBM (bytes at its bandwidth)
and on the network (its collective at the bandwidth). Its lower time is the longest of the three
times. Its upper time is their sum, or the compiler's estimate of cycles if that is more, because
the estimate includes copies in small pieces. Operations run one after the other. Only an operation
with a start and a done in the program runs beside the work between them, with the bandwidth left
over. Bandwidths are the published ones; neither time includes stalls or pauses between operations.
"""

from __future__ import annotations

import collections
import dataclasses
import re

import numpy as np

from xlnet_jax.aot import hlo, traffic
from xlnet_jax.aot.schedule import Schedule
from xlnet_jax.aot.topology import Chip
from xlnet_jax.storage.files import Json

CORE, HBM, ICI, DCN = range(4)
_NETWORK = np.array([0, 0, 1, 1])
_MOST = 10
"""Operations in the table of the upper time."""
_RING = {"all-reduce": 2, "all-to-all": 1, "all-gather": 1, "reduce-scatter": 1}
"""Factors of ring traffic: a device of n sends factor * (n - 1) / n * bytes of the array."""


@dataclasses.dataclass
class Cost:
    """Seconds of a part of a program."""

    time: float = 0.0
    busy: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(4))
    """Seconds of work by CORE, HBM, ICI and DCN."""
    hidden: float = 0.0
    """Seconds of collectives that overlap with other work."""
    parts: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter
    )
    """Seconds of `time` by kind and name of the operations."""

    def add(self, part: Cost, times: int = 1) -> None:
        """Adds the cost of `times` runs of `part`."""
        self.time = self.time + times * part.time
        self.busy = self.busy + times * part.busy
        self.hidden += times * part.hidden
        for name, seconds in part.parts.items():
            self.parts[name] += times * seconds


def _cost(time: float, busy: np.ndarray, kind: str, label: str) -> Cost:
    """Returns the cost of one operation."""
    return Cost(time, busy, parts=collections.Counter({(kind, label): time}))


@dataclasses.dataclass(frozen=True)
class CostModel:
    """A program with schedules, chip and mesh."""

    program: hlo.Program
    schedules: dict[str, Schedule]
    """Schedules by the name of the instruction."""
    chip: Chip
    axes: dict[str, int]
    """Names and sizes of the mesh, in order."""
    places: np.ndarray
    """Torus coordinates of the chip of each device, in mesh order."""
    blocks: int
    """Most turns of a kernel loop whose number of turns depends on data."""

    def result(self, steps: int, least: float) -> Json:
        """Returns the keys of docs/compile.md, per step of a program of `steps` steps; `least` is
        the seconds of a step at the published peak.
        """
        lower, upper = (self.run(self.program.entry, bound) for bound in (False, True))
        kernels = {one.name: self.schedules[one.name] for one in self.program.kernels()}
        milliseconds = {
            "compute_ms": lower.busy[CORE],
            "memory_ms": lower.busy[HBM],
            "collectives_ms": lower.busy[ICI:].sum(),
            "hidden_ms": lower.hidden,
            "lower_ms": lower.time,
            "upper_ms": upper.time,
        }
        kinds: collections.Counter[str] = collections.Counter()
        for (kind, _), seconds in upper.parts.items():
            kinds[kind] += seconds

        def per_step(seconds: float) -> float:
            return float(seconds) / steps * 1e3

        return {
            **{name: per_step(seconds) for name, seconds in milliseconds.items()},
            "mfu": least * steps / float(upper.time),
            "upper_by_kind_ms": {kind: per_step(seconds) for kind, seconds in kinds.most_common()},
            "operations": [
                {
                    "kind": part[0],
                    "lower_ms": per_step(lower.parts[part]),
                    "upper_ms": per_step(seconds),
                    "operation": part[1],
                }
                for part, seconds in upper.parts.most_common(_MOST)
                if seconds
            ],
            "data_dependent_loops": [
                {"kernel": name, "most_turns": self.blocks}
                for name, each in kernels.items()
                if each.repeated
            ],
            "units": {name: each.units for name, each in kernels.items()},
        }

    def run(self, name: str, upper: bool) -> Cost:
        """Returns the cost of one run of a computation. A condition takes the shortest branch, or
        for `upper` the longest.
        """
        body = self.program.computations[name]
        total = Cost()
        pieces = collections.Counter(self.program.chain(one) for one in body.values())
        seen: collections.Counter[str | None] = collections.Counter()
        running: dict[str | None, tuple[str, np.ndarray]] = {}

        def start(name: str | None, one: hlo.Instruction, work: np.ndarray) -> None:
            running[name], total.busy = (one.label, work), total.busy + work

        def follow(part: Cost) -> None:
            idle = np.maximum(part.time - part.busy, 0)
            for _, left in running.values():
                used = np.minimum(left, idle)
                idle, left[:] = idle - used, left - used
                total.hidden += used[ICI:].sum()
            total.add(part)

        def wait(name: str | None) -> None:
            label, left = running.pop(name)
            kind = "memory" if left.argmax() == HBM else "collectives"
            follow(_cost(left.max(), left, kind, label))
            # `start` has counted it as busy.
            total.busy = total.busy - left

        for one in body.values():
            inside = [self.run(each, upper) for each in hlo.called(one) if one.opcode != "fusion"]
            if one.opcode == "while":
                turns = self.program.trip_count(name, one)
                part = Cost()
                part.add(self.run(hlo.attribute(one, "body"), upper), turns)
                part.add(self.run(hlo.attribute(one, "condition"), upper), turns + 1)
                follow(part)
            elif inside and one.opcode in ("call", "conditional"):
                follow((max if upper else min)(inside, key=lambda part: part.time))
            elif one.opcode.endswith("-start") or one.opcode == "send":
                start(
                    one.name,
                    one,
                    sum((part.busy for part in inside), self._work(name, one, upper)),
                )
            elif one.opcode.endswith(("-update", "-done")):
                if one.operands[0] in running and one.opcode.endswith("-done"):
                    wait(one.operands[0])
                elif one.operands[0] in running:
                    running[one.name] = running.pop(one.operands[0])
            else:
                chain = self.program.chain(one)
                work = self._work(name, one, upper)
                # The first piece starts the collective, the last waits for it.
                network = work * _NETWORK if chain and pieces[chain] > 1 else 0 * work
                if network.any() and chain not in running:
                    start(chain, one, network)
                follow(self._operation(one, work - network, upper))
                seen[chain] += 1
                if chain in running and seen[chain] == pieces[chain]:
                    wait(chain)
        for started in list(running):
            wait(started)
        return total

    def _operation(self, one: hlo.Instruction, work: np.ndarray, upper: bool) -> Cost:
        estimate = re.search(r'"estimated_cycles":"(\d+)"', one.attributes)
        # The estimate assumes that all arrays are in HBM, so it is useless if no array is in HBM.
        cycles = int(estimate[1]) if estimate and work[HBM] else 0
        most = max(work.sum(), cycles / self.chip.clock)
        if hlo.KERNEL in one.attributes:
            kind = "kernels"
        elif work[ICI:].any():
            kind = "collectives"
        elif one.name in self.schedules and self.schedules[one.name].products:
            kind = "products"
        else:
            kind = "memory" if most > 2 * work[CORE] else "vector"
        return _cost(most if upper else work.max(), work, kind, one.label)

    def _work(self, name: str, one: hlo.Instruction, upper: bool) -> np.ndarray:
        """Returns seconds of work of one instruction."""
        chip, body, work = self.chip, self.program.computations[name], np.zeros(4)
        schedule = self.schedules.get(one.name, Schedule(0))
        further = (
            (self.blocks - 1) * schedule.repeated if upper and hlo.KERNEL in one.attributes else 0
        )
        work[CORE] = max(schedule.bundles + further, schedule.products) / chip.clock
        work[HBM] = traffic.bytes_moved(self.program, body, one) / (
            chip.hbm_bandwidth / chip.devices
        )
        for found in self.program.collectives_of(name, one, self.axes):
            wire = found.bytes * (
                _RING[found.kind] * (found.group - 1) / found.group if found.kind in _RING else 1
            )
            # Without a published rate the collective is left out.
            rate = (
                chip.ici_bandwidth / 2 * self._links(found.axis)
                if found.network == "ici"
                else chip.dcn_bandwidth
            )
            work[ICI if found.network == "ici" else DCN] += (
                wire / (rate / chip.devices) if rate else 0
            )
        return work

    def _links(self, axes: str) -> float:
        """Returns the share of a chip's links that a ring along mesh axes has.

        On each side of the torus along the ring, both links count if the ring goes around the side.
        Only one link counts along a part of the side, or if the ends of the side are not joined.
        """
        grid = self.places.reshape(*self.axes.values(), -1)
        group = grid[tuple(slice(None) if name in axes.split("+") else 0 for name in self.axes)]
        whole, along = (
            np.ptp(each.reshape(-1, grid.shape[-1]), axis=0) + 1 for each in (grid, group)
        )
        around = (along == whole) & (whole % self.chip.ring == 0)
        return max(((along > 1) * (1 + around)).sum(), 1) / self.chip.links


def complete_schedules(program: hlo.Program, schedules: dict[str, Schedule]) -> dict[str, Schedule]:
    """Adds the schedules of equal operations, which libtpu writes once. Raises RuntimeError if a
    kernel has no schedule.
    """
    every = {
        one.name: program.identity(body, one)
        for body in program.computations.values()
        for one in body.values()
    }
    first = {identity: schedules[name] for name, identity in every.items() if name in schedules}
    found = {
        name: first[identity] for name, identity in every.items() if identity in first
    } | schedules
    for one in program.kernels():
        if one.name not in found:
            raise RuntimeError(
                f"libtpu wrote no schedule of the kernel {one.name}; "
                "libtpu was loaded before aot.schedule.request_schedules()"
            )
    return found
