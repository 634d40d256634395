"""Builds a checked `Config` from a config file, the command line or a stored run."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import glob
import logging
import os
import re
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from xlnet_jax.config import phases
from xlnet_jax.config.run import TrainConfig
from xlnet_jax.config.whole import Config, check, fields
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.keys import mistyped
from xlnet_jax.messages import quantity, suggest, suggest_file

log = logging.getLogger("xlnet_jax")

NAMES = {
    "n_layer": "model.layers",
    "dim": "model.d_model",
    "hidden_size": "model.d_model",
    "intermediate_size": "model.d_ff",
    "dtype": "model.compute_dtype",
    "seq_len": "data.segment_len",
    "max_length": "data.segment_len",
    "lr": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.clip",
    "max_steps": "train.steps",
    "bs": "train.batch_size",
    "save_steps": "checkpoint.every",
    "eval_steps": "evaluation.every",
    "seed": "seeds.init",
    "position_scheme": "model.architecture",
}
"""Keys by names without resemblance: the most usual names in other programs, and an old name."""


def default() -> ConfigDict:
    """Returns the defaults as a locked ConfigDict; a config file starts from it and sets other
    values.
    """
    return ConfigDict(dataclasses.asdict(Config())).lock()


def start_from(file: str, other: str, **given: str) -> ConfigDict:
    """Returns the values of another config file, to start from instead of `default()`:
    `start_from(__file__, "../small.py")`. `given` are the arguments of its `get_config`.
    """
    return runpy.run_path(os.path.join(os.path.dirname(file), other))["get_config"](**given)


def packaged() -> dict[str, str]:
    """Returns the paths of the packaged configurations by name, such as
    `transformer_xl/quickstart`.
    """
    # Configurations are inside the package in a wheel, and beside the package in a checkout.
    package = os.path.dirname(os.path.dirname(__file__))
    inside = os.path.join(package, "configs")
    folder = inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), "configs")
    # Unlike pathlib, glob follows links and leaves out hidden folders.
    paths = glob.glob(os.path.join(folder, "**", "*.py"), recursive=True)
    return {os.path.relpath(path, folder).removesuffix(".py"): path for path in paths}


def load(path: str, overrides: Sequence[str] = ()) -> Config:
    """Reads a Python file that defines `get_config()`, and applies words such as
    `--config.train.steps=10`.

    Args:
      path: path of the file, or a name of `packaged`.

    Raises BadInput: the file is missing or broken, a key does not exist (the error suggests the
    nearest key), a value has the wrong type, or two fields contradict each other.
    """
    check_link("--config", path)
    if not path.endswith(".py"):
        path = packaged().get(path, path)
    if not os.path.isfile(path) or not path.endswith(".py"):
        what = "not a Python file; give one that defines get_config()"
        if not os.path.exists(path):
            name = path.removeprefix("configs/").removesuffix(".py")
            what = f"no such file{suggest_file(path) or suggest(name, packaged(), '--config=')}"
        raise BadInput(f"--config={path}: {what}")
    try:
        # stdout is kept for the result of the command.
        with contextlib.redirect_stdout(sys.stderr):
            values = runpy.run_path(path)["get_config"]()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may raise anything
        raise BadInput(f"--config={path}{_mistake(error, path)}") from error
    if not isinstance(values, ConfigDict):
        raise BadInput(
            f"--config={path}: get_config() must return a ConfigDict; start from "
            "xlnet_jax.config.default()"
        )
    return _with_own_dev(_overridden(values, overrides, f"--config={path}"), overrides)


def _with_own_dev(config: Config, overrides: Sequence[str]) -> Config:
    """Takes a tenth of the training examples as dev set, if `overrides` name the training examples
    and the configured dev set is of another TFDS data set.
    """
    task = config.finetune
    named = {word.partition("=")[0].removeprefix("--config.finetune.") for word in overrides}
    same = task.train.startswith(task.dev.rpartition(":")[0])
    if same or not task.dev.startswith("tfds:") or named & {"train", "dev"} != {"train"}:
        return config
    return config.changed(finetune={"dev": "", "dev_share": task.dev_share or 0.1})


def override(config: Config, overrides: Sequence[str]) -> Config:
    """Changes keys by words such as `--config.mesh.fsdp=4`. Raises BadInput."""
    values = dataclasses.asdict(config)
    if config.phases:
        # It was the sum of the steps of the phases, which an override may change.
        values["train"]["steps"] = TrainConfig().steps
    return _overridden(ConfigDict(values), overrides, "config")


def from_dict(values: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Builds the dataclasses from nested dictionaries, applies `overrides` and checks all values.
    Raises BadInput.
    """
    known = Config().sections
    for section, given in values.items():
        if section != "phases":
            _check_section(section, given)
    parts = _checked_phases(values.get("phases", ()))
    config = Config(
        **{name: type(section)(**values.get(name, {})) for name, section in known.items()},
        phases=parts,
    )
    if parts:
        config = phases.with_steps(config)
    if overrides:
        return override(config, overrides)
    check(config)
    return config


def nested(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Inverts `flat`, for `from_dict`."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections


def suggest_key(name: str, prefix: str = "") -> str:
    """Returns `messages.suggest` for an unknown key, dotted or not: the key that has this name in
    other programs, or else the nearest key.
    """
    keys = list(fields())
    section, _, last = name.rpartition(".")
    same = [NAMES[last]] if last in NAMES else [key for key in keys if key.endswith(f".{last}")]
    same = [key for key in same if key.startswith(f"{section}.")] or same
    if not section and not same:
        near = difflib.get_close_matches(last, [key.partition(".")[2] for key in keys], n=1)
        same = [key for key in keys if near and key.endswith(f".{near[0]}")]
    return suggest(same[0], same[:1], prefix) if same else suggest(name, keys, prefix)


def _overridden(values: ConfigDict, overrides: Sequence[str], where: str) -> Config:
    if "phases" in values:  # a copy, since two phases may share a dictionary
        values.phases = _checked_phases(values.phases)
    for word in overrides:
        if not word.startswith("--config."):
            raise BadInput(
                f"unknown option {word!r}; a config key is set as --config.train.steps=10"
            )
        if "=" not in word:
            raise BadInput(f"{word!r} has no value; write {word}=VALUE")
        name = word.removeprefix("--config.").split("=")[0]
        if not name.startswith("phases["):
            _check_key(name)
            continue
        found = re.fullmatch(r"phases\[([0-9]{1,4})\]\.(.+)", name)
        count = len(values.get("phases", ()))  # type: ignore[arg-type]
        if not found or int(found[1]) >= count:
            raise BadInput(
                f"{word!r}: the configuration has {quantity(count, 'phase')}, counted from 0; "
                "write a key of a phase as --config.phases[0].data.num_predict=20"
            )
        if found[2] != "steps":
            _check_key(found[2])
            section, _, last = found[2].partition(".")
            parts: Any = values.phases
            # The flag takes the type of the new value from the default.
            parts[int(found[1])].setdefault(section, {})[last] = fields()[found[2]].default
    argv = [__name__, *overrides]
    flag_values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict(
            "config", values, flag_values=flag_values, lock_config=True, sys_argv=argv
        )
        flag_values(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where}: {summary(error)}") from error
    # The flag has changed `values` in place.
    found = values.to_dict()
    usual = TrainConfig().steps
    if found.get("phases") and not any(
        word.startswith("--config.train.steps=") for word in overrides
    ):
        inherited = found.get("train", {}).pop("steps", usual)
        config = from_dict(found)
        if inherited not in (config.train.steps, usual):
            log.warning(
                "%s: train.steps=%s is not used: the phases have %d",
                where,
                inherited,
                config.train.steps,
            )
        return config
    return from_dict(found)


def _checked_phases(given: Any) -> tuple[dict[str, Any], ...]:
    """Returns a copy of `config.phases`. Raises BadInput for another form, an unknown key or a
    wrong type.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise BadInput(
            "phases must be a tuple of dicts, such as dict(steps=1000, "
            f"data=dict(segment_len=512)), not of type {type(given).__name__}"
        )
    for number, phase in enumerate(given):
        steps = phase.get("steps") if isinstance(phase, Mapping) else None
        if type(steps) is not int or steps < 1:
            raise BadInput(
                f"phases[{number}] must be a dict with `steps`, "
                "a whole number of at least 1, and sections"
            )
        for section, values in phase.items():
            if section == "steps":
                continue
            try:
                _check_section(section, values)
            except BadInput as error:
                raise BadInput(f"phases[{number}]: {error}") from error
            for name, value in values.items():
                if what := mistyped(fields()[f"{section}.{name}"], value):
                    raise BadInput(f"phases[{number}].{section}.{name}={value!r} {what}")
    return tuple({"steps": phase["steps"], **phases.changes(phase)} for phase in given)


def _check_section(section: Any, values: Any) -> None:
    if section not in Config().sections:
        _check_key(str(section))
    if not isinstance(values, Mapping):
        raise BadInput(
            f"{section}={values!r} must be a section with its keys, such as "
            "data=dict(segment_len=512)"
        )
    for name in values:
        _check_key(f"{section}.{name}")


def _check_key(dotted: str) -> None:
    if dotted not in fields():
        raise BadInput(
            f"no config key {dotted!r}{suggest_key(dotted) or '; docs/configuration.md lists them'}"
        )


def _mistake(error: BaseException, path: str) -> str:
    """Returns the error of a config file with its line: `, line 4: NameError: name 'x' is not
    defined`.
    """
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == path
    ]
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno or 1]
        text = error.msg
    at = f", line {lines[-1]}" if lines else ""
    if isinstance(error, SystemExit):
        return (
            f"{at}: ended the program (SystemExit: {error.code}); "
            "a config file only returns its values"
        )
    # For a wrong key, ml_collections lists all keys, or suggests only keys of the same section.
    wrong = re.match(r"\W*(?:Key \W*)?(\w+)\W*(?: does not exist|\\nDid you mean|$)", text)
    if wrong and isinstance(error, (AttributeError, KeyError)):
        text = f"no key {wrong[1]!r}{suggest_key(wrong[1])}"
    return f"{at}: {type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")
