"""Values that say that an example has no label.

    null, NaN, `-`, an empty cell    of JSON, pandas, SNLI and MultiNLI, CSV
    -1                               of TFDS and Hugging Face, beside classes 0 to n - 1

Beside 0 and 1 alone, -1 is a third class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

MINUS_ONE = frozenset({"-1", "-1.0"})


def rule(classes: Collection[str] = ()) -> Callable[[Any], bool]:
    """Says of a label as read whether there is none. What is among the classes is a label.

    A tuple has the labels of words, where `-` is a tag; it is none if that of one word is.
    """
    numbers = MINUS_ONE if are_counted(classes) else ()
    texts = {"", "-", "nan", "null", *numbers}.difference(classes)

    def is_none(label: Any) -> bool:
        if isinstance(label, tuple):
            return any(tag in (None, "") or tag != tag or str(tag) in numbers for tag in label)
        return label is None or str(label).strip().lower() in texts

    return is_none


def null(classes: Collection[str]) -> Callable[[Any], bool]:
    """`rule` of a task whose label may be any text: only null is none."""
    return lambda label: label is None


def beside_others(classes: Collection[str]) -> Callable[[Any], bool]:
    """`rule` of a task that needs no labels. Null is the label of all examples then; beside others
    it is read as "".
    """
    is_none = rule()
    return lambda label: label is not None and is_none(label)


def are_counted(classes: Collection[str]) -> bool:
    """Whether there are classes, and they are 0 to n - 1."""
    numbers = {name.removesuffix(".0") for name in classes}
    return bool(classes) and numbers == {*map(str, range(len(classes)))}
