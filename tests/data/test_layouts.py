"""Layouts of token pieces: hand cases, and the loops of their definitions."""

import itertools

import numpy as np
import pytest
from special_ids import CLS, SEP

from xlnet_jax.data import layouts
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.members import MEMBERS

LAYOUT = layouts.Layout(XLNET, MEMBERS["xlnet"])


def _text(first, count):
    return np.arange(first, first + count, dtype=np.int32)


def test_the_longer_text_loses_its_end_piece_by_piece():
    for a, b, length in itertools.product(range(9), range(9), range(3, 20)):
        left, right = a, b
        while left + right > length - 3:
            if left > right:
                left -= 1
            else:
                right -= 1
        expected = layouts.framed(LAYOUT, _text(100, left), _text(200, right))
        cut = layouts.sentences(LAYOUT, length, _text(100, a), _text(200, b))
        assert cut.tokens.tolist() == expected.tokens.tolist()


def test_a_choice_keeps_the_end_of_the_option_and_the_start_of_the_context():
    row = layouts.choice(LAYOUT, 10, _text(100, 20), _text(200, 5), most=3)
    assert row.tokens.tolist() == [100, 101, 102, 103, SEP, 202, 203, 204, SEP, CLS]
    assert len(layouts.choice(LAYOUT, 6, _text(100, 20), _text(200, 50), most=128).tokens) == 6


def test_windows_cover_a_paragraph_and_every_piece_is_best_in_one():
    paragraph, question = _text(100, 23), _text(200, 9)
    found = layouts.windows(LAYOUT, 16, paragraph, question, stride=4, most=3)
    assert [window.start for window in found] == [0, 4, 8, 12, 16]
    tokens = found[-1].sequence.tokens.tolist()
    assert tokens == [*range(116, 123), SEP, 200, 201, 202, SEP, CLS]
    best = np.zeros(len(paragraph), int)
    for window in found:
        best[window.start : window.start + len(window.best_N)] += window.best_N
    assert (best == 1).all()
    # Piece 8 is the last but one of the first window, and in the middle of the second.
    assert not found[0].best_N[8] and found[1].best_N[4]
    # As in the original, 100 more pieces of a window count as one more around a piece: piece 253
    # has 2 + 2.56 and 3 + 0.54, the next one 1 + 2.56 and 4 + 0.54.
    long, short = layouts.windows(LAYOUT, 262, _text(100, 304), question, stride=250, most=3)
    assert (len(long.best_N), len(short.best_N)) == (256, 54)
    assert long.best_N[250:].tolist() == [True] * 4 + [False] * 2
    # No stride leaves pieces out between two windows.
    far = layouts.windows(LAYOUT, 16, paragraph, question, stride=50, most=3)
    assert [window.start for window in far] == [0, 10, 20]


def _of(family):
    """The layout of a family with CLS 1, SEP 2."""
    return layouts.Layout(XLNET._replace(cls=1, sep=2), MEMBERS[family])


@pytest.mark.parametrize(
    ("family", "one", "two", "segments"),
    [
        ("xlnet", [10, 11, 2, 1], [10, 11, 2, 20, 2, 1], [0, 0, 0, 1, 1, 2]),
        ("bert", [1, 10, 11, 2], [1, 10, 11, 2, 20, 2], [0, 0, 0, 0, 1, 1]),
        ("roberta", [1, 10, 11, 2], [1, 10, 11, 2, 2, 20, 2], [0, 0, 0, 0, 0, 1, 1]),
        ("gpt2", [10, 11], [10, 11, 20], [0, 0, 1]),
    ],
)
def test_the_special_pieces_of_a_family(family, one, two, segments):
    """The fault: a row that is longer than its length, or a place that is off by a special
    piece.
    """
    layout, a, b = _of(family), _text(10, 2), _text(20, 1)
    assert layouts.sentences(layout, 8, a).tokens.tolist() == one
    assert layouts.sentences(layout, len(one), _text(10, 20)).tokens.tolist() == one
    pair = layouts.sentences(layout, 8, a, b)
    assert (pair.tokens.tolist(), pair.segments.tolist()) == (two, segments)
    assert layouts.choice(layout, 8, a, b, most=3).tokens.tolist() == two
    cut = layouts.sentences(layout, 8, _text(10, 20), _text(40, 9))
    assert len(cut.tokens) == len(cut.segments) == 8
    assert one[layout.first] == 10


@pytest.mark.parametrize("family", ["xlnet", "bert", "roberta"])
def test_a_window_says_where_its_part_of_the_paragraph_begins(family):
    layout, paragraph, question = _of(family), _text(100, 23), _text(50, 3)
    for window in layouts.windows(layout, 16, paragraph, question, stride=4, most=3):
        tokens, padded = window.sequence.tokens, np.zeros(20, np.int32)
        first = layout.origin(tokens) % 20
        padded[first : first + len(tokens)] = tokens
        place = np.arange(len(window.best_N)) + window.first
        assert (
            padded[place].tolist() == paragraph[window.start : window.start + len(place)].tolist()
        )
        if family != "xlnet":
            assert tokens[:4].tolist() == [1, 50, 51, 52] and len(tokens) <= 16
