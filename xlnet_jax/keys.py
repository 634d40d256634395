"""What a configuration key is: a field with its documentation, its rule on resume, and the values
that it may have.
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

Rule = tuple[str, bool, str]
"""Key, whether its value is good beside the values of other keys, and the message if it is not."""

_BOUNDS = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}


def key(
    default: Any,
    doc: str,
    resume: str = FROZEN,
    choices: str = "",
    *,
    ge: float = 0,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    special: dict[int, str] | None = None,
    of_run: bool = False,
    phased: bool = False,
) -> Any:
    """A dataclass field with all that is known of a key.

    A key of `model` is architecture, which parameters bring with them to another run, unless it is
    free or `of_run`.

    Args:
      resume: `FROZEN`, `ELASTIC` or `FREE`.
      choices: the allowed values of a string, separated by spaces; empty = any.
      ge, gt, le, lt: bounds of a number: at least, above, at most, below. The upper ones are far
        above any run, and below the size at which a typing error takes all memory, or an hour,
        before it fails.
      phased: whether a phase of a run may have its own value; see `config.phases`.
      special: numbers outside the bounds that have a meaning of their own: `{-1: "off"}`.
    """
    if type(default) is int and le is lt is None:
        le = LARGEST_INT
    bounds = {"at least": ge if gt is None else None, "above": gt, "at most": le, "below": lt}
    metadata = {
        "doc": doc,
        "resume": resume,
        "choices": tuple(choices.split()),
        "special": special or {},
        "of_run": of_run,
        "phased": phased,
        "bounds": {}
        if isinstance(default, str | bool)
        else {k: v for k, v in bounds.items() if v is not None},
    }
    return dataclasses.field(default=default, metadata=metadata)


def mistyped(field: dataclasses.Field[Any], value: Any) -> str:
    """The end of a message about a value: `must be of type int`; "" if it is. Whole numbers are
    real ones too.
    """
    kind = type(field.default)
    return (
        ""
        if type(value) is kind or (type(value) is int and kind is float)
        else f"must be of type {kind.__name__}"
    )


def allowed(field: dataclasses.Field[Any], bounds: dict[str, float]) -> str:
    """The numbers that a key takes by some of its bounds: `-1 (off) or at least 1 and at most 16`;
    "" = any.
    """
    special = [f"{value} ({meaning})" for value, meaning in field.metadata["special"].items()]
    limits = " and ".join(f"{name} {bound:,}" for name, bound in bounds.items())
    return " or ".join([*special, limits] if limits else special)


def mistake(field: dataclasses.Field[Any], value: Any) -> str:
    """The end of a message about a value of the right type: `must be at least 1`; "" if it is
    allowed.
    """
    choices, bounds = field.metadata["choices"], field.metadata["bounds"]
    if choices and value not in choices:
        return f"is not one of {', '.join(choices)}{suggest(str(value), choices)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be finite"
    if value in field.metadata["special"]:
        return ""
    broken = {name: bound for name, bound in bounds.items() if not _BOUNDS[name](value, bound)}
    return f"must be {allowed(field, broken)}" if broken else ""


def numbers(text: str, kind: type) -> list[Any]:
    """The numbers of a text with commas; if one of its words is none, a NaN, which no rule
    allows.
    """
    try:
        return [kind(word) for word in text.split(",")] if text else []
    except ValueError:
        return [math.nan]


def split(text: str) -> list[str]:
    """The names in a text with commas, or in a list of JSON. Raises BadInput for a broken one."""
    if not text.startswith('["'):
        return [name.strip() for name in text.split(",")] if text else []
    try:
        return [str(name) for name in json.loads(text)]
    except ValueError as error:
        raise BadInput(
            f'{text[:60]!r} is no list of JSON ({error}); write it as ["joy, love", "anger"]'
        ) from error


def joined(names: list[str]) -> str:
    """The text of which `split` reads these names: a list of JSON if commas do not do."""
    text = ",".join(names)
    plain = [name.strip() for name in text.split(",")] == names and not text.startswith('["')
    return text if plain else json.dumps(names, ensure_ascii=False)


def divides(part: int, whole: int) -> bool:
    """Whether a number is a multiple of another; a part below 1 is against its own bound."""
    return part < 1 or whole % part == 0
