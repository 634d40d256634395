"""The static schedule of the fused kernels, from the text that libtpu writes while it compiles them.

libtpu packs the instructions of a kernel into bundles, and a core starts one bundle per cycle. So the bundles of a
program, each as often as its loops run, are the cycles that the kernel needs without stalls: a lower bound of its time.
A part under a condition counts as if the condition always held. On v4 and v5p a device has two cores, and libtpu has
already divided the programs of a kernel between them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator

_PREFIX = "xlnet-jax-schedule-"
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+ +([A-Z]{2})?\s*:\s*(>*)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test \*/")
_NAME = re.compile(r"\d+-(.*xlnet_.+)-\d+-final_bundles\.txt")


def prepare() -> pathlib.Path:
    """Sets the flags with which libtpu writes schedules, once in a process. Returns the folder, not yet there.

    Call this before libtpu is loaded. The texts of all operations multiply the time to compile; without `collected`
    they stay in the folder.
    """
    if folder := _folder():
        return folder
    folder = pathlib.Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}")
    ours = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
    # Of two equal flags libtpu takes the last.
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {ours}".strip()
    return folder


def _folder() -> pathlib.Path | None:
    """The folder of `prepare`."""
    found = re.search(rf"--xla_jf_dump_to=(\S*{_PREFIX}\S+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    return pathlib.Path(found[1]) if found else None


@contextlib.contextmanager
def collected() -> Iterator[dict[str, int]]:
    """After the block `bundles` of its Pallas kernels, by the name of their instruction; empty without `prepare`."""
    found: dict[str, int] = {}
    folder = _folder()
    if folder is None:
        yield found
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield found
        # Where a kernel was compiled again, the last one counts.
        for path in sorted(folder.iterdir()):
            if name := _NAME.fullmatch(path.name):
                found[name[1]] = bundles(path.read_text(encoding="utf-8", errors="replace"))
    finally:
        shutil.rmtree(folder)


def bundles(text: str) -> int:
    """Bundles that one call of a kernel executes on one core, each as often as its loops run; one per cycle.

    In the text `LB` marks the first bundle of a loop, and each `>` a loop around a bundle. Bundles of a loop that also
    start what follows it have one `>` less, so the loop ends with the last one that has all. The loop over the programs
    overlaps fetching, computing and storing in stages, so it has two turns more than programs. A loop whose number of
    turns depends on data counts once.
    """
    lines = [(line, found) for line in text.splitlines() if (found := _BUNDLE.match(line))]
    depths = [len(found[2]) for _, found in lines]
    starts = [n for n, (_, found) in enumerate(lines) if found[1] == "LB"]
    times = [1] * len(lines)
    for start in starts:
        depth = depths[start]
        after = next((n for n in starts if n > start and depths[n] <= depth), len(lines))
        end = max(n for n in range(start, after) if depths[n] >= depth)
        body = [line for line, found in lines[start : end + 1] if len(found[2]) == depth]
        tests = [int(test[1]) for line in body if (test := _EXIT.search(line))]
        staged = any("iteration index, stage" in line for line in body)
        turns = max(tests[-1] - 2 * staged, 1) if tests else 1
        times[start : end + 1] = [n * turns for n in times[start : end + 1]]
    return sum(times)
