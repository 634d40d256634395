"""Text that a tokenizer does not know is said wherever it is read, with its share and an
example.
"""

import data_fixtures
import pytest

from xlnet_jax.data import unknown
from xlnet_jax.data.corpus import verify

KNOWN = "Bado kilu, menora. " * 3
WORDPIECE = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nbado\nkilu\nmenora\n,\n.\n"


@pytest.mark.parametrize(
    ("kind", "text", "example"),
    [
        ("sentencepiece", f"{KNOWN} 私は学校に行きます。", "私は学校に行きます。"),
        ("sentencepiece", f"{KNOWN} Привет, мир", "Привет,"),
        ("wordpiece", f"{KNOWN.lower()} BADO kilu", "BADO"),
    ],
    ids=["japanese", "cyrillic", "upper case"],
)
def test_prepare_and_info_say_what_is_unknown(tmp_path, caplog, kind, text, example):
    """The vocabularies have Latin letters, or words in lower case."""
    (tmp_path / "vocab.txt").write_text(WORDPIECE)
    given = data_fixtures.tokenizer_path() if kind == "sentencepiece" else tmp_path / "vocab.txt"
    inputs = data_fixtures.write(tmp_path, a=text)
    data_fixtures.make_corpus(tmp_path / "c", inputs, tokenizer=str(given), heldout=0.0)
    assert f"pieces, such as {example!r}; use a" in caplog.text
    caplog.clear()
    found = verify.info(str(tmp_path / "c"))
    pieces = found["unknown"]["pieces"]
    share = f"{100 * pieces / found['tokens']:.1f} % of the pieces, such as {example!r}"
    assert pieces >= 1 and share in caplog.text and found["unknown"]["example"] == example


@pytest.mark.parametrize(
    ("unknown_pieces", "pieces", "warns"), [(1, 200, True), (1, 201, False), (0, 0, False)]
)
def test_it_begins_at_half_a_percent(caplog, unknown_pieces, pieces, warns):
    unknown.warn(unknown_pieces, pieces, "a file", lambda: "word")
    said = "a file: the tokenizer does not know 0.5 % of the pieces, such as 'word'"
    assert (said in caplog.text) == warns
