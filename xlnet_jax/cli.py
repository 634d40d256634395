"""The command line: parse, run one of the `verbs`, print its result, and end with the exit code of `errors`.

With `--json` one JSON object goes to stdout and everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
from typing import Any, NoReturn

from xlnet_jax import __version__, messages
from xlnet_jax.errors import BadInput, Interrupted, RestartMe, XLNetError
from xlnet_jax.verbs import Verb, corpora, models, print_lines, runs

VERBS = (*corpora.VERBS, *runs.VERBS, *models.VERBS)
GROUPS = {"corpus": "Look into a corpus, or check all of it."}
"""Verbs of two words, by their first."""


OUTPUT_CLOSED = 141
"""Exit code where nobody reads stdout any more: that of a program ended by SIGPIPE."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the words of a command as any other mistake is told."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise _Usage(self.prog, message)


class _Usage(Exception):
    """Words that make no command: the program and the message."""


def program() -> None:
    """The console script: `main`, and the end of the process."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = main()
    except SystemExit as ended:  # --help and --version
        code = int(ended.code or 0)
    code = code or _write("")
    sys.stderr.flush()
    if code == RestartMe.exit_code:
        # All is saved and closed. A thread that still waits for data or a disk would hold a normal exit back forever.
        os._exit(code)
    sys.exit(code)


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code of `errors`."""
    argv = sys.argv[1:] if argv is None else argv
    messages.use_json("--json" in argv)
    try:
        args, overrides = make_parser().parse_known_args(argv)
    except _Usage as usage:
        messages.error(usage.args[0], usage.args[1], BadInput.exit_code)
        return BadInput.exit_code
    who = f"xlnet-jax {args.command}"
    # A terminal may not be able to show every character of a corpus.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # It logs whole tracebacks of what we say in a line.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    logging.getLogger("xlnet_jax").setLevel(logging.INFO)
    try:
        for word in argv:
            if any("\ud800" <= character <= "\udfff" for character in word):
                raise BadInput(f"{ascii(word)} is not UTF-8; give names and values that are")
            if "\0" in word:
                raise BadInput(f"{ascii(word)} holds a zero byte; give names and values without")
        if overrides and not args.verb.overrides:
            raise BadInput(f"unknown option {overrides[0]!r}; see --help")
        result = args.verb.run(args, overrides)
    except XLNetError as error:
        messages.error(who, str(error), error.exit_code)
        return _leave(error.exit_code)
    except KeyboardInterrupt:
        messages.error(who, "interrupted", Interrupted.exit_code)
        return _leave(Interrupted.exit_code)
    except Exception as error:
        if args.json:
            messages.error(who, f"a bug of ours: {type(error).__name__}: {error}", XLNetError.exit_code)
        raise
    return _write(json.dumps(result) + "\n" if args.json else _shown(args.verb, result))


def _shown(verb: Verb, result: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        (verb.show or print_lines)(result)
    return shown.getvalue()


def _write(text: str) -> int:
    """Writes to stdout all that is still to be written; returns the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return 0
    except OSError as error:
        # Python writes once more at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OUTPUT_CLOSED
        messages.error("xlnet-jax", f"cannot write the output: {error.strerror}", BadInput.exit_code)
        return BadInput.exit_code


def _leave(code: int) -> int:
    """The exit code; where other processes take part in the run, this one ends here."""
    if distributed := sys.modules.get("xlnet_jax.parallel.processes"):
        distributed.end_process(code)
    return code


def make_parser() -> argparse.ArgumentParser:
    """All verbs, each with an example."""
    parser = _Parser(prog="xlnet-jax", description="Pretrain XLNet in JAX.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    among = {"": commands}
    for verb in VERBS:
        group, _, name = verb.name.rpartition(" ")
        if group not in among:
            above = commands.add_parser(group, help=GROUPS[group], description=GROUPS[group], allow_abbrev=False)
            among[group] = above.add_subparsers(dest="what", required=True, metavar="WHAT")
        sub = among[group].add_parser(
            name, help=verb.what, description=verb.what, epilog=f"example:\n  {verb.example}", allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(verb=verb)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        verb.options(sub)
    return parser
