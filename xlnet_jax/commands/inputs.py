"""What the commands about texts read: those that are given, and the lines or the JSON objects of `--input`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from xlnet_jax.errors import BadInput
from xlnet_jax.messages import suggest_file
from xlnet_jax.storage import files

_T = TypeVar("_T")


def gathered(given: Iterable[_T], path: str | None, read: Callable[[str], Iterable[_T]]) -> list[_T]:
    """What is given, then what `read` finds in the file of `--input`. Raises BadInput if that is nothing."""
    rows = [*given, *(read(path) if path else ())]
    if not rows:
        raise BadInput(f"--input={path} has no text" if path else "no text; give texts, or --input=FILE")
    return rows


def read_lines(path: str) -> list[str]:
    """The lines of `--input`, a file or `-` for stdin. Raises BadInput."""
    if path == "-":
        if sys.stdin is None:
            raise BadInput("--input=-: stdin is closed; give a file, or send the lines to stdin")
        data = sys.stdin.buffer.read()
    else:
        with files.translate_errors(path):
            content = files.read_if_there(path)
        if content is None:
            raise BadInput(f"--input={path}: no such file{suggest_file(path)}")
        data = content
    try:
        return [line.rstrip("\r") for line in data.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise BadInput(f"--input={path}: not UTF-8 at byte {error.start}; convert the file") from error


def read_rows(path: str) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """Where each row of `--input` is, for messages, and its text; without empty lines.

    A row is a JSON object if the name of the file ends in .jsonl, or if the first row of stdin starts with a brace.

    Raises BadInput.
    """
    lines = [(f"{path}, row {number}", line) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    as_json = os.path.splitext(path)[1] == ".jsonl"
    as_json |= path == "-" and bool(lines) and lines[0][1].lstrip().startswith("{")
    for where, line in lines:
        row = files.parse_json(line, where) if as_json else line
        if as_json and not isinstance(row, dict):
            raise BadInput(f"{where}: no JSON object; give one on each line")
        yield where, row
