"""The verbs of the command line: of each its name, help, example and options, and the function that it calls.

Nothing here imports JAX until a verb runs: `--help` answers at once, and a mistake in a configuration is told before
any device is touched. A new verb is an options function, a run function and a `Verb` at the end of `corpora`, `runs` or
`models`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from xlnet_jax.messages import duration, printable


class Verb(NamedTuple):
    """One command.

    Attributes:
      name: `train`, or `corpus info` for a verb below another.
      what: a sentence for the help.
      example: a command that works; more lines may follow.
      options: adds the options to a parser; all have `--json` already.
      run: arguments and the `--config.KEY=VALUE` words in, the result out: with `--json` it is printed as one object.
      show: prints the result without `--json`; None = one `name value` a line.
      overrides: whether `--config.KEY=VALUE` words are taken.
    """

    name: str
    what: str
    example: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, list[str]], dict[str, Any]]
    show: Callable[[dict[str, Any]], None] | None = None
    overrides: bool = True


def print_lines(values: dict[str, Any], prefix: str = "") -> None:
    """One `name value` a line, such as `splits.train.tokens 5000`; seconds as `1 h 02 min`."""
    for name, value in values.items():
        if isinstance(value, dict):
            print_lines(value, f"{prefix}{name}.")
            continue
        if isinstance(value, float):
            is_time = "seconds" in f"{prefix}{name}".split(".") or name.endswith("_seconds")
            value = duration(value) if is_time else f"{value:.6g}"
        print(f"{prefix + name:24} {printable(str(value))}")
