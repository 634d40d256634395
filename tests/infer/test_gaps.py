"""Texts with gaps: what is known stands there as in the text, and gaps come back as text."""

import re

import numpy as np
import pytest
from data_fixtures import ALPHABET, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st
from special_ids import EOD, EOP, MASK

from xlnet_jax.errors import BadInput
from xlnet_jax.infer.decoder import Filled
from xlnet_jax.infer.infill import (
    LONGEST,
    Passage,
    as_text,
    continuation,
    gapped,
    ids_of_passage,
    infilled,
    prompt,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.text(ALPHABET, max_size=12), min_size=2, max_size=5),
    st.sampled_from(["sentencepiece", "characters", "bytes", "words", "pattern"]),
)
def test_known_parts_are_those_of_the_text(parts, level):
    """No space comes or goes but at a gap's left side, where it is part of the gap."""
    tools = tokenizer_of(level)
    found = gapped(tools, "[MASK]".join(parts), 1)
    assert len(found.gaps) == len(parts) - 1
    for start, end in found.gaps:
        assert (found.ids[start:end], found.known[start:end]) == ([MASK], [False])
    assert sum(found.known) == len(found.ids) - len(found.gaps)
    cuts = [0, *(cut for gap in found.gaps for cut in gap), len(found.ids)]
    kept = [found.ids[start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True)]
    decoded = [tools.decode(ids) for ids in kept]
    if level == "words":
        known = [
            [word if word in tools.pieces else "<unk>" for word in part.split()] for part in parts
        ]
        assert [text.split() for text in decoded] == known
        return
    if level == "sentencepiece":
        assert [text.split() for text in decoded] == [part.split() for part in parts]
        for part, ids in list(zip(parts, kept, strict=True))[1:]:
            # A word starts there only if the text has a space.
            starts = bool(len(ids)) and tools.pieces[ids[0]].startswith("▁")
            assert starts == (part[:1].isspace() and bool(part.strip()))
        return
    # Every character stays, but that every run of spaces is one, and none is at an end of a line.
    lines = [re.sub(" +", " ", line).strip(" ") for line in "@".join(parts).split("\n")]
    assert "@".join(decoded) == "\n".join(lines)


def test_pieces_around_a_gap():
    tools = tokenizer_of("sentencepiece")
    for text, expected in {
        "un[MASK]able": "▁un<mask>able",
        "[MASK], Bado": "<mask>,▁Bado",
        "Bado <mask> [MASK:2] lu": "▁Bado<mask><mask><mask>▁lu",
    }.items():
        assert "".join(tools.pieces[id] for id in gapped(tools, text, 1).ids) == expected
    # A character that stands for gaps inside is no problem in a text.
    private = gapped(tokenizer_of("words"), "Bado \ue000 [MASK]", 1)
    assert len(private.ids) == 3 and private.gaps == [(2, 3)]


def test_a_drawn_length_depends_on_seed_text_and_sample():
    tools = tokenizer_of("sentencepiece")

    def length(number=1, seed=0, row=0):
        ((start, end),) = gapped(tools, "Bado [MASK:2-8].", number, seed, row).gaps
        return end - start

    numbers = range(1, 300)
    lengths = [length(number) for number in numbers]
    assert lengths == [length(number) for number in numbers]
    counts = np.bincount(lengths, minlength=9)[2:]
    assert len(counts) == 7 and counts.min() > 20, "not uniform from 2 to 8"
    assert lengths != [length(number, seed=1) for number in numbers]
    assert lengths != [length(number, row=1) for number in numbers]
    # The keys of orders: a length must say nothing of an order.
    orders = [np.random.default_rng((0, number, 0)) for number in numbers]
    assert lengths != [order.integers(2, 8, endpoint=True) for order in orders]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 500, "xxx...', has no gap; write [MASK] for"),
        ("a [MASK:0]", "text 3: '[MASK:0]' is no gap; write [MASK]"),
        ("a [MASK:8-2]", "is no gap"),
        ("a [MASK:٣]", "is no gap"),
        (f"a [MASK:{LONGEST + 1}]", "is no gap"),
    ],
)
def test_what_is_no_gap_is_refused(text, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        gapped(tokenizer_of("sentencepiece"), text, 3)


def test_a_tokenizer_without_the_symbol_is_refused(monkeypatch):
    tools = tokenizer_of("sentencepiece")
    monkeypatch.setattr(tools, "pieces", [*tools.pieces[:EOP], "<none>", *tools.pieces[EOP + 1 :]])
    with pytest.raises(BadInput, match="<eop> is not a symbol in texts"):
        gapped(tools, "a [MASK]", 1)


def filled(tools, text, new):
    """The text with these pieces in its gaps, which came from right to left."""
    positions = np.flatnonzero(np.logical_not(text.known))[::-1]
    token_N = np.array(text.ids)
    token_N[positions] = [tools.pieces.index(piece) for piece in new[::-1]]
    return infilled(
        tools, text, Filled(token_N, positions, -(2.0 ** np.arange(len(new))), 3), exact=True
    )


def test_the_result_has_the_text_of_each_gap():
    """In words, inside a word, and where a space before a gap is none; the rest is as it was
    given.
    """
    tools = tokenizer_of("sentencepiece")
    found = filled(tools, gapped(tools, "Bado\n[MASK:2] ménora. B[MASK]o", 1), ["▁", "l", "d"])
    assert found[:2] == ("Bado\nl ménora. Bdo", -7) and found.calls == 3 and found.exact
    first, second = found.gaps
    assert first == ("l", -6.0, ["▁", "l"], [-4.0, -2.0], [3, 2])
    assert second == ("d", -1.0, ["d"], [-1.0], [1])
    for level, text, new, whole in (
        ("sentencepiece", "[MASK:2], he", ["▁", "l"], "l, he"),
        ("sentencepiece", "The [MASK] of", ["l"], "Thel of"),
        ("sentencepiece", "The[MASK:2] of", ["▁", "l"], "The l of"),
        ("sentencepiece", "The [MASK] of", ["<eod>"], "The of"),
        ("sentencepiece", "[MASK][MASK]☂", ["l", "m"], "lm☂"),
        ("words", "Bado [MASK:2] x", ["kilu,", "Bado"], "Bado kilu, Bado x"),
        ("words", "[MASK]", ["Bado"], "Bado"),
        ("characters", "Ba [MASK:2] k", [" ", "d"], "Ba  d k"),
        ("bytes", "Ba[MASK:2]", ["<0x64>", "<0x6F>"], "Bado"),
        ("pattern", "Ba [MASK:2] k", [" ", "d"], "Ba  d k"),
    ):
        tools = tokenizer_of(level)
        assert filled(tools, gapped(tools, text, 1), new).text == whole


@pytest.mark.parametrize("as_written", [True, False])
def test_a_continuation_is_a_gap_at_the_end(as_written):
    """Listeners hear new text as it comes from left to right, and else the whole text at its end;
    no end of it.
    """
    tools, heard = tokenizer_of("characters"), []
    text = prompt(tools, "Ba", 1, 3)
    assert text.ids == [*tools.encode("Ba"), MASK, MASK, MASK]
    assert text.gaps == [(2, 5)] and sum(text.known) == 2 and text.parts == ["Ba", ""]
    first = tools.pieces.index("e")
    new = [first, first + 1, EOD]
    written = "".join(tools.pieces[id] for id in new[:2])
    listener = as_text(tools, [text], lambda *said: heard.append(said), as_written)
    pairs = list(enumerate(new, 2))[:: 1 if as_written else -1]
    listener(0, pairs[:1], False)
    listener(0, pairs[1:], True)
    assert heard == (
        [(0, written[0], False), (0, written[1], True)] if as_written else [(0, written, True)]
    )
    assert continuation(tools, text, new) == written


def test_a_passage_keeps_its_spaces_in_every_level():
    passage = Passage("kilu", "Bado ", " menora.")
    assert ids_of_passage(tokenizer_of("characters"), Passage("a", "a"), 1)[1] == [True, False]
    for level in ("characters", "bytes"):
        tools = tokenizer_of(level)
        ids, given = ids_of_passage(tools, passage, 1)
        assert tools.decode(ids) == "Bado kilu menora."
        unknown = [id for id, known in zip(ids, given, strict=True) if not known]
        assert tools.decode(unknown) == "kilu"
        ids, _ = ids_of_passage(tools, Passage(" kilu  "), 1)
        assert tools.decode(ids) == "kilu"
