"""What the stubs of gcloud, kubectl and xpk share: a command with its flags is refused with 2 or recorded.

The folder in STUB_DIR holds `calls.jsonl`, one line per accepted call, and what a test wants answered: `states.json`
(one per describe; the last one stays) and `codes.json` (one per ssh).
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

HERE = pathlib.Path(os.environ["STUB_DIR"])


def refuse(message: str) -> NoReturn:
    print(f"ERROR: {pathlib.Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


def flags_of(
    words: list[str], positionals: int, values: Iterable[str], switches: Iterable[str], required: Iterable[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Positional words and flags by name; whatever is unknown, lacks a value or is missing ends the program with 2."""
    values, switches = set(values), set(switches)
    given: dict[str, list[str]] = {}
    names = []
    for word in words:
        flag, _, value = word.partition("=")
        if not word.startswith("-"):
            names.append(word)
        elif flag in values and value:
            given.setdefault(flag, []).append(value)
        elif word in switches:
            given[word] = []
        else:
            refuse(f"unrecognized arguments: {word}")
    if len(names) != positionals:
        refuse(f"takes {positionals} names, not {names}")
    for flag in required:
        if not any(one in given for one in flag.split("|")):
            refuse(f"argument {flag}: must be specified")
    return names, given


def record(**call: Any) -> None:
    with open(HERE / "calls.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"argv": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]], **call}) + "\n")


def pop(name: str, default: Any, keep_last: bool = False) -> Any:
    """The next answer of a list that a test has left."""
    path = HERE / name
    answers = json.loads(path.read_text()) if path.exists() else []
    if not answers:
        return default
    first, *rest = answers
    path.write_text(json.dumps(rest or ([first] if keep_last else [])))
    return first
