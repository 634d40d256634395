"""Counts the marks that normalisation drops from scripts other than Latin, Greek and Cyrillic.

By default text is decomposed (NFKD) and loses its combining marks: the original's accent stripping. That is meant for
`é` -> `e`. In Hindi, Thai, Hebrew, Arabic or Japanese the same rule drops viramas, tones, vowels and voicing: other
words. So a dropped mark counts as lost unless it is one of the accents that scripts share, which are the blocks that
Unicode calls Combining Diacritical Marks, and Cyrillic's own. Hangul loses nothing, but stays in pieces without NFKC.
"""

from __future__ import annotations

import dataclasses
import functools
import string
import unicodedata

import numpy as np

from xlnet_jax.data.tokenizer import Normalization

LARGEST_SHARE = 0.005
"""Of letters and marks; above it `Counts.warning` has something to say."""

# Accents of Latin, Greek and Cyrillic.
_SHARED = ((0x300, 0x36F), (0x483, 0x487), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))
_HANGUL = range(0xAC00, 0xD7A4)
_ASCII, _ASCII_LETTERS = bytes(range(128)), string.ascii_letters.encode()


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
    """What `normalization` drops from `text`. ASCII costs 0.5 ns a character, other text about 10."""
    if normalization.keep_accents:
        return Counts()
    utf8 = text.encode()
    found = Counts(len(utf8) - len(utf8.translate(None, _ASCII_LETTERS)))
    if not text.isascii():
        codes = np.frombuffer(utf8.translate(None, _ASCII).decode().encode("utf-32-le"), np.uint32)
        # Every character counts as often as it occurs.
        times = np.bincount(codes)
        seen = np.flatnonzero(times)
        found += Counts(*(times[seen] @ np.array([_of_character(chr(code)) for code in seen.tolist()])).tolist())
    return dataclasses.replace(found, hangul=0) if normalization.nfkc else found


@functools.cache
def _of_character(character: str) -> tuple[int, int, int]:
    """The numbers of `Counts` for one character that is not ASCII."""
    if ord(character) in _HANGUL:
        return 1, 0, 1
    parts = unicodedata.normalize("NFKD", character)
    dropped = filter(unicodedata.combining, parts)
    lost = sum(not any(first <= ord(mark) <= last for first, last in _SHARED) for mark in dropped)
    return sum(unicodedata.category(part)[0] in "LM" for part in parts), lost, 0
