"""Token layouts of the original's fine-tuning: the pieces of texts, with SEP and CLS, and their segments.

    sentence, pair    A SEP (B SEP) CLS                     the longer of A and B loses pieces at its end
    choice            context SEP question+option SEP CLS   the end keeps its last pieces, the context its first
    span              paragraph SEP question SEP CLS        windows of a long paragraph; the question keeps its first

A SEP has the segment of the text before it. A is the longer text in pretraining, and so the paragraph is A. All
functions take and return pieces, int32; `length` is the number of tokens that a sequence may have. Longer documents are
one sequence of several segments, which `task.batch_of` pads on the left and cuts: so the last segment is full, what is
before it is in the memory, and no padding stands between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlnet_jax.data.tokenizer import SpecialIds

A, B, CLASS = range(3)
"""Segments. Only equality matters, and the memory is segment 0."""


class Sequence(NamedTuple):
    """Tokens that end in CLS, int32 [n], and their segments."""

    tokens: np.ndarray
    segments: np.ndarray


def joined(special: SpecialIds, *parts: np.ndarray) -> Sequence:
    """At most two texts, each with a SEP behind it, and CLS."""
    separated = [np.append(part, special.sep) for part in parts]
    tokens = np.concatenate([*separated, [special.cls]]).astype(np.int32)
    kinds = [np.full(len(part), kind) for kind, part in zip((A, B), separated, strict=False)]
    return Sequence(tokens, np.concatenate([*kinds, [CLASS]]).astype(np.int32))


def sentences(special: SpecialIds, length: int, first: np.ndarray, second: np.ndarray | None = None) -> Sequence:
    """A sentence or a pair. Pieces go one by one from the longer text, from the second if both are equal."""
    if second is None:
        return joined(special, first[: length - 2])
    room = length - 3
    a, b = len(first), len(second)
    if a + b > room:
        # The shorter one is cut only if it is longer than half, and then both end equal, or A one longer.
        a, b = max(room - b, min(a, (room + 1) // 2)), max(room - a, min(b, room // 2))
    return joined(special, first[:a], second[:b])


def choice(special: SpecialIds, length: int, context: np.ndarray, option: np.ndarray, most: int) -> Sequence:
    """One option of a multiple choice; of the question and the option the last `most` pieces are kept."""
    option = option[max(0, len(option) - min(most, length - 3)) :]
    return joined(special, context[: length - 3 - len(option)], option)


class Window(NamedTuple):
    """A part of a paragraph."""

    start: int
    """Its first piece in the paragraph."""
    sequence: Sequence
    best_N: np.ndarray
    """bool, one for each of its pieces of the paragraph: of all windows, this one has the most context around it."""


def windows(
    special: SpecialIds, length: int, paragraph: np.ndarray, question: np.ndarray, stride: int, most: int
) -> list[Window]:
    """Overlapping windows of a paragraph, `stride` apart, each with the first `most` pieces of the question.

    The context of a piece is the smaller of the numbers of pieces before and after it in the window, plus 0.01 of the
    window's length, as in the original: the last window may be shorter. The first of equal ones is the best.
    """
    question = question[: min(most, length - 4)]
    room = length - 3 - len(question)
    starts = [0]
    while starts[-1] + room < len(paragraph):
        starts.append(starts[-1] + min(stride, room))
    ends = [min(start + room, len(paragraph)) for start in starts]
    score_WN = np.full((len(starts), len(paragraph)), -1.0)
    for w, (start, end) in enumerate(zip(starts, ends, strict=True)):
        index = np.arange(end - start)
        score_WN[w, start:end] = np.minimum(index, index[::-1]) + 0.01 * (end - start)
    best_N = score_WN.argmax(axis=0)
    return [
        Window(start, joined(special, paragraph[start:end], question), best_N[start:end] == w)
        for w, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
