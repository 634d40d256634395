"""Commands of the command line: options, their checks, and the call of a function.

Nothing here imports JAX until a command runs: `--help` answers at once, and an error in a
configuration is reported before any device is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xlnet_jax import config as configs
from xlnet_jax import messages
from xlnet_jax.errors import LARGEST_INT, BadInput
from xlnet_jax.infer.options import Options, option_help
from xlnet_jax.keys import key, mistake
from xlnet_jax.messages import suggest


class Option(NamedTuple):
    """An option or a positional word of a command: the arguments of `add_argument`."""

    name: str
    keywords: dict[str, Any]
    field: Any = None
    """Field of `keys.key` with the bounds of a number."""

    def check(self, value: Any) -> None:
        """Raises BadInput for a number out of range, and for an empty text that is not the
        default.
        """
        if isinstance(value, str):
            if not value and self.keywords.get("default") != "":
                needed = self.keywords.get("required") or not self.name.startswith("--")
                raise BadInput(
                    f"{self.name} is empty; give a value{'' if needed else ', or leave it out'}"
                )
        elif self.field is not None and value is not None and (wrong := mistake(self.field, value)):
            raise BadInput(f"{self.name}={value} {wrong}")


class Command(NamedTuple):
    """A command.

    Attributes:
      name: `train`, or `corpus info` in a group.
      help, example: a sentence, and a working command line; more lines may follow.
      run: the name of a function, as in `imported`, which takes the options as keywords and returns
        the result, an object or a list: `--json` prints an object in one line, and a list is always
        printed as one object per line. The option `config`, a file's name, arrives as the loaded
        `Config`.
      options: options beside `--json`, which all commands have.
      show: the name of the function that prints the result without `--json`.
      overrides: whether `--config.KEY=VALUE` words are accepted; without an option `config`, `run`
        takes them as `overrides`.
      stops: whether a signal ends the command with exit code 42, as if it could be resumed.
      meets: whether all processes of a run call the command and wait for each other.
    """

    name: str
    help: str
    example: str
    run: str
    options: tuple[Option, ...] = ()
    show: str = "messages:print_lines"
    overrides: bool = True
    stops: bool = False
    meets: bool = False


def call(command: Command, options: dict[str, Any], overrides: list[str]) -> Any:
    """Checks the options, loads the configuration and runs the command; raises the errors of
    each.
    """
    config = None

    def announce(code: int, line: str) -> None:
        imported("distributed.processes:announce")(config, overrides, code, line)

    messages.output.command = command.name
    messages.inform(announce if command.meets else None)
    for word in overrides:
        if not (command.overrides and word.startswith("--config.")):
            raise BadInput(unknown_word(command, word))
    for option in command.options:
        option.check(options[option.keywords.get("dest", option.name.lstrip("-"))])
    # Before the imports of the command, which take seconds.
    with imported("run.signals:stop_request")() if command.stops else contextlib.nullcontext():
        if "config" in options:
            if given := options["config"]:
                config = configs.load(given, overrides)
            elif imported("run.workdir:read_config")(where := options["workdir"]) is None:
                raise BadInput(
                    f"--workdir={where} holds no run that could be resumed; "
                    "give the --config of a new run"
                )
            else:
                config = imported("run.workdir:load_config")(where, overrides)
            options = options | {"config": config}
        elif command.overrides:
            options = options | {"overrides": overrides}
        return imported(command.run)(**options)


def unknown_word(command: Command, word: str) -> str:
    """Returns the message about an unknown word of a command."""
    if not word.startswith("--"):
        together = any(option.keywords.get("nargs") == "*" for option in command.options)
        return (
            f"unknown word {word!r}; {'give all texts side by side' if together else 'see --help'}"
        )
    if word.startswith("--config."):
        return f"unknown option {word!r}; this command takes no configuration keys"
    name = word.split("=")[0].lstrip("-")
    near = suggest(
        f"--{name}",
        [*(option.name for option in command.options if option.name.startswith("--")), "--json"],
    )
    if not near and command.overrides:
        near = configs.suggest_key(name, "--config.")
    return f"unknown option {word!r}{near or '; see --help'}"


def imported(name: str) -> Callable[..., Any]:
    """Imports and returns a function of the package, such as `run.workdir:read_config`."""
    return pkgutil.resolve_name(f"xlnet_jax.{name}")


def option(name: str, help: str, default: Any = None, field: Any = None, **more: Any) -> Option:
    """Returns an option with the type of its default. The default False makes a flag; without a
    default, `more` has the `type`.
    """
    if default is False:
        return Option(name, {"help": help, "action": "store_true"})
    kind = {"type": type(default)} if isinstance(default, int | float) else {}
    return Option(name, {"help": help, "default": default, **kind, **more}, field)


def count(
    name: str, help: str, default: int | None = None, ge: int = 1, le: int = LARGEST_INT
) -> Option:
    """Returns an option that is a whole number from `ge` to `le`."""
    return option(name, help, default, key(0, help, f"[{ge}, {le}]"), type=int)


def declared_options(options: type[Options], only: Sequence[str] = ()) -> tuple[Option, ...]:
    """Returns the options of a declaration, or only the names in `only`."""
    return tuple(
        option(
            f"--{field.name}",
            option_help(field),
            field.default,
            field,
            choices=field.metadata["choices"] or None,
        )
        for field in dataclasses.fields(options)
        if not only or field.name in only
    )
