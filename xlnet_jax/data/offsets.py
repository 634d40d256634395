"""The characters of a text behind its pieces: for answers, which are parts of the text and not of
its normalised form.

Two steps change characters before a piece is found: `Normalization`, and SentencePiece's own rules.
SentencePiece reports the bytes of its input behind a piece. `Normalization` treats words one
by one, and normalised prefixes of a word show which character came from which: nothing is guessed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from xlnet_jax.data.subwords import Subwords
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput

_RUN = re.compile(r"\s+|\S+")


class Pieces(NamedTuple):
    """The N pieces of a text, the same as `Tokenizer.encode_normalized` gives."""

    tokens_N: np.ndarray
    """int32."""
    start_N: np.ndarray
    """First character in the original text; never falls."""
    end_N: np.ndarray
    """The character after the last; equal to the start for a piece without a character."""

    def covering(self, start: int, end: int) -> tuple[int, int]:
        """The first and the last piece of the characters [start, end), which are not all white
        space.

        If a character became several pieces, SentencePiece gives it to the last of them; the empty
        ones before it count as well.
        """
        first = min(
            np.searchsorted(self.end_N, start, side="right"), np.searchsorted(self.start_N, start)
        )
        first = min(int(first), len(self.end_N) - 1)
        return first, max(first, int(np.searchsorted(self.start_N, end)) - 1)


def encode(tokenizer: Tokenizer, text: str) -> Pieces:
    """Encodes one text with the place of every piece. Raises BadInput for counted vocabularies."""
    if isinstance(tokenizer, Subwords):
        # The library also aligns its own normalisation.
        found = tokenizer.backend.encode(text, add_special_tokens=False)
        start_N, end_N = np.array(found.offsets, np.int64).reshape(-1, 2).T
        return Pieces(np.array(found.ids, np.int32), start_N, end_N)
    if tokenizer.level != "sentencepiece":
        raise BadInput(
            f"{tokenizer.path} is a vocabulary of {tokenizer.level}; spans need a SentencePiece "
            "tokenizer, WordPiece or BPE"
        )
    normalized, source = aligned(tokenizer.normalization, text)
    # Not imported with the module: protobuf is slow to import.
    from sentencepiece import sentencepiece_pb2

    message: bytes = tokenizer.processor.encode(normalized, out_type="serialized_proto")
    by_byte = [place for place, character in enumerate(normalized) for _ in character.encode()]
    by_byte.append(len(normalized))
    tokens, starts, ends = list[int](), list[int](), list[int]()
    for piece in sentencepiece_pb2.SentencePieceText.FromString(message).pieces:  # pyright: ignore[reportAttributeAccessIssue]
        parts = tokenizer.digit_comma.get(piece.id, [piece.id])
        start, end = by_byte[piece.begin], by_byte[piece.end]
        # Digits and a comma have a character each; a space before them goes with the first digit.
        lengths = [len(tokenizer.pieces[part].lstrip("▁")) for part in parts[1:]]
        cuts = [start, *(end - sum(lengths[place:]) for place in range(len(lengths))), end]
        tokens += parts
        starts += cuts[:-1]
        ends += cuts[1:]
    start_N, end_N = np.array(starts, np.int64), np.array(ends, np.int64)
    # A character ends where the next other character starts: so an accent belongs to the letter
    # before it.
    after = source[np.minimum(np.searchsorted(source, source, side="right"), len(normalized))]
    end_N = np.where(end_N > start_N, after[end_N - 1], source[start_N])
    return Pieces(np.array(tokens, np.int32), source[start_N], end_N)


def aligned(normalization: Normalization, text: str) -> tuple[str, np.ndarray]:
    """The normalised text, and the character of `text` for each of its n characters and for its
    end: int64 [n + 1].
    """
    parts, source = list[str](), list[int]()
    stripped = text.rstrip() if normalization.remove_space else text
    for match in _RUN.finditer(stripped):
        run, start = match[0], match.start()
        if normalization.remove_space and run.isspace():
            normal, of_run = " " * (start > 0), [0] * (start > 0)
        elif (normal := normalization(run)) == run:
            of_run = range(len(run))
        else:
            # The last character whose prefix is not longer, past characters that leave nothing.
            before = np.maximum.accumulate(
                [len(normalization(run[:length])) for length in range(len(run))]
            )
            of_run = np.searchsorted(before, np.arange(len(normal)), "right") - 1
        parts.append(normal)
        source.extend(start + int(each) for each in of_run)
    return "".join(parts), np.array([*source, len(stripped)], np.int64)
