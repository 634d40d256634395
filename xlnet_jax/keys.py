"""Declares configuration keys: dataclass fields with documentation, allowed values and a rule on
resume.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from typing import Any

from xlnet_jax.errors import LARGEST_INT, BadInput
from xlnet_jax.messages import suggest

FROZEN, ELASTIC, FREE = "frozen", "elastic", "free"

Rule = tuple[str, object, str]
"""Key, a truth value (whether the key agrees with other keys), and the message if it is false."""

_BOUNDS = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}
_ENDS = {"[": "at least", "(": "above", "]": "at most", ")": "below"}
"""Names of the bounds by the ends of an interval."""


def key(
    default: Any,
    doc: str,
    values: str = "",
    resume: str = FROZEN,
    *,
    special: dict[int, str] | None = None,
    of_run: bool = False,
    phased: bool = False,
) -> Any:
    """Returns a dataclass field with the documentation and the rules of a key.

    A key of `model` belongs to the architecture, unless the key is free or `of_run`. Parameters
    bring the architecture with them to another run.

    Args:
      values: of a string, the allowed words, separated by spaces, or "" for any text; of a number,
        its interval, such as `(0, 1]`, or "" for `[0, inf)`. An upper end is far above any run, but
        so low that a typing error does not take all memory, or an hour, before it fails. A whole
        number without an upper end is at most `LARGEST_INT`.
      resume: `FROZEN`, `ELASTIC` or `FREE`.
      special: numbers outside the interval with a meaning: `{-1: "off"}`.
      phased: whether a phase of a run may have its own value; see `config.phases`.
    """
    is_text = isinstance(default, str | bool)
    metadata = {
        "doc": doc,
        "resume": resume,
        "choices": tuple(values.split()) if is_text else (),
        "bounds": {} if is_text else _bounds(values or "[0, inf)", type(default) is int),
        "special": special or {},
        "of_run": of_run,
        "phased": phased,
    }
    return dataclasses.field(default=default, metadata=metadata)


def _bounds(interval: str, whole: bool) -> dict[str, int]:
    """Returns the ends of an interval of whole or real numbers, by the names of `_BOUNDS`."""
    least, most = interval[1:-1].split(", ")
    bounds = {_ENDS[interval[0]]: int(least)}
    if most != "inf":
        return bounds | {_ENDS[interval[-1]]: int(most)}
    return bounds | ({"at most": LARGEST_INT} if whole else {})


def mistyped(field: dataclasses.Field[Any], value: Any) -> str:
    """Returns the end of a message about a value of a wrong type, `must be of type int`; "" for the
    right type. A real number may be a whole one.
    """
    kind = type(field.default)
    return (
        ""
        if type(value) is kind or (type(value) is int and kind is float)
        else f"must be of type {kind.__name__}"
    )


def allowed(field: dataclasses.Field[Any], bounds: dict[str, int]) -> str:
    """Returns the allowed numbers by some of the bounds: `-1 (off) or at least 1 and at most 16`;
    "" = any number.
    """
    special = [f"{value} ({meaning})" for value, meaning in field.metadata["special"].items()]
    limits = " and ".join(f"{name} {bound:,}" for name, bound in bounds.items())
    return " or ".join([*special, limits] if limits else special)


def mistake(field: dataclasses.Field[Any], value: Any) -> str:
    """Returns the end of a message about a value of the right type that is not allowed, `must be at
    least 1`; "" for an allowed value.
    """
    choices = field.metadata["choices"]
    bounds = field.metadata["bounds"]
    if choices and value not in choices:
        return f"is not one of {', '.join(choices)}{suggest(str(value), choices)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be finite"
    if value in field.metadata["special"]:
        return ""
    broken = {name: bound for name, bound in bounds.items() if not _BOUNDS[name](value, bound)}
    return f"must be {allowed(field, broken)}" if broken else ""


def split_numbers(text: str, kind: type) -> list[Any]:
    """Returns the numbers in a text with commas; [NaN], which no rule allows, if a word is no
    number.
    """
    try:
        return [kind(word) for word in text.split(",")] if text else []
    except ValueError:
        return [math.nan]


def split_names(text: str) -> list[str]:
    """Reads names from a text with commas or a JSON list. Raises BadInput for a broken list."""
    if not text.startswith('["'):
        return [name.strip() for name in text.split(",")] if text else []
    try:
        return [str(name) for name in json.loads(text)]
    except ValueError as error:
        raise BadInput(
            f'{text[:60]!r} is no list of JSON ({error}); write it as ["joy, love", "anger"]'
        ) from error


def join_names(names: list[str]) -> str:
    """Returns the text that `split_names` reads: names with commas, or a JSON list if a name has a
    comma.
    """
    text = ",".join(names)
    plain = [name.strip() for name in text.split(",")] == names and not text.startswith('["')
    return text if plain else json.dumps(names, ensure_ascii=False)
