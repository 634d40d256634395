"""Whole documents in rows: every token once, no row too full, as plain Python packs them; pieces of
a document; what a row cannot hold.
"""

import pickle
import unittest.mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlnet_jax.data.batches import packing
from xlnet_jax.errors import BadInput

PROTEINS = np.random.default_rng(0).lognormal(5.8, 0.7, 3000).astype(np.int32) + 2


def all_targets(length):
    """Every token may be one."""
    return length


def plain(lengths, eod, segment_len, frame, slots, goal):
    """The rows of plain Python: first fit, longest first, in each group of consecutive pieces."""
    pieces, start = [], 0
    for length in map(int, lengths):
        text, parts, first = length - eod, 1, start
        while text > parts * (segment_len - frame):
            parts += 1
        for part in range(parts):
            size = text // parts + (part < text % parts)
            pieces.append((first, size, part, parts, len(pieces)))
            first += size
        start += length
    rows = []
    for group in range(0, len(pieces), packing.GROUP):
        opened = []
        for piece in sorted(pieces[group : group + packing.GROUP], key=lambda one: -one[1]):
            size, targets = piece[1] + frame, int(goal(np.array(piece[1])))
            fitting = (row for row in opened if row[0] >= size and row[1] >= targets)
            row = next(fitting, None)
            if row is None:
                opened.append(row := [segment_len, slots])
            row[:2] = row[0] - size, row[1] - targets
            row.append(piece)
        rows += (sorted(row[2:]) for row in opened)
    return rows


def rows_of(packed):
    """All rows, each a list of pieces as `plain` has them."""
    return [
        list(zip(*(x.tolist() for x in packed.row(row)), strict=True)) for row in range(packed.rows)
    ]


@st.composite
def cases(draw):
    """The arguments of `pack`, by name, and the number of pieces in a group."""
    segment_len, frame = draw(st.integers(4, 40)), draw(st.integers(0, 3))
    eod, share = draw(st.booleans()), draw(st.sampled_from([1, 1, 2, 6]))
    # Many short documents need more targets than a row has slots, long ones more positions.
    longest = draw(st.sampled_from([3, segment_len, 3 * segment_len, 30 * segment_len]))
    least = max(1, (segment_len - frame) // share)
    lengths = draw(st.lists(st.integers(1 + eod, longest), min_size=1, max_size=60))
    arguments = {
        "lengths": np.array(lengths, np.int32),
        "eod": eod,
        "segment_len": segment_len,
        "frame": frame,
        "slots": draw(st.just(least) | st.integers(least, segment_len)),
        "goal": lambda length: np.maximum(1, length // share),
    }
    return arguments, draw(st.integers(1, 20))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases())
def test_rows_are_those_of_plain_first_fit_and_hold_every_token_once(case):
    arguments, group = case
    lengths, eod, segment_len, frame, slots, goal = arguments.values()
    with (
        unittest.mock.patch.object(packing, "GROUP", group),
        unittest.mock.patch.object(packing, "_TOGETHER", 3),
    ):
        packed = packing.pack(**arguments)
        rows = rows_of(packed)
        assert rows == plain(**arguments)
        assert rows == rows_of(pickle.loads(pickle.dumps(packed)))
        # A document more changes the groups that it is in, and no other.
        more = rows_of(packing.pack(**arguments | {"lengths": np.append(lengths, np.int32(5))}))
    complete = [row for row in rows if row[0][4] < packed.groups.pieces // group * group]
    assert more[: len(complete)] == complete
    read = np.zeros(lengths.sum(), int)
    for row in rows:
        sizes = np.array([piece[1] for piece in row])
        assert (sizes + frame).sum() <= segment_len and goal(sizes).sum() <= slots
        for first, size, *_ in row:
            read[first : first + size] += 1
    ends = np.cumsum(lengths) - 1
    assert (read[ends] == (0 if eod else 1)).all() and (np.delete(read, ends) == 1).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 500), st.integers(1, 60))
def test_a_document_is_cut_into_the_fewest_pieces_of_nearly_equal_length(length, longest):
    packed = packing.pack(np.array([length], np.int32), False, longest, 0, longest, all_targets)
    rows = sorted(piece for row in rows_of(packed) for piece in row)
    sizes = [piece[1] for piece in rows]
    assert len(sizes) == -(-length // longest) and sum(sizes) == length
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    assert [piece[2:] for piece in rows] == [(i, len(rows), i) for i in range(len(rows))]


@pytest.mark.parametrize(("segment_len", "share"), [(256, 1), (512, 6)])
def test_groups_of_1024(segment_len, share):
    """The real size, for positions that need more than a byte; targets that bind."""

    def goal(length):
        return np.maximum(1, length // share)

    arguments = (PROTEINS, True, segment_len, 2, segment_len // share, goal)
    packed = packing.pack(*arguments)
    assert rows_of(packed) == plain(*arguments)
    assert packing.GROUP == 1024 and len(packed.first_row_G) > 3


def test_a_table_is_two_bytes_for_a_piece_beside_the_lengths():
    packed = packing.pack(PROTEINS, True, 512, 2, 512, all_targets)
    assert packed.groups.length_D is PROTEINS
    size = len(pickle.dumps(packed)) - PROTEINS.nbytes
    assert size < 2 * packed.groups.pieces + 100 * len(packed.first_row_G) + 2000
    with pytest.raises(IndexError):
        packed.row(packed.rows)


@pytest.mark.parametrize(
    ("lengths", "segment_len", "slots", "message"),
    [
        ([5, 5], 2, 2, "data.segment_len=2 cannot hold a token of a document and the 2 tokens"),
        (
            [3, 9, 40],
            32,
            14,
            "data.num_predict=14 cannot hold the 20 targets of a piece of 20 tokens; use 30",
        ),
        ([5, 1, 5], 32, 32, r"document 1 \(0 is the first\) has no token of text"),
        ([5, 5, 0], 32, 32, r"document 2 \(0 is the first\) has no token of text"),
    ],
)
def test_what_a_row_cannot_hold(lengths, segment_len, slots, message):
    with pytest.raises(BadInput, match=message):
        packing.pack(np.array(lengths, np.int32), True, segment_len, 2, slots, all_targets)
