"""Cuts texts into the matches of a regular expression, such as the atoms of a SMILES.

The `tokenizers` library finds the matches, with Oniguruma's syntax, so that an exported tokenizer
cuts every text in the same way. A line end that no match contains is a piece too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from xlnet_jax.errors import BadInput, summary

SMILES = (
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>|\*|\$"
    r"|\%[0-9]{2}|[0-9])"
)
"""The pattern of Schwaller et al. 2019 (Molecular Transformer, arXiv 1811.02633): atoms, bonds,
rings and brackets of SMILES and reactions.
"""
LINE_END = r"|\n"
"""End of a pattern that matches line ends too."""


class Unseen(BadInput):
    """A part of a text that a vocabulary cannot express."""


@functools.cache
def cutter(pattern: str) -> Callable[[str], list[str]]:
    """Returns the function that cuts a text into the matches of a pattern.

    Raises BadInput for a pattern that does not compile, or that matches the empty string. The
    function raises Unseen for a text that the matches do not cover.
    """
    shown = f"pattern {pattern[:60]!r}"
    try:
        whole = tokenizers.Regex(pattern + LINE_END)
        empty = tokenizers.Regex(rf"\Ax(?:{pattern})\z")
        tokenizers.Regex(pattern)
    except Exception as error:  # the library has no class for its errors
        raise BadInput(f"{shown} does not compile ({summary(error)}); correct --pattern") from error
    if not normalizers.Replace(empty, "").normalize_str("x"):
        raise BadInput(
            f"{shown} matches the empty string; every match must have a character: correct "
            "--pattern"
        )
    matches = pre_tokenizers.Split(whole, "removed", invert=True)

    def cut(text: str) -> list[str]:
        try:
            found = matches.pre_tokenize_str(text)
        except BaseException as error:
            # The library panics where a pattern has too many ways to match; that is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise Unseen(f"{shown} takes too long on {text!r:.60} ({summary(error)})") from error
        end = 0
        for _, (start, after) in [*found, ("", (len(text), 0))]:
            if start > end:
                raise Unseen(f"{shown} does not match {text[end:start]!r:.60} of {text!r:.60}")
            end = after
        return [piece for piece, _ in found]

    return cut
