"""The static schedule of the fused kernels, from the text that libtpu writes while it compiles them.

libtpu packs the instructions of a kernel into bundles, and a core starts one bundle per cycle. So the bundles of a
program, each as often as its loops run, are the cycles that the kernel needs without stalls: a lower bound of its time.
A part under a condition counts as if the condition always held. On v4 and v5p a device has two cores, and libtpu has
already divided the programs of a kernel between them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator

PASSES = "final_"
"""The texts after the last pass: the bundles, and the use of the units in each of them."""
SPILLS = "VSTORE:SPILL"
"""The unit that stores registers that do not suffice."""
_PREFIX = "xlnet-jax-schedule-"
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+ +([A-Z]{2})?\s*:\s*(>*)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test \*/")
_NAME = re.compile(r"\d+-(.+)-\d+-final_(bundles|hlo-static-per-bundle-utilization)\.txt")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """One call of a kernel, on one core."""

    bundles: int
    """Executed, each as often as its loops run; one per cycle."""
    use: dict[str, float]
    """Executed operations by unit, over what all bundles have room for; empty if there is no text of it."""
    spills: int
    """Executed stores of registers that do not suffice."""
    unknown_loops: int
    """Loops whose number of turns depends on data; they count once."""


def prepare() -> pathlib.Path:
    """Sets the flags with which libtpu writes schedules, once in a process. Returns the folder, not yet there.

    libtpu reads them when it is loaded, so call this before the first topology. It writes the text of every operation,
    which multiplies the time to compile. A compilation outside of `collected` leaves its texts in the folder.
    """
    if folder := _folder():
        return folder
    folder = pathlib.Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}")
    ours = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={PASSES}"
    # Of two equal flags libtpu takes the last.
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {ours}".strip()
    return folder


def _folder() -> pathlib.Path | None:
    """The folder of `prepare`; libtpu writes nothing if a later flag names another one."""
    folders = re.findall(r"--xla_jf_dump_to=(\S+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    folder = pathlib.Path(folders[-1]) if folders else None
    return folder if folder and folder.name.startswith(_PREFIX) else None


@contextlib.contextmanager
def collected() -> Iterator[dict[str, Schedule]]:
    """The schedules of the Pallas kernels compiled in the block, by the name of their instruction, after its end.

    Empty without `prepare`. The folder exists only during the block.
    """
    found: dict[str, Schedule] = {}
    folder = _folder()
    if folder is None:
        yield found
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield found
        found |= read(folder)
    finally:
        shutil.rmtree(folder)


def read(folder: pathlib.Path) -> dict[str, Schedule]:
    """The schedules in a folder; the last one where a kernel was compiled again."""
    texts: dict[str, dict[str, str]] = {}
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name and "xlnet_" in name[1]:
            texts.setdefault(name[1], {})[name[2]] = path.read_text(encoding="utf-8", errors="replace")
    return {
        name: parse(each["bundles"], each.get("hlo-static-per-bundle-utilization", ""))
        for name, each in texts.items() if "bundles" in each
    }  # fmt: skip


def parse(bundles: str, utilization: str = "") -> Schedule:
    """Counts the bundles of a `final_bundles` text, and the operations of its utilization text."""
    times, unknown = _executions(bundles)
    rows = [[int(word) for word in line.split()] for line in utilization.splitlines() if re.match(r"\s*\d", line)]
    use: dict[str, float] = {}
    spills = 0
    if rows:
        names = [name.strip() for name in next(x for x in utilization.splitlines() if "MATMUL" in x).split(",")]
        capacity, *per_bundle = rows
        if len(per_bundle) != len(times):
            raise ValueError(f"{len(per_bundle)} rows of utilization for {len(times)} bundles")
        totals = [sum(n * x for n, x in zip(times, column, strict=True)) for column in zip(*per_bundle, strict=True)]
        spills = totals[names.index(SPILLS)]
        use = {name: total / (room * sum(times)) for name, total, room in zip(names, totals, capacity, strict=True)}
    return Schedule(sum(times), use, spills, unknown)


def _executions(text: str) -> tuple[list[int], int]:
    """How often each bundle runs, in order, and the number of loops with an unknown number of turns.

    `LB` marks the first bundle of a loop, and each `>` one loop around a bundle. Bundles of a loop that also start what
    follows it have one `>` less, so the loop ends with the last one that has all. The loop over the programs overlaps
    fetching, computing and storing in stages, so it has two turns more than programs.
    """
    lines = [(line, found) for line in text.splitlines() if (found := _BUNDLE.match(line))]
    depths = [len(found[2]) for _, found in lines]
    starts = [n for n, (_, found) in enumerate(lines) if found[1] == "LB"]
    times, unknown = [1] * len(lines), 0
    for start in starts:
        depth = depths[start]
        after = next((n for n in starts if n > start and depths[n] <= depth), len(lines))
        end = max(n for n in range(start, after) if depths[n] >= depth)
        body = [
            line for (line, _), its in zip(lines[start : end + 1], depths[start : end + 1], strict=True) if its == depth
        ]
        tests = [int(test[1]) for line in body if (test := _EXIT.search(line))]
        unknown += not tests
        staged = any("iteration index, stage" in line for line in body)
        turns = max(tests[-1] - 2 * staged, 1) if tests else 1
        times[start : end + 1] = [n * turns for n in times[start : end + 1]]
    return times, unknown
