"""What normalisation drops is counted, and said where it changes words."""

import json
import logging
import unicodedata

import data_fixtures as data
import pytest

from xlnet_jax.cli import main
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.verify import info
from xlnet_jax.data.prepare import marks
from xlnet_jax.data.tokenizer import Normalization

PLAIN = Normalization()
HINDI = "हिन्दी में किताबें पढ़ना"
THAI = "ฉันไปซื้อผลไม้ที่ตลาด"
ARABIC = "مُحَمَّدٌ يَكْتُبُ"
HANGUL = "한국어 책"


def counted(text, normalization=PLAIN):
    """The numbers of letters, marks and Hangul syllables."""
    return tuple(marks.count(text, normalization).values())


def combining(text):
    """How many combining marks the decomposed text has."""
    return sum(unicodedata.combining(character) > 0 for character in unicodedata.normalize("NFKD", text))


# Hindi loses viramas and nuktas, Thai tones and vowels below, Arabic all short vowels, Japanese the voicing.
@pytest.mark.parametrize(
    ("text", "lost"), [(HINDI, 2), (THAI, 3), (ARABIC, 9), ("がく", 1), ("\u0958", 1), ("漢字", 0)]
)
def test_marks_of_a_script_are_counted(text, lost):
    assert combining(text) - combining(PLAIN(text)) == lost
    decomposed = unicodedata.normalize("NFKD", text)
    letters = sum(unicodedata.category(character)[0] in "LM" for character in decomposed)
    assert counted(text) == (letters, lost, 0) and counted(f"Ab, {text} z") == (letters + 3, lost, 0)
    assert counted("") == (0, 0, 0)


# In one character or in two, and beside ASCII.
@pytest.mark.parametrize("text", ["l'été à Hôtel, ñandú", "e\u0301 i\u0308", "ёжик", "Ά", "Tiếng Việt", "a ≠ b"])
def test_accents_are_meant_to_go_and_are_not_counted(text):
    assert combining(text) > combining(PLAIN(text)) == 0
    assert counted(text)[1] == 0


def test_hangul_in_pieces_is_counted_apart_and_options_that_keep_marks_count_none():
    assert len(PLAIN(HANGUL)) > len(HANGUL)
    assert counted(HANGUL) == (4, 0, 4) and counted(HANGUL + THAI)[2] == 4
    assert not any(counted(text, Normalization(keep_accents=True)) for text in (HINDI, THAI, ARABIC, HANGUL))
    assert counted(HANGUL, Normalization(nfkc=True)) == (4, 0, 0) and counted(THAI, Normalization(nfkc=True))[1] == 3


@pytest.mark.parametrize(
    ("counts", "option"),
    [
        ((1000, 5, 0), None), ((1000, 6, 0), "--keep_accents"), ((1000, 0, 5), None), ((1000, 0, 6), "--nfkc"),
        # Keeping accents also leaves Hangul whole.
        ((1000, 6, 6), "--keep_accents"), ((0, 0, 0), None),
    ],
)  # fmt: skip
def test_the_warning_names_the_option_and_begins_above_half_a_percent(counts, option):
    warning = marks.warning(dict(zip(marks.NAMES, counts, strict=True)))
    assert [each for each in ("--keep_accents", "--nfkc") if each in (warning or "")] == ([option] if option else [])


def test_prepare_adds_the_units_up_keeps_the_count_and_warns(tmp_path, capsys):
    inputs = data.write(tmp_path, a=f"Bado {HINDI}.\n", b=f"{THAI}\n", c="Meno, été\n")
    expected = marks.count(f"Bado {HINDI} {THAI} Meno été", PLAIN)

    def prepared(output, *words):
        # One unit a file.
        options = ["--heldout=0", "--workers=1", f"--tokenizer={data.tokenizer_path()}", "--shard_bytes=10", "--json"]
        assert main(["prepare", *(f"--input={path}" for path in inputs), f"--output={output}", *options, *words]) == 0
        said = capsys.readouterr()
        result = json.loads(said.out)
        lines = [line for line in said.err.split("\n") if "--keep_accents" in line]
        return result["dropped"], lines

    dropped, (line,) = prepared(tmp_path / "c")
    assert dropped == expected and expected["marks"] == 5
    assert f"drops 5 of {expected['letters']} letters and marks (" in line
    # A finished corpus still has the count; with the option nothing is lost.
    assert Corpus(str(tmp_path / "c")).manifest["dropped"] == expected == prepared(tmp_path / "c")[0]
    dropped, lines = prepared(tmp_path / "kept", "--keep_accents")
    assert dropped["marks"] == 0 and not lines


def test_the_sample_of_the_tokenizer_warns_before_the_long_work(tmp_path, caplog):
    inputs = data.write(tmp_path, a="".join(f"{THAI} {number}\n\n" for number in range(200)))
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        data.make_corpus(tmp_path / "c", inputs, tokenizer=None, vocab_size=60, heldout=0.0)
    assert sum("--keep_accents" in record.getMessage() for record in caplog.records) == 2
    assert "wrapped" not in caplog.text
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        data.make_corpus(tmp_path / "d", inputs, tokenizer=None, vocab_size=60, heldout=0.0, sentences="punctuation")
    assert "only 0% of the sentences end with punctuation" in caplog.text
    found = info(str(tmp_path / "d"))
    assert found["vocabulary"] == 60 and "vocab_size" not in found["options"], "by default the largest that was tried"
