"""Warnings of text that a tokenizer does not know, because the tokenizer was made for another
language, script or case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from xlnet_jax.data.tokenizer import Tokenizer

LEAST_SHARE = 0.005
"""Smallest share of unknown pieces that gives a warning."""

_LONGEST = 40  # characters of an example
_log = logging.getLogger("xlnet_jax")


def example(tokenizer: Tokenizer, text: str) -> str:
    """Returns the first word of a text with an unknown piece, or the text if no word has such a
    piece, cut to `_LONGEST` characters.
    """
    words = ((word, tokenizer.encode(word)) for word in text.split())
    return next((word for word, ids_N in words if tokenizer.special.unk in ids_N), text)[:_LONGEST]


def warn(unknown: int, pieces: int, where: str, example: Callable[[], str]) -> None:
    """Logs one line if at least `LEAST_SHARE` of the pieces of some text are unknown."""
    if unknown >= max(1, LEAST_SHARE * pieces):
        _log.warning(
            "%s: the tokenizer does not know %.1f %% of the pieces, such as %r; "
            "use a tokenizer of this language, script and case, or one with more pieces",
            where,
            100 * unknown / pieces,
            example(),
        )


def warn_of_texts(
    tokenizer: Tokenizer, where: str, ids: Sequence[np.ndarray], text_of: Callable[[int], str]
) -> None:
    """Calls `warn` for N texts with the ids `ids`, int [n] each; `text_of` returns the text of a
    number below N.
    """
    of_text = [int(np.count_nonzero(tokens_N == tokenizer.special.unk)) for tokens_N in ids]
    warn(
        sum(of_text),
        sum(map(len, ids)),
        where,
        lambda: example(tokenizer, text_of(int(np.argmax(of_text)))),
    )
