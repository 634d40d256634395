"""What normalisation takes off is counted and said; a vocabulary that is trained here keeps it."""

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
GERMAN = "Über den Fluss führt eine alte Brücke, benötigt wird ein Schlüssel."
HINDI = "हिन्दी में किताबें पढ़ना"
THAI = "ฉันไปซื้อผลไม้ที่ตลาด"
ARABIC = "مُحَمَّدٌ يَكْتُبُ"
HEBREW = "בְּרֵאשִׁית בָּרָא"
VIETNAMESE = "Tiếng Việt có dấu"
HANGUL = "한국어 책"
SCRIPTS = {
    "german": GERMAN,
    "hindi": HINDI,
    "thai": THAI,
    "arabic": ARABIC,
    "hebrew": HEBREW,
    "vietnamese": VIETNAMESE,
    "japanese": "がくせい",
    "russian": "ёжик",
    "greek": "Ά",
    "in two": "e\u0301 i\u0308",
}


def counted(text, normalization=PLAIN):
    """The numbers of letters, marks and Hangul syllables."""
    return tuple(marks.count(text, normalization).values())


def combining(text):
    """How many combining marks the decomposed text has."""
    return sum(
        unicodedata.combining(character) > 0 for character in unicodedata.normalize("NFKD", text)
    )


def run(text, output, *options):
    """The result of `prepare` of one text on the command line."""
    (source,) = data.write(output.parent, text=f"{text}\n")
    words = [
        "prepare",
        f"--input={source}",
        f"--output={output}",
        "--heldout=0",
        "--workers=1",
        *options,
    ]
    assert main([*words, "--json"]) == 0


def text_of(folder):
    """All that a corpus says."""
    corpus = Corpus(str(folder))
    return corpus.tokenizer.decode(corpus.read_flags([0], corpus.tokens)[0][0]).strip()


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_what_is_taken_off_is_counted_in_every_script(text):
    assert combining(text) > combining(PLAIN(text)) == 0
    letters = sum(
        unicodedata.category(character)[0] in "LM"
        for character in unicodedata.normalize("NFKD", text)
    )
    assert counted(text) == (letters, combining(text), 0)
    assert counted(f"Ab, {text} z") == (letters + 3, combining(text), 0) and counted("") == (
        0,
        0,
        0,
    )
    assert counted(text, Normalization(keep_accents=True)) == (letters, 0, 0)


def test_hangul_in_pieces_is_counted_apart():
    assert len(PLAIN(HANGUL)) > len(HANGUL)
    assert counted(HANGUL) == (4, 0, 4) and counted(HANGUL + THAI)[2] == 4
    assert (
        counted(HANGUL, Normalization(nfkc=True)) == (4, 0, 0)
        and counted(THAI, Normalization(nfkc=True))[1] == 3
    )
    assert counted(HANGUL, Normalization(keep_accents=True)) == (4, 0, 0)


@pytest.mark.parametrize(
    ("counts", "parts", "changes"),
    [
        ((1000, 5, 0), ["takes 5 accents"], False),
        ((1000, 6, 0), ["takes 6 accents", "--strip_accents"], True),
        ((1000, 0, 5), ["5 Hangul"], False),
        ((1000, 0, 6), ["6 Hangul", "--nfkc"], True),
        # Keeping accents also leaves Hangul whole.
        ((1000, 6, 6), ["takes 6", "0.60 %", "6 Hangul", "--strip_accents"], True),
        ((0, 0, 0), [], False),
    ],
)
def test_all_is_said_and_above_half_a_percent_what_to_do(counts, parts, changes, caplog):
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        marks.say(dict(zip(marks.NAMES, counts, strict=True)))
    is_warning = any(record.levelno == logging.WARNING for record in caplog.records)
    assert is_warning == changes == ("prepare in a new folder" in caplog.text) and bool(
        caplog.text
    ) == bool(parts)
    assert all(part in caplog.text for part in parts)


@pytest.mark.parametrize("name", ["german", "hindi", "arabic", "hebrew", "vietnamese", "japanese"])
def test_a_vocabulary_that_is_made_here_keeps_accents(tmp_path, name):
    text = SCRIPTS[name]
    run(text, tmp_path / "kept", "--vocabulary=characters")
    assert text_of(tmp_path / "kept") == text


def test_a_trained_one_too_and_taking_them_off_is_asked_for(tmp_path, capsys):
    text = "\n\n".join([GERMAN.lower()] * 40)
    for vocabulary, *more in (["sentencepiece"], ["wordpiece", "--uncased"]):
        size = 40 if vocabulary == "sentencepiece" else 70
        run(
            text, tmp_path / vocabulary, f"--vocabulary={vocabulary}", f"--vocab_size={size}", *more
        )
        assert "über den" in text_of(tmp_path / vocabulary)
    capsys.readouterr()
    run(text, tmp_path / "cased", "--vocabulary=wordpiece", "--vocab_size=60", "--strip_accents")
    assert (
        "uber den" in text_of(tmp_path / "cased") and "takes 200 accents" in capsys.readouterr().err
    )
    assert Corpus(str(tmp_path / "cased")).manifest["dropped"]["marks"] == 200


@pytest.mark.parametrize("name", ["german", "hindi", "thai", "arabic", "hebrew", "vietnamese"])
def test_an_imported_vocabulary_strips_and_it_is_said(tmp_path, name, capsys):
    text = SCRIPTS[name]
    run(text, tmp_path / "c", f"--tokenizer={data.tokenizer_path()}")
    assert Corpus(str(tmp_path / "c")).manifest["dropped"]["marks"] == combining(text) > 0
    assert f"takes {combining(text)} accents" in capsys.readouterr().err


def test_vowel_signs_that_uncased_bert_takes_off_are_counted(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n", "utf-8")
    run(HINDI, tmp_path / "c", f"--tokenizer={tmp_path / 'vocab.txt'}", "--uncased")
    lost = sum(
        unicodedata.category(character) == "Mn" for character in unicodedata.normalize("NFD", HINDI)
    )
    assert Corpus(str(tmp_path / "c")).manifest["dropped"]["marks"] == lost > combining(HINDI)
    run(HINDI, tmp_path / "cased", f"--tokenizer={tmp_path / 'vocab.txt'}")
    assert Corpus(str(tmp_path / "cased")).manifest["dropped"]["marks"] == 0


def test_a_corpus_gives_its_normalisation_to_the_next(tmp_path):
    run(GERMAN, tmp_path / "kept", "--vocabulary=characters")
    run(GERMAN, tmp_path / "stripped", "--vocabulary=characters", "--strip_accents")
    for name, expected in (("kept", GERMAN), ("stripped", PLAIN(GERMAN))):
        file = tmp_path / name / "vocabulary.json"
        (tmp_path / f"{name}.json").write_bytes(file.read_bytes())
        for number, tokenizer in enumerate((file, file.parent, tmp_path / f"{name}.json")):
            run(GERMAN, tmp_path / f"{name}{number}", f"--tokenizer={tokenizer}")
            assert text_of(tmp_path / f"{name}{number}") == expected
    # Of a work directory's copy.
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "vocabulary.json").write_bytes((tmp_path / "kept" / "vocabulary.json").read_bytes())
    (copy / "normalization.json").write_text(json.dumps({"lower": True, "keep_accents": True}))
    run(
        GERMAN.replace("S", "s").replace("B", "b").replace("F", "f"),
        tmp_path / "lower",
        f"--tokenizer={copy}",
    )
    assert "brücke" in text_of(tmp_path / "lower")


def test_a_resumed_corpus_is_made_as_it_was_begun(tmp_path):
    run(GERMAN, tmp_path / "c", "--vocabulary=characters", "--strip_accents")
    before = data.contents(tmp_path / "c")
    (tmp_path / "c" / "manifest.json").unlink()
    run(GERMAN, tmp_path / "c", "--vocabulary=characters")
    assert data.contents(tmp_path / "c") == before


def test_the_sample_of_the_tokenizer_warns_before_the_long_work(tmp_path, caplog):
    inputs = data.write(tmp_path, a="".join(f"{THAI} {number}\n\n" for number in range(200)))
    settings = {"tokenizer": None, "vocab_size": 60, "heldout": 0.0}
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        data.make_corpus(tmp_path / "c", inputs, strip_accents=True, **settings)
    assert sum("--strip_accents" in record.getMessage() for record in caplog.records) == 2
    assert "wrapped" not in caplog.text
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        data.make_corpus(
            tmp_path / "d", inputs, sentences="punctuation", strip_accents=True, **settings
        )
    assert "only 0% of the sentences end with punctuation" in caplog.text
    found = info(str(tmp_path / "d"))
    assert found["vocabulary"] == 60 and "vocab_size" not in found["options"], (
        "by default the largest that was tried"
    )
