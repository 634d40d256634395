"""The characters behind each piece, through both normalisations and the digit-comma rule."""

import data_fixtures
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xlnet_jax.data import offsets
from xlnet_jax.data.tokenizer import Normalization, Tokenizer

NORMALIZATIONS = [
    Normalization(),
    Normalization(lower=True),
    Normalization(keep_accents=True),
    Normalization(nfkc=True),
    Normalization(remove_space=False),
]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("  bado   ki, lu", "ki"),  # white space goes
        ("ba ``kilu'' no", "kilu"),  # two characters become one
        # Accents vanish: they belong to the letter before.
        ("be\u0301do re\u0301mi no", "re\u0301mi"),
        ("ﬁba ﬂki do", "ﬂki"),  # one character becomes two
        # Three become one, with nfkc.
        ("\u1112\u1161\u11ab \u1100\u1173\u11af ba", "\u1100\u1173\u11af"),
        ("ba 1,234, 450, do", "450"),  # the rule of digits and commas
        ("ba １２ do", "１２"),  # full-width digits, three bytes each
        ("ba\u00a0do\u2003ki", "do"),  # other spaces
        ("``ǆ ba ½, do", "½"),  # one shorter, then one longer
    ],
)
@pytest.mark.parametrize("normalization", NORMALIZATIONS, ids=str)
def test_an_answer_is_found_by_its_pieces(text, answer, normalization):
    """By their characters, and they are its pieces; the fault: places in the normalised text, which
    are others.
    """
    tokenizer = Tokenizer(data_fixtures.tokenizer_path(), normalization)
    pieces = offsets.encode(tokenizer, text)
    start = text.index(answer)
    first, last = pieces.covering(start, start + len(answer))
    assert text[pieces.start_N[first] : pieces.end_N[last]].strip() == answer
    alone = tokenizer.encode_normalized([normalization(answer)])[0]
    said = tokenizer.decode(pieces.tokens_N[first : last + 1])
    # Unknown pieces all say the same; a piece may hold the space before the answer.
    assert said.strip() == tokenizer.decode(alone).strip()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.text("ab é\u0301\u00a0`'ﬁ½１2,İΣ한\u1112\u1161日.", max_size=30),
    st.sampled_from(NORMALIZATIONS),
)
@example("1,200, 45,", Normalization())
@example("", Normalization())
def test_the_pieces_are_those_of_the_tokenizer_and_their_places_ascend(text, normalization):
    tokenizer = Tokenizer(data_fixtures.tokenizer_path(), normalization)
    normal, source = offsets.aligned(normalization, text)
    assert normal == normalization(text) and len(source) == len(normal) + 1
    pieces = offsets.encode(tokenizer, text)
    assert (
        pieces.tokens_N.tolist() == tokenizer.encode_normalized([normalization(text)])[0].tolist()
    )
    assert (np.diff(pieces.start_N) >= 0).all() and (np.diff(pieces.end_N) >= 0).all()
    assert (pieces.start_N <= pieces.end_N).all() and pieces.end_N.max(initial=0) <= len(text)
