"""The command lines that gcloud, kubectl, gcluster and docker accept, by the dated copies in
tests/launch/reference/.

`reference/TOOL_COMMAND.txt`: comments name version, date and source; then one flag per line,
`--flag=` with a value and `--flag` without; `words LEAST-MOST` in between limits the number of
words that are no flags. `reference/TOOL.txt` has the flags of every command of the tool.
"""

import pathlib
from typing import NamedTuple

REFERENCE = pathlib.Path(__file__).resolve().parent / "reference"


class Call(NamedTuple):
    """A command line that the tool accepts."""

    command: str  # as in the name of its table: gcloud_storage_cat
    words: list[str]
    given: dict[str, list[str]]  # values by flag; none for a switch


class Refused(ValueError):
    """The reason for which the tool refuses a command line, with the flag that it does not have."""

    def __init__(self, command: str, reason: str, flag: str = ""):
        super().__init__(reason)
        self.command, self.flag = command, flag


def lines_of(name: str) -> list[str]:
    return [
        line
        for line in (REFERENCE / f"{name}.txt").read_text().splitlines()
        if not line.startswith("#")
    ]


ERRORS = dict(line.split(" ", 1) for line in lines_of("gcloud_errors"))
"""Of gcloud, by name."""


def parse(argv: list[str]) -> Call:
    """Raises Refused if the tool refuses the command line, or if there is no table of the
    command.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    words = [word for word in argv[:end] if not word.startswith("-") or word == "-"]
    for count in range(min(len(words), 6), 1, -1):
        command = "_".join(words[:count])
        if (REFERENCE / f"{command}.txt").exists():
            break
    else:
        raise Refused(argv[0], f"no such command: {' '.join(words)}")
    table = lines_of(command)
    least, _, most = next((line for line in table if line.startswith("words ")), "words 0-")[
        6:
    ].partition("-")
    words = words[count:]
    if len(words) < int(least) or (most and len(words) > int(most)):
        raise Refused(command, f"{command} takes {least}-{most} names, not {words}")
    flags = {*table, *(lines_of(argv[0]) if (REFERENCE / f"{argv[0]}.txt").exists() else [])}
    given: dict[str, list[str]] = {}
    for word in argv[:end]:
        flag, has_value, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            continue
        if has_value and f"{flag}=" in flags:
            if not value:
                raise Refused(command, f"argument {flag}: expected one argument", flag)
            given.setdefault(flag, []).append(value)
        elif word in flags:
            given[word] = []
        else:
            raise Refused(command, f"unrecognized arguments: {word}", flag)
    return Call(command, words, given)
