"""The command line: parses words, runs a command, prints its result, and ends with a code of
`errors`.

With `--json` one JSON object, or one for each text, goes to stdout and everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import resource
import shutil
import sys
import textwrap
import traceback
from typing import Any, NoReturn

from xlnet_jax import __version__, messages
from xlnet_jax.command_list import COMMANDS, TOPICS
from xlnet_jax.errors import BadInput, Interrupted, XLNetError, shortage
from xlnet_jax.messages import suggest
from xlnet_jax.options import call, imported, unknown_word

GROUPS = {"corpus": ("Look into a corpus, or check all of it.", "xlnet-jax corpus info corpus")}
"""Help and example of groups, the first words of two-word commands."""

OUTPUT_CLOSED = 141
"""Exit code if the reader of stdout has gone, as for a program that SIGPIPE ends."""

_NO_OPTIONS = ("command", "what", "chosen", "json")


class _Rejected(BadInput):
    """Words that a parser cannot read; the arguments are the parser and its message."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors; `main` prints them like all other errors."""

    def error(self, message: str) -> NoReturn:
        raise _Rejected(self, message)


def program() -> None:
    """The console script: `main`, then the end of the process."""
    # The caller may have closed a stream.
    sys.stdout, sys.stderr = (
        stream or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr)
    )
    _open_many_files()
    # Python's resource tracker removes leftovers in shared memory at the end, and would warn.
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        code = main()
    except SystemExit as ended:  # --help and --version
        code = int(ended.code or 0)
    code = code or _write("")
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # All is saved. A thread that still waits for data or a disk would block a normal exit.
    os._exit(code)


def _open_many_files() -> None:
    """Raises the limit of open files as far as the system allows.

    Data workers pass every array in a separate file, and process 0 has two connections to each
    other process: eight workers, or a thousand hosts, need more than the usual limit of 1024.
    """
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code of `errors`."""
    argv = sys.argv[1:] if argv is None else argv
    # A terminal may not be able to show every character of a corpus, or of a help.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    messages.output.json = "--json" in argv
    try:
        args, overrides = make_parser().parse_known_args(argv)
    except _Rejected as rejected:
        parser, message = rejected.args
        explained = _explained(parser, message, argv)
        if " ".join(argv) in ("", *GROUPS):  # no command: list the commands
            parser.print_help()
            return 0
        if explained == message:
            parser.print_usage(sys.stderr)
        return messages.error(parser.prog, explained, BadInput.exit_code)
    who = f"xlnet-jax {args.command}"
    # gcsfs logs the whole traceback of an error, the hub every attempt; we print one line.
    for library in ("gcsfs", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    logging.basicConfig(
        handlers=[messages.Log()], format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True
    )
    logging.getLogger("xlnet_jax").setLevel(logging.INFO)
    try:
        for word in argv:
            if any("\ud800" <= character <= "\udfff" for character in word):
                raise BadInput(f"{ascii(word)} is not UTF-8; give names and values that are")
            if word.startswith("--") and word.endswith("=--"):  # argparse makes a list of it
                raise BadInput(f"{word!r} has no value")
        options = {name: value for name, value in vars(args).items() if name not in _NO_OPTIONS}
        result = call(args.chosen, options, overrides)
    except XLNetError as error:
        _write("".join(f"{messages.to_json(each)}\n" for each in error.results))
        return messages.error(who, str(error), error.exit_code, error.details)
    except KeyboardInterrupt:
        return messages.error(who, "interrupted", Interrupted.exit_code)
    except Exception as error:
        if line := shortage(error):
            return messages.error(who, line, BadInput.exit_code)
        traceback.print_exc()
        return messages.error(
            who, f"a bug of ours: {type(error).__name__}: {error}", XLNetError.exit_code
        )
    if args.json or isinstance(result, list):
        results = result if isinstance(result, list) else [result]
        return _write("".join(f"{messages.to_json(each)}\n" for each in results))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        imported(args.chosen.show)(result)
    return _write(shown.getvalue())


def _write(text: str) -> int:
    """Writes the text and flushes stdout; returns the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return 0
    except OSError as error:
        # Python flushes stdout again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OUTPUT_CLOSED
        return messages.error(
            "xlnet-jax", f"cannot write the output: {error.strerror}", BadInput.exit_code
        )


def _explained(parser: argparse.ArgumentParser, message: str, argv: list[str]) -> str:
    """Returns the message of a parser, with the nearest choice for a wrong word. If an option is
    missing and a word is unknown, returns the message about this word, which may be a misspelt
    option.
    """
    command = parser.get_default("chosen")
    if command and message.startswith("the following arguments are required"):
        known = {"--json", "--help", *(option.name for option in command.options)}
        for word in argv:
            if (
                word.startswith("--")
                and not word.startswith("--config.")
                and word.split("=")[0] not in known
            ):
                return unknown_word(command, word)
    if wrong := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
        return message + suggest(wrong[1], re.findall(r"[\w-]+", wrong[2]))
    return message


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands, each with an example."""
    parser = _Parser(
        prog="xlnet-jax",
        usage="xlnet-jax [-h] [--version] COMMAND ...",
        description="Pretrain XLNet in JAX.",
        epilog=_commands_by_topic(shutil.get_terminal_size().columns - 2),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog=parser.prog, help=argparse.SUPPRESS
    )
    groups = {"": commands}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        if group not in groups:
            above = commands.add_parser(group, **_help(*GROUPS[group]))
            groups[group] = above.add_subparsers(dest="what", required=True, metavar="WHAT")
        sub = groups[group].add_parser(name, **_help(command.help, command.example))
        sub.set_defaults(chosen=command)
        sub.add_argument(
            "--json",
            action="store_true",
            help="print JSON on stdout: one object, or one for each text",
        )
        for option in command.options:
            sub.add_argument(option.name, **option.keywords)
    return parser


def _commands_by_topic(columns: int) -> str:
    """Returns the list of commands for `--help`; argparse would list them in one row."""
    helps = {command.name: command.help for command in COMMANDS} | {
        name: text for name, (text, _) in GROUPS.items()
    }
    return "\n\n".join(
        "\n".join(
            [
                f"{topic}:",
                *(
                    textwrap.fill(
                        helps[name],
                        columns,
                        initial_indent=f"  {name:12}",
                        subsequent_indent=" " * 14,
                    )
                    for name in names
                ),
            ]
        )
        for topic, names in TOPICS.items()
    )


def _help(text: str, example: str) -> dict[str, Any]:
    return {
        "help": text,
        "description": text,
        "epilog": f"example:\n  {example}",
        "allow_abbrev": False,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
