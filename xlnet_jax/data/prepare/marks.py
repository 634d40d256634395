"""Counts the marks that normalisation drops from scripts other than Latin, Greek and Cyrillic.

By default text is decomposed (NFKD) and loses its combining marks: the original's accent stripping. That is meant for
`é` -> `e`. In Hindi, Thai, Hebrew, Arabic or Japanese the same rule drops viramas, tones, vowels and voicing: other
words. So a dropped mark counts as lost unless it is one of the accents that scripts share, which are the blocks that
Unicode calls Combining Diacritical Marks, and Cyrillic's own. Hangul loses nothing, but stays in pieces without NFKC.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping

import numpy as np

from xlnet_jax.data.tokenizer import Normalization

NAMES = ("letters", "marks", "hangul")
"""What is counted: letters and marks seen, in decomposed form, where a Hangul syllable is one; of these, the marks that
were dropped, shared accents left out; and Hangul syllables that stay in pieces."""
LARGEST_SHARE = 0.005
"""Of letters and marks; above it `warning` has something to say."""

# Accents of Latin, Greek and Cyrillic.
_SHARED = ((0x300, 0x36F), (0x483, 0x487), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))


def warning(dropped: Mapping[str, int]) -> str | None:
    """One line with the option to set, if more than `LARGEST_SHARE` is lost or in pieces; takes `NAMES` and counts."""
    letters, lost, split = (dropped[name] for name in NAMES)
    most = LARGEST_SHARE * letters
    if lost <= most and split <= most:
        return None
    what, option = f"takes {split:,} Hangul syllables apart ({split / letters:.1%} of the letters)", "--nfkc"
    if lost > most:
        accents = "not counting accents of Latin, Greek and Cyrillic"
        what = f"drops {lost:,} of {letters:,} letters and marks ({lost / letters:.1%}), {accents}"
        option = "--keep_accents"
    return f"normalisation {what}: that changes words; prepare in a new folder with {option}"


def count(text: str, normalization: Normalization) -> dict[str, int]:
    """The numbers of `NAMES` in a text. A character costs a few ns; `keep_accents` nothing."""
    if normalization.keep_accents:
        return {}
    # Every character counts as often as it occurs.
    times = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
    seen = np.flatnonzero(times)
    found = times[seen] @ np.array([_of_character(chr(code)) for code in seen.tolist()], int).reshape(-1, len(NAMES))
    return dict(zip(NAMES, (found * [1, 1, not normalization.nfkc]).tolist(), strict=True))


@functools.cache
def _of_character(character: str) -> tuple[int, int, int]:
    """The numbers of `NAMES` for one character."""
    if "\uac00" <= character <= "\ud7a3":  # Hangul
        return 1, 0, 1
    parts = unicodedata.normalize("NFKD", character)
    dropped = filter(unicodedata.combining, parts)
    lost = sum(not any(first <= ord(mark) <= last for first, last in _SHARED) for mark in dropped)
    return sum(unicodedata.category(part)[0] in "LM" for part in parts), lost, 0
