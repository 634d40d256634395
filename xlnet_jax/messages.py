"""Output for people and scripts: errors as lines or JSON, durations, safe text, a progress bar."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from rich.progress import Progress

_JOINERS = "\u200c\u200d"


@dataclasses.dataclass
class Reporting:
    """How this process reports errors, set by the command line and a run."""

    json: bool = False
    """Whether results and errors are JSON on stdout."""
    command: str = ""
    """Name of the command; empty in a library."""
    name: str = "xlnet-jax"
    """Name of the program that `end` prints."""
    others: Callable[[int, str], None] | None = None
    """Function of an exit code and an error line, which informs the other processes of a run."""


output = Reporting()


def inform(others: Callable[[int, str], None] | None, process: int | None = None) -> None:
    """Sets `Reporting.others`, and the number of this process, which `end` prints."""
    output.name = "xlnet-jax" if process is None else f"xlnet-jax, process {process}"
    output.others = others


def error(who: str, line: str, code: int, details: Mapping[str, Any] | None = None) -> int:
    """Prints `who: line` on stderr; with `--json` also `{"error": line, "exit_code": code, ...}` on
    stdout, once.

    Returns `code`.
    """
    line = printable(line)
    with contextlib.suppress(OSError):  # a full disk under stderr must not change the exit code
        print(f"{who}: {line}", file=sys.stderr, flush=True)
    if output.json:
        # Another thread may end the process with its own error: stdout gets one object only.
        output.json = False
        # stdout may be closed; the line is on stderr.
        with contextlib.suppress(OSError):
            print(to_json({"error": line, "exit_code": code, **(details or {})}), flush=True)
    if output.others:
        output.others(code, line)
    return code


def end(code: int, line: str) -> NoReturn:
    """Prints an error and ends the process at once, from any thread."""
    try:
        error(output.name, line, code)
    finally:
        # Not sys.exit: it would wait for other threads, which may wait for a disk or for a process
        # that never answers.
        os._exit(code)


def printable(text: str, escaped: Callable[[str], str] = ascii) -> str:
    """Escapes control characters, such as `\\x1b` and `\\n`, for a terminal; `escaped` returns a
    character in quotes.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _JOINERS else escaped(character)[1:-1]
        for character in text
    )


def to_json(value: Any) -> str:
    """Returns a line of JSON for stdout, ASCII if stdout has another encoding than UTF-8."""
    has_utf8 = "utf" in (sys.stdout.encoding or "").lower()
    return printable(json.dumps(value, ensure_ascii=not has_utf8), json.dumps)


def printable_lines(text: str) -> str:
    """Applies `printable` to each line."""
    return "\n".join(map(printable, text.split("\n")))


def suggest(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Returns the end of a message about an unknown word, `. Did you mean 'train'?`, with the
    `prefix` before the choice; empty if no choice is near.
    """
    near = difflib.get_close_matches(word, sorted(choices), n=1)
    return f". Did you mean {prefix + near[0]!r}?" if near else ""


def suggest_file(path: str) -> str:
    """Suggests another name in the folder of a missing path; returns "" for an existing path."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        names = [] if os.path.lexists(path) else os.listdir(folder or ".")
    except (OSError, ValueError):  # the folder is missing too, or the path is an address
        return ""
    return suggest(name, names, os.path.join(folder, ""))


def how_to_install(extra: str) -> str:
    """Returns the end of a message: the command that installs an extra."""
    return (
        f"run `pip install --constraint constraints.txt --editable '.[{extra}]'` in the repository"
    )


def duration(seconds: float) -> str:
    """Formats a duration: `12.3 s`, `5 min 03 s` or `1 h 02 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min"


def quantity(number: int, noun: str) -> str:
    """Formats a number with its noun: `1 document`, `2,000 documents`, `2 batches`."""
    plural = noun + ("es" if noun.endswith(("ch", "s", "x")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def print_lines(values: dict[str, Any], prefix: str = "") -> None:
    """Prints `name value` lines, such as `splits.train.tokens 5000`, without None; seconds are
    shown as `1 h 02 min`.
    """
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, dict):
            print_lines(value, f"{prefix}{name}.")
            continue
        if isinstance(value, float):
            is_time = "seconds" in f"{prefix}{name}".split(".") or name.endswith("_seconds")
            value = duration(value) if is_time else f"{value:.6g}"
        print(f"{prefix + name:24} {printable(str(value))}")


class Log(logging.StreamHandler):
    """Writes to the current `sys.stderr`; while a bar is shown, rich's stream puts lines above the
    bar.
    """

    stream: Any = property(lambda self: sys.stderr, lambda self, at_the_start: None)


def progress_bar(
    what: str, total: int, done: int = 0, note: str = "", transient: bool = True
) -> Progress:
    """Returns a progress bar on stderr. It is off for fewer than two items, or if stderr is no
    capable terminal.

    A `note` follows the counts; a `transient` bar vanishes at the end.
    """
    # Not imported at the top: the command line and data workers must start fast.
    from rich import console
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[note]}"),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    screen = console.Console(file=cast(IO[str], _Terminal()))
    off = total < 2 or not sys.stderr.isatty() or screen.is_dumb_terminal
    # Lines for stderr, and for a stdout on the same screen, are printed above the bar.
    bar = rich.Progress(
        *columns,
        console=screen,
        transient=transient,
        disable=off,
        speed_estimate_period=600,
        redirect_stdout=sys.stdout.isatty(),
    )
    bar.add_task(what, total=total, completed=done, note=note)
    return bar


class _Terminal:
    """stderr that ignores errors: a closed stderr hides the bar, and the work continues."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
