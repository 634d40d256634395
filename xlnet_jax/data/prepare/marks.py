"""Counts the marks that normalisation drops from scripts other than Latin, Greek and Cyrillic.

By default text is decomposed (NFKD) and loses its combining marks: the original's accent stripping. That is meant for
`é` -> `e`. In Hindi, Thai, Hebrew, Arabic or Japanese the same rule drops viramas, tones, vowels and voicing: other
words. So a dropped mark counts as lost unless it is one of the accents that scripts share, which are the blocks that
Unicode calls Combining Diacritical Marks, and Cyrillic's own. Hangul loses nothing, but stays in pieces without NFKC.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import unicodedata

import numpy as np

from xlnet_jax.data.tokenizer import Normalization

LARGEST_SHARE = 0.005
"""Of letters and marks; above it `Counts.warning` has something to say."""

# Accents of Latin, Greek and Cyrillic.
_SHARED = ((0x300, 0x36F), (0x483, 0x487), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))
_HANGUL = (0xAC00, 0xD7A3)
_IDEOGRAPHS = ((0x3400, 0x9FFF), (0x17000, 0x18CFF), (0x20000, 0x3347F))  # Han and Tangut: nothing to drop
_END = 0x1F000  # above it are no other letters, and no marks that are dropped


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of some text.

    Attributes:
      letters: letters and marks seen, in decomposed form; a Hangul syllable is one.
      marks: of these, marks that were dropped, shared accents left out.
      hangul: of these, Hangul syllables that stay in pieces.
    """

    letters: int = 0
    marks: int = 0
    hangul: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.letters + other.letters, self.marks + other.marks, self.hangul + other.hangul)

    def warning(self) -> str | None:
        """One line with the option to set, if more than `LARGEST_SHARE` is lost or in pieces."""
        lost, split = (count / max(self.letters, 1) for count in (self.marks, self.hangul))
        if lost > LARGEST_SHARE:
            return (
                f"normalisation drops {self.marks:,} of {self.letters:,} letters and marks ({lost:.1%}), not counting "
                "accents of Latin, Greek and Cyrillic: it changes the words of this text; prepare it in a new folder "
                "with --keep_accents"
            )
        if split > LARGEST_SHARE:
            return (
                f"normalisation takes {self.hangul:,} Hangul syllables apart ({split:.1%} of the letters); prepare "
                "this text in a new folder with --nfkc, which puts them together again"
            )
        return None


def count(text: str, normalization: Normalization) -> Counts:
    """What `normalization` drops from `text`. ASCII costs about a nanosecond a character, other text ten."""
    if normalization.keep_accents:
        return Counts()
    # Lower case, then one comparison: what lies before `a` wraps round and is large, as are bytes above ASCII.
    ascii_letters = int(np.count_nonzero((np.frombuffer(text.encode(), np.uint8) | 32) - np.uint8(97) < 26))
    if text.isascii():
        return Counts(ascii_letters)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    found = np.bincount(_table()[codes[codes > 127]], minlength=256)
    letters, marks, hangul = (int(found @ weight) for weight in _WEIGHTS)
    return Counts(ascii_letters + letters, marks, 0 if normalization.nfkc else hangul)


# An entry of the table is letters + 32 * marks + 128 * hangul.
_WEIGHTS = tuple(np.arange(256) // unit % size for unit, size in ((1, 32), (32, 4), (128, 2)))


@functools.cache
def _table() -> np.ndarray:
    """uint8, by code point: what `Counts` counts. Made once in a process, and only where text is not ASCII."""
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    for first, last in _IDEOGRAPHS:
        table[first : last + 1] = 1
    table[_HANGUL[0] : _HANGUL[1] + 1] = 1 + 128
    for code in np.flatnonzero(table[:_END] == 0).tolist():
        character = chr(code)
        parts = unicodedata.normalize("NFKD", character) if unicodedata.decomposition(character) else character
        letters = sum(unicodedata.category(part)[0] in "LM" for part in parts)
        table[code] = letters + 32 * sum(map(_is_lost, parts))
    return table


def _is_lost(character: str) -> bool:
    if not unicodedata.combining(character):
        return False
    return not any(first <= ord(character) <= last for first, last in _SHARED)
