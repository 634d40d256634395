"""Text that a tokenizer does not know is said wherever it is read, with its share and an
example.
"""

import json
import logging

import data_fixtures
import pytest

from xlnet_jax.cli import main

KNOWN = "Bado kilu, menora. " * 3
WORDPIECE = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nbado\nkilu\nmenora\n,\n.\n"


def tokenizers(folder):
    """A SentencePiece model of Latin letters, and an uncased WordPiece vocabulary."""
    (folder / "vocab.txt").write_text(WORDPIECE, "utf-8")
    return {"sentencepiece": data_fixtures.tokenizer_path(), "wordpiece": str(folder / "vocab.txt")}


@pytest.mark.parametrize(
    ("kind", "text", "example"),
    [
        ("sentencepiece", f"{KNOWN} 私は学校に行きます。", "私は学校に行きます。"),
        ("sentencepiece", f"{KNOWN} Привет, мир", "Привет,"),
        ("sentencepiece", f"{KNOWN} bado 🎉 kilu", "🎉"),
        ("wordpiece", f"{KNOWN.lower()} BADO kilu", "BADO"),
        ("wordpiece", f"{KNOWN.lower()} der Fluss kilu", "der"),
        ("wordpiece", f"{KNOWN.lower()} kilu’s", "kilu’s"),
    ],
    ids=["japanese", "cyrillic", "emoji", "upper case", "another language", "an apostrophe"],
)
def test_prepare_and_info_say_what_is_unknown(tmp_path, capsys, kind, text, example):
    given = tokenizers(tmp_path)[kind]
    (source,) = data_fixtures.write(tmp_path, a=text)
    words = [
        f"--input={source}",
        f"--output={tmp_path / 'c'}",
        f"--tokenizer={given}",
        "--heldout=0",
        "--workers=1",
    ]
    assert main(["prepare", *words]) == 0
    assert f"pieces, such as {example!r}; use a" in capsys.readouterr().err
    assert main(["corpus", "info", str(tmp_path / "c"), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (
        f"{100 * found['unknown']['pieces'] / found['tokens']:.1f} "
        f"% of the pieces, such as {example!r}"
    ) in said.err
    assert found["unknown"]["pieces"] >= 1 and found["unknown"]["example"] == example


def test_it_begins_at_half_a_percent(caplog):
    from xlnet_jax.data import unknown

    for unknown_pieces, pieces, warns in (
        (1, 200, True),
        (1, 201, False),
        (0, 0, False),
        (0, 200, False),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "xlnet_jax"):
            unknown.warn(unknown_pieces, pieces, "a file", lambda: "word")
        assert (
            "a file: the tokenizer does not know 0.5 % of the pieces, such as 'word'" in caplog.text
        ) == warns
