"""The place of each piece in the original text: an answer is a part of that text, not of its
normalised form.

Two steps change characters before a piece is found: `Normalization`, and SentencePiece's own rules.
SentencePiece reports the bytes of its input for each piece. `Normalization` changes each word
separately, so normalised prefixes of a word show exactly which original character gave which
normalised character.
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
    """Index of the first character in the original text; never decreases."""
    end_N: np.ndarray
    """Index after the last character; equal to the start for a piece without a character."""

    def covering(self, start: int, end: int) -> tuple[int, int]:
        """Returns the first and the last piece of the characters [start, end), which are not all
        white space.

        If a character became several pieces, SentencePiece assigns it to the last of these pieces;
        the empty pieces before that are included.
        """
        first = min(
            np.searchsorted(self.end_N, start, side="right"), np.searchsorted(self.start_N, start)
        )
        first = min(int(first), len(self.end_N) - 1)
        return first, max(first, int(np.searchsorted(self.start_N, end)) - 1)


def encode(tokenizer: Tokenizer, text: str) -> Pieces:
    """Encodes one text with the place of every piece. Raises BadInput for counted vocabularies."""
    if isinstance(tokenizer, Subwords):
        # The library's offsets refer to the text before its own normalisation.
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
        # A part has one character per digit or comma; a space before the number belongs to the
        # first part.
        lengths = [len(tokenizer.pieces[part].lstrip("▁")) for part in parts[1:]]
        cuts = [start, *(end - sum(lengths[place:]) for place in range(len(lengths))), end]
        tokens += parts
        starts += cuts[:-1]
        ends += cuts[1:]
    start_N, end_N = np.array(starts, np.int64), np.array(ends, np.int64)
    # A piece ends where the next original character that left a trace starts, so a removed accent
    # belongs to the letter before it.
    after = source[np.minimum(np.searchsorted(source, source, side="right"), len(normalized))]
    end_N = np.where(end_N > start_N, after[end_N - 1], source[start_N])
    return Pieces(np.array(tokens, np.int32), source[start_N], end_N)


def aligned(normalization: Normalization, text: str) -> tuple[str, np.ndarray]:
    """Returns the normalised text, and the index in `text` of each of its n characters and of its
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
            # For normalised character i: the last character before which at most i normalised
            # characters are, so characters that leave nothing are skipped.
            before = np.maximum.accumulate(
                [len(normalization(run[:length])) for length in range(len(run))]
            )
            of_run = np.searchsorted(before, np.arange(len(normal)), "right") - 1
        parts.append(normal)
        source.extend(start + int(each) for each in of_run)
    return "".join(parts), np.array([*source, len(stripped)], np.int64)
