"""Values per step as JSON lines: one file on disk, parts in a bucket.

On disk `metrics.jsonl` grows line by line. In a bucket the folder `metrics/` replaces that file, with parts named after
their first step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Any

from xlnet_jax.run.append import AppendFile, AppendParts
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")

PART_BYTES = 1 << 20
"""A part with this many bytes is complete: about 3000 steps."""

STARTS = "runs.jsonl"
"""The only file of a work directory whose lines hold text; the others hold numbers."""


def open_jsonl(path: str, step: int) -> AppendFile | AppendParts:
    """Opens `path`, a name as on disk, to append lines (`to_line`). Lines of steps after `step` are removed first."""
    if files.at(path).appends:
        if os.path.exists(path):
            files.write(path, b"".join(to_line(line) for line in read_jsonl(path) if line["step"] <= step))
        return AppendFile(path)
    opened = AppendParts(lambda first: f"{_folder(path)}/{first:012d}.jsonl", PART_BYTES)
    for part in reversed(_parts(path)):
        first = int(os.path.basename(part).removesuffix(".jsonl"))
        if first > step:
            files.remove(part)
            continue
        for line in files.read(part).splitlines(keepends=True):
            if json.loads(line)["step"] <= step:
                opened.append(line, first)
        opened.flush()
        break  # the parts before it have earlier steps
    return opened


def to_line(values: dict[str, Any]) -> bytes:
    """The line of one step."""
    return json.dumps(values).encode() + b"\n"


def read_jsonl(path: str) -> list[dict[str, Any]]:
    """The complete lines of a file or of its parts, without a line that a crash cut off. Empty if there is no file."""
    if files.at(path).appends:
        content = files.read_if_there(path) or b""
    else:
        content = b"".join(files.read(part) for part in _parts(path))
    lines = content.decode(errors="replace").split("\n")[:-1]
    return [values for number, line in enumerate(lines, 1) if (values := _values(path, number, line)) is not None]


def _values(path: str, number: int, line: str) -> dict[str, Any] | None:
    """The values of a line; None, with a warning, if a crash of the machine has left something else in its place."""
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(line)
        known = isinstance(values, dict) and isinstance(values.get("step"), int)
        if known and (path.endswith(STARTS) or _numbers(values)):
            return values
    log.warning("%s: line %d is damaged and is ignored", path, number)
    return None


def _numbers(values: dict[str, Any]) -> bool:
    """Whether all values are numbers, booleans or null, or objects of these."""
    return all(_numbers(x) if isinstance(x, dict) else x is None or isinstance(x, int | float) for x in values.values())


def _folder(path: str) -> str:
    """The folder in a bucket with the parts of the file that is `path` on disk."""
    return path.removesuffix(".jsonl")


def _parts(path: str) -> list[str]:
    """The addresses of the parts, the first steps first."""
    names = [name for name in files.listing(_folder(path)) if name.endswith(".jsonl") and name[:-6].isdigit()]
    return [f"{_folder(path)}/{name}" for name in sorted(names)]
