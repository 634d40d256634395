"""The static schedule of every operation, from the text that libtpu writes while it compiles.

libtpu packs the instructions of an operation into bundles, and a core starts one bundle per cycle;
on v3 `vdelay` in a bundle adds cycles. So the number of bundles, each times the turns of its loops,
is the number of cycles without stalls: a lower bound. Code under a condition counts as if the
condition always held. On v4 and v5p a device has two cores, and libtpu has divided the work between
them.

Products go through queues: on v5e, v5p and TPU7x libtpu starts them faster than the units take
them, and the core waits. So products are counted too. A register has 8 rows of float32 or 16 of
bfloat16; a unit of 128 x 128 takes one row per cycle, a unit of 256 x 256 (`mubr`) two. A product
of transposed rows (`lmr`) has 8 rows, as many as results. libtpu starts products at these intervals
on v3, v4 and v6e, and with the clocks of topology.py the intervals give the published peaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator

import numpy as np

_PREFIX = "xlnet-jax-schedule-"
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+ +([A-Z]{2})?\s*:\s*(>*)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder (%\w+), (\d+) /\* loop exit test \*/")
_DELAY = re.compile(r"= vdelay (\d+)")
_PRODUCT = re.compile(r"= (vmatmul[\w.]*)")
_UNIT = re.compile(r"\bmxu\d")
_UNITS = "hlo-static-per-bundle-utilization"
_NAME = re.compile(rf"\d+-(.+)-\d+-final_(bundles|{_UNITS})\.txt")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """One call of an operation on one core."""

    bundles: int
    """Cycles of the bundles, times the turns of their loops; a loop whose turns depend on data
    counts once.
    """
    repeated: int = 0
    """Cycles of the bundles in loops whose turns depend on data: each further turn adds as many."""
    units: dict[str, float] = dataclasses.field(default_factory=dict)
    """Used share of the slots of each unit: MATMUL, MATPUSH, XLU, VALU, VLOAD, VSTORE and
    others.
    """
    products: float = 0
    """Cycles for which products keep each unit busy."""


def request_schedules() -> pathlib.Path:
    """Sets the flags with which libtpu writes schedules, once in a process. Returns their folder,
    which does not exist yet.

    Call this before libtpu is loaded. Writing schedules multiplies the time to compile; without
    `collected` the texts stay in the folder.
    """
    if folder := _folder():
        return folder
    folder = pathlib.Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}")
    ours = (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        "--xla_jf_dump_llo_pass_label_regex=final_"
    )
    # Of two equal flags libtpu takes the last.
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {ours}".strip()
    return folder


def _folder() -> pathlib.Path | None:
    """Returns the folder of `request_schedules`; None before its first call."""
    found = re.search(
        rf"--xla_jf_dump_to=(\S*{_PREFIX}\S+)", os.environ.get("LIBTPU_INIT_ARGS", "")
    )
    return pathlib.Path(found[1]) if found else None


@contextlib.contextmanager
def collected() -> Iterator[dict[str, Schedule]]:
    """Yields a dict that gets the schedules of all operations that the block compiled; it stays
    empty without `request_schedules`.
    """
    found: dict[str, Schedule] = {}
    folder = _folder()
    if folder is None:
        yield found
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    flags = os.environ["LIBTPU_INIT_ARGS"]
    # libtpu has read these flags. `train` sets none of them, so they must not enter the key of
    # JAX's cache.
    os.environ["LIBTPU_INIT_ARGS"] = flags[: flags.index(f"--xla_jf_dump_to={folder}")].strip()
    try:
        yield found
        found |= read_schedules(folder)
    finally:
        os.environ["LIBTPU_INIT_ARGS"] = flags
        shutil.rmtree(folder)


def read_schedules(folder: pathlib.Path) -> dict[str, Schedule]:
    """Reads the schedules in a folder, by the name of their instruction; libtpu writes one schedule
    for equal operations.
    """
    texts: dict[str, dict[str, str]] = {}
    # If an operation was compiled again, the last schedule counts.
    for path in sorted(folder.iterdir()):
        if name := _NAME.fullmatch(path.name):
            texts.setdefault(name[1], {})[name[2]] = path.read_text(
                encoding="utf-8", errors="replace"
            )
    return {name: parse(each["bundles"], each.get(_UNITS, "")) for name, each in texts.items()}


def parse(text: str, units: str = "") -> Schedule:
    """Reads the schedule in a text of bundles; `units` has the used slots of each bundle.

    In the text `LB` marks the first bundle of a loop, and each `>` a loop around a bundle. A bundle
    that also starts the code after the loop has one `>` less, so the loop ends with the last bundle
    that has all its `>`. The loop over the programs overlaps fetching, computing and storing in
    stages, so it has two turns more than programs.
    """
    lines = [(line, found) for line in text.splitlines() if (found := _BUNDLE.match(line))]
    depths = [len(found[2]) for _, found in lines]
    starts = [n for n, (_, found) in enumerate(lines) if found[1] == "LB"]
    times = [1] * len(lines)
    unknown = [False] * len(lines)
    for start in starts:
        depth = depths[start]
        after = next((n for n in starts if n > start and depths[n] <= depth), len(lines))
        end = max(n for n in range(start, after) if depths[n] >= depth)
        body = [line for line, found in lines[start : end + 1] if len(found[2]) == depth]
        tests = [test for line in body if (test := _EXIT.search(line))]
        turns = 1
        if tests:
            index, bound = tests[-1].groups()
            # An inner loop may read the index of the programs, but has no stages.
            staged = any(
                re.search(rf"{index} = [^;]*iteration index, stage", line) for line in body
            )
            turns = max(int(bound) - 2 * staged, 1)
        for n in range(start, end + 1):
            times[n] *= turns
            unknown[n] |= not tests
    often = [(n, line) for n, (line, _) in zip(times, lines, strict=True)]
    cycles = [n * (1 + sum(map(int, _DELAY.findall(line)))) for n, line in often]
    repeated = sum(itertools.compress(cycles, unknown))
    products = sum(n * _cycles(name) for n, line in often for name in _PRODUCT.findall(line))
    return Schedule(
        sum(cycles),
        repeated,
        _units(times, units),
        products / max(len(set(_UNIT.findall(text))), 1),
    )


def _cycles(product: str) -> float:
    return (8 if "f32" in product or ".lmr." in product else 16) / (2 if "mubr" in product else 1)


def _units(times: list[int], text: str) -> dict[str, float]:
    """Reads the used share of slots by unit from a text: names, capacities, a row per bundle."""
    if not text:
        return {}
    names = [
        name.strip()
        for name in next(line for line in text.splitlines() if "MATMUL" in line).split(",")
    ]
    room, *rows = [
        [int(word) for word in line.split()]
        for line in text.splitlines()
        if re.match(r"\s*\d", line)
    ]
    used = np.dot(times, rows).tolist()
    return {
        name: total / (slots * sum(times))
        for name, total, slots in zip(names, used, room, strict=True)
    }
