"""Counts of the marks that normalisation removes: accents, umlauts, viramas, tones, vowel signs and
points.

A vocabulary that is trained here keeps marks by default. The released vocabularies of XLNet, ALBERT
and uncased BERT were trained without marks: `benötigt` becomes `benotigt`, and most words of Hindi,
Thai or Arabic become other words. Hangul loses nothing by decomposition (NFKD), but its syllables
stay decomposed without NFKC.
"""

from __future__ import annotations

import functools
import logging
import unicodedata
from collections.abc import Callable, Mapping

import numpy as np

NAMES = ("letters", "marks", "hangul")
"""Names of the counts: letters and marks of the decomposed text, in which a Hangul syllable counts
once; removed marks; and Hangul syllables that stay decomposed.
"""
LARGEST_SHARE = 0.005
"""Share of the letters and marks above which `say` warns of changed words."""

_KEPT_BY = {
    "accents, umlauts, vowel signs and so on off": (
        "a vocabulary that is trained here (no --tokenizer) without --strip_accents"
    ),
    "Hangul syllables apart": "--nfkc",
}
_log = logging.getLogger("xlnet_jax")


def say(dropped: Mapping[str, int]) -> None:
    """Logs the counts of removed marks and of decomposed Hangul, by `NAMES`. A large count is a
    warning, with the option that keeps the text.
    """
    letters, *others = (dropped[name] for name in NAMES)
    for count, what in zip(others, _KEPT_BY, strict=True):
        changes = count > LARGEST_SHARE * letters
        if count:
            _log.log(
                logging.WARNING if changes else logging.INFO,
                "normalisation takes %d %s (%.2f %% of the letters)%s",
                count,
                what,
                100 * count / letters,
                f": that changes words; to keep them, prepare in a new folder with {_KEPT_BY[what]}"
                * changes,
            )


def count(text: str, cleaned: Callable[[str], str] | None) -> dict[str, int]:
    """Returns the counts of `NAMES` for a text that `cleaned` (`Tokenizer.cleaned`) normalises;
    empty without `cleaned`.
    """
    if cleaned is None:
        return {}
    # How often each character occurs, by code point.
    times = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
    seen = np.flatnonzero(times)
    each = [_of_character(chr(code), cleaned) for code in seen.tolist()]
    sums = times[seen] @ np.array(each, int).reshape(-1, len(NAMES))
    return dict(zip(NAMES, sums.tolist(), strict=True))


@functools.cache
def _of_character(character: str, cleaned: Callable[[str], str]) -> tuple[int, int, int]:
    """Returns the counts of `NAMES` for one character."""
    left = cleaned(character)
    if "\uac00" <= character <= "\ud7a3":  # Hangul
        return 1, 0, int(len(left) > 1)
    before, after = (unicodedata.normalize("NFKD", each) for each in (character, left))
    marks = [
        sum(unicodedata.category(part)[0] == "M" for part in parts) for parts in (before, after)
    ]
    return sum(unicodedata.category(part)[0] in "LM" for part in before), marks[0] - marks[1], 0
