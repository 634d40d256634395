"""Token layouts of examples: the pieces of texts, with SEP and CLS where the member has them, and
their segments.

                    XLNet                                 BERT, ALBERT (RoBERTa: SEP SEP after the
                                                          first text)
    sentence, pair  A SEP (B SEP) CLS                     CLS A SEP (B SEP)
    choice          context SEP question+option SEP CLS   CLS context SEP question+option SEP
    span            paragraph SEP question SEP CLS        CLS question SEP paragraph SEP

GPT-2 has none of these pieces, and its texts follow each other. Long texts are cut. The longer text
of a pair loses its last pieces. In a choice, question+option keeps its last pieces and the context
its first. A long paragraph is read in windows, and the question keeps its first pieces. A SEP has
the segment of the text before it. In XLNet's pretraining A is the longer text, so the paragraph is
A.

All functions take and return pieces, int32; `length` is the largest number of tokens of a sequence.
`Task.batch` pads a longer document on the left and cuts it into several segments. So the last
segment is full, the memory holds the text before it, and no padding is between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.members.member import Member

A, B, CLASS = range(3)
"""Numbers of segments. XLNet only compares them for equality, and its memory is segment 0; a CLS
that is the first piece has segment A.
"""


class Sequence(NamedTuple):
    """Tokens with their special pieces, int32 [n], and their segments."""

    tokens: np.ndarray
    segments: np.ndarray


class Layout(NamedTuple):
    """The places of the special pieces of a member."""

    special: SpecialIds
    member: Member

    @property
    def first(self) -> int:
        """Index of the first text's first piece."""
        return int(self.member.cls == "first")

    def extra(self, texts: int) -> int:
        """Returns the number of special pieces around one text or two."""
        separators = self.member.separators
        return (self.member.cls != "none") + (texts - 1) * separators + min(separators, 1)

    def origin(self, tokens: np.ndarray) -> int:
        """Returns the index of a sequence's first token in the padded array; negative (from the
        end) if the padding is on the left.
        """
        return -len(tokens) if self.member.cls == "last" else 0


def framed(layout: Layout, *parts: np.ndarray) -> Sequence:
    """Puts the special pieces around one or two texts."""
    (special, member), last = layout, len(parts) - 1
    separators = [member.separators] * last + [min(member.separators, 1)]
    texts = [
        np.append(part, [special.sep] * count)
        for part, count in zip(parts, separators, strict=True)
    ]
    blocks = [
        [special.cls] * (member.cls == "first"),
        *texts,
        [special.cls] * (member.cls == "last"),
    ]
    kinds = np.repeat([A, *(A, B)[: len(parts)], CLASS], [len(block) for block in blocks])
    return Sequence(np.concatenate(blocks).astype(np.int32), kinds.astype(np.int32))


def sentences(
    layout: Layout, length: int, first: np.ndarray, second: np.ndarray | None = None
) -> Sequence:
    """Lays out a sentence or a pair. The longer text loses pieces one by one; at equal lengths, the
    second text.
    """
    if second is None:
        return framed(layout, first[: length - layout.extra(1)])
    room = length - layout.extra(2)
    a, b = len(first), len(second)
    if a + b > room:
        # The shorter text is cut only if it is longer than half of the room. Then both get equal
        # lengths, or A one piece more.
        a, b = max(room - b, min(a, (room + 1) // 2)), max(room - a, min(b, room // 2))
    return framed(layout, first[:a], second[:b])


def choice(
    layout: Layout, length: int, context: np.ndarray, option: np.ndarray, most: int
) -> Sequence:
    """Lays out an option of a multiple choice. `option` holds the question and the option, and
    keeps its last `most` pieces.
    """
    room = length - layout.extra(2)
    option = option[max(0, len(option) - min(most, room)) :]
    return framed(layout, context[: room - len(option)], option)


class Window(NamedTuple):
    """A part of a paragraph."""

    start: int
    """First piece of the window in the paragraph."""
    sequence: Sequence
    first: int
    """Index of the piece `start` in the padded sequence; see `Layout.origin`."""
    best_N: np.ndarray
    """bool [N], for each piece of the paragraph in this window: whether this window is the best of
    all windows for the piece; see `windows`.
    """


def windows(
    layout: Layout, length: int, paragraph: np.ndarray, question: np.ndarray, stride: int, most: int
) -> list[Window]:
    """Cuts a paragraph into overlapping windows, `stride` apart, each with the first `most` pieces
    of the question.

    The context of a piece is the number of pieces before or after it in the window, whichever is
    smaller, plus 0.01 times the window's length, as in the original, because the last window may be
    shorter. The first of equally good windows is the best.
    """
    room = length - layout.extra(2)
    question = question[: min(most, room - 1)]
    room -= len(question)
    starts = [0]
    while starts[-1] + room < len(paragraph):
        starts.append(starts[-1] + min(stride, room))
    parts = [slice(start, min(start + room, len(paragraph))) for start in starts]
    score_WN = np.full((len(parts), len(paragraph)), -1.0)
    for w, part in enumerate(parts):
        index = np.arange(part.stop - part.start)
        score_WN[w, part] = np.minimum(index, index[::-1]) + 0.01 * len(index)
    best_N, question_first = score_WN.argmax(axis=0), layout.member.cls != "last"
    found = []
    for w, part in enumerate(parts):
        texts = (question, paragraph[part]) if question_first else (paragraph[part], question)
        sequence = framed(layout, *texts)
        before = len(question) + layout.member.separators if question_first else 0
        first = layout.origin(sequence.tokens) + layout.first + before
        found.append(Window(part.start, sequence, first, best_N[part] == w))
    return found
