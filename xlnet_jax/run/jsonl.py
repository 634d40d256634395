"""Values per step as JSON lines: one file on disk; in a bucket, which cannot append, a few objects.

On disk `metrics.jsonl` grows line by line. In a bucket the folder `metrics/` replaces that file, with parts named after
their first step. Every flush writes only the last part again, until it has `PART_BYTES`; so a long run neither sends
all its lines repeatedly nor leaves one object per flush.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Any

from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")

PART_BYTES = 1 << 20
"""A part with this many bytes is complete: about 3000 steps."""
FILE_BYTES = 1 << 13
"""This many bytes are written to a file on disk without a flush, for users who follow the file."""


class JsonlFile:
    """Lines of a file on disk. Lines of steps after `step` are removed first."""

    def __init__(self, path: str, step: int) -> None:
        cut_back(path, step)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._end = self._file.seek(0, os.SEEK_END)
        self._data = b""

    def append(self, values: dict[str, Any]) -> None:
        """Adds one line."""
        self._data += json.dumps(values).encode() + b"\n"
        if len(self._data) >= FILE_BYTES:
            try:
                self._write()
            except OSError as error:
                # `flush` tries again, and raises.
                log.warning("%s: %s", self._file.name, error)

    def _write(self) -> None:
        """All or nothing: on a full disk the partial lines are cut off, and all lines stay in memory."""
        try:
            rest = memoryview(self._data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(self._data)
        self._data = b""

    def flush(self) -> None:
        """Writes to the disk, with fsync."""
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file; unflushed lines are lost."""
        self._file.close()


class JsonlParts:
    """Lines in parts in a bucket. Lines of steps after `step` are removed first."""

    def __init__(self, path: str, step: int) -> None:
        self._folder = folder_of(path)
        self._first: int | None = None  # first step of the current part; None = the next line starts a part
        self._text = ""
        self._changed = False
        for name in sorted(_parts(self._folder), reverse=True):
            if _first_step(name) > step:
                files.remove(f"{self._folder}/{name}")
                continue
            # The parts before it have earlier steps.
            self._go_on(name, step)
            return

    def _go_on(self, name: str, step: int) -> None:
        text = files.read(f"{self._folder}/{name}").decode()
        kept = [line for line in text.splitlines(keepends=True) if json.loads(line)["step"] <= step]
        self._first, self._text = _first_step(name), "".join(kept)
        self._changed = self._text != text
        self.flush()

    def append(self, values: dict[str, Any]) -> None:
        """Adds one line."""
        if self._first is None:
            self._first = values["step"]
        self._text += json.dumps(values) + "\n"
        self._changed = True

    def flush(self) -> None:
        """Writes to the bucket, and starts the next part if this one is full."""
        if self._changed and self._first is not None:
            files.write(f"{self._folder}/{_name(self._first)}", self._text.encode())
            self._changed = False
        if len(self._text) >= PART_BYTES:
            self._first, self._text = None, ""

    def close(self) -> None:
        """Does nothing: no file is open. Unflushed lines are lost."""


def open_jsonl(path: str, step: int) -> JsonlFile | JsonlParts:
    """Opens `path`, a name as on disk, to append lines after those of steps up to `step`."""
    return JsonlFile(path, step) if files.at(path).appends else JsonlParts(path, step)


def read_jsonl(path: str) -> list[dict[str, Any]]:
    """The complete lines of a file or of its parts, without a line that a crash cut off. Empty if there is no file."""
    if not files.at(path).appends:
        folder = folder_of(path)
        parts = [files.read(f"{folder}/{name}").decode() for name in sorted(_parts(folder))]
        return [json.loads(line) for text in parts for line in text.splitlines()]
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")[:-1]
    return [values for number, line in enumerate(lines, 1) if (values := _values(path, number, line)) is not None]


def _values(path: str, number: int, line: str) -> dict[str, Any] | None:
    """The values of a line; None, with a warning, if a crash of the machine has left something else in its place."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if isinstance(values, dict) and isinstance(values.get("step"), int):
        return values
    log.warning("%s: line %d is damaged and is ignored", path, number)
    return None


def cut_back(path: str, step: int) -> None:
    """Removes the lines of steps after `step` from a file on disk: writes a new file and renames it."""
    lines = read_jsonl(path)
    kept = [line for line in lines if line["step"] <= step]
    if os.path.exists(path):
        files.write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def folder_of(path: str) -> str:
    """The folder in a bucket with the parts of the file that is `path` on disk."""
    return path.removesuffix(".jsonl")


def _parts(folder: str) -> list[str]:
    return [name for name in files.listing(folder) if name.endswith(".jsonl") and name[:-6].isdigit()]


def _name(first: int) -> str:
    return f"{first:012d}.jsonl"


def _first_step(name: str) -> int:
    return int(name.removesuffix(".jsonl"))
