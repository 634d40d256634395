"""The command line: parse, run one of the `verbs`, print its result, and end with the exit code of `errors`.

With `--json` one JSON object goes to stdout and everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys

from xlnet_jax import __version__
from xlnet_jax.errors import BadInput, RestartMe, XLNetError
from xlnet_jax.verbs import Verb, corpora, models, print_lines, runs

VERBS = (*corpora.VERBS, *runs.VERBS, *models.VERBS)
GROUPS = {"corpus": "Look into a corpus, or check all of it."}
"""Verbs of two words, by their first."""


def program() -> None:
    """The console script: `main`, and the end of the process."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == RestartMe.exit_code:
        # All is saved and closed. A thread that still waits for data or a disk would hold a normal exit back forever.
        os._exit(code)
    sys.exit(code)


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code of `errors`."""
    args, overrides = make_parser().parse_known_args(argv)
    # A terminal may not be able to show every character of a corpus.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # It logs whole tracebacks of what we say in a line.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    logging.getLogger("xlnet_jax").setLevel(logging.INFO)
    verb: Verb = args.verb
    try:
        for word in sys.argv if argv is None else argv:
            if any("\ud800" <= character <= "\udfff" for character in word):
                raise BadInput(f"{ascii(word)} is not UTF-8; give names and values that are")
        if overrides and not verb.overrides:
            raise BadInput(f"unknown option {overrides[0]!r}; see --help")
        result = verb.run(args, overrides)
    except XLNetError as error:
        print(f"xlnet-jax {args.command}: {error}", file=sys.stderr)
        return _leave(error.exit_code)
    except KeyboardInterrupt:
        print(f"xlnet-jax {args.command}: interrupted", file=sys.stderr)
        return _leave(130)
    if args.json:
        print(json.dumps(result), flush=True)
    else:
        (verb.show or print_lines)(result)
    return 0


def _leave(code: int) -> int:
    """The exit code; where other processes take part in the run, this one ends here."""
    if distributed := sys.modules.get("xlnet_jax.parallel.processes"):
        distributed.end_process(code)
    return code


def make_parser() -> argparse.ArgumentParser:
    """All verbs, each with an example."""
    parser = argparse.ArgumentParser(prog="xlnet-jax", description="Pretrain XLNet in JAX.")
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
