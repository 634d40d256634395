"""Values that stand for a missing label.

    null, NaN, `-`, an empty cell    in JSON, pandas, SNLI and MultiNLI, CSV
    -1                               in TFDS and Hugging Face, beside classes 0 to n - 1

If the other classes are only 0 and 1, -1 is a third class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

MINUS_ONE = frozenset({"-1", "-1.0"})


def rule(classes: Collection[str] = ()) -> Callable[[Any], bool]:
    """Makes a function that tells whether a label, as read, is missing. The name of a class never
    stands for a missing label.

    Token classification has a tuple of labels, one per word. The tuple is missing if the label of
    any word is missing; `-` is a label there.
    """
    numbers = MINUS_ONE if are_counted(classes) else ()
    texts = {"", "-", "nan", "null", *numbers}.difference(classes)

    def is_none(label: Any) -> bool:
        if isinstance(label, tuple):
            return any(tag in (None, "") or tag != tag or str(tag) in numbers for tag in label)
        return label is None or str(label).strip().lower() in texts

    return is_none


def null(classes: Collection[str]) -> Callable[[Any], bool]:
    """Makes the `rule` of a task whose label may be any text: only null is missing."""
    return lambda label: label is None


def beside_others(classes: Collection[str]) -> Callable[[Any], bool]:
    """Makes the `rule` of a task that needs no labels. Null means that the examples have no column
    of labels. In a column of labels, the reader turns null into "", which is missing.
    """
    is_none = rule()
    return lambda label: label is not None and is_none(label)


def are_counted(classes: Collection[str]) -> bool:
    """Returns whether the classes are 0 to n - 1, with n > 0."""
    numbers = {name.removesuffix(".0") for name in classes}
    return bool(classes) and numbers == {*map(str, range(len(classes)))}
