"""What normalisation takes off is counted and said; a vocabulary that is trained here keeps it."""

import logging
import shutil
import unicodedata

import data_fixtures as data
import pytest

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


def run(text, output, tokenizer=None, **options):
    """Prepares one text; returns its counts of what is taken off."""
    inputs = data.write(output.parent, text=f"{text}\n")
    made = data.make_corpus(output, inputs, tokenizer=tokenizer, heldout=0.0, **options)
    return made["dropped"]


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
    assert counted(f"Ab, {text} z") == (letters + 3, combining(text), 0)
    assert counted(text, Normalization(keep_accents=True)) == (letters, 0, 0)


def test_hangul_in_pieces_is_counted_apart():
    assert len(PLAIN(HANGUL)) > len(HANGUL)
    assert counted("") == (0, 0, 0)
    assert counted(HANGUL) == (4, 0, 4) and counted(HANGUL + THAI)[2] == 4
    assert counted(HANGUL, Normalization(nfkc=True)) == (4, 0, 0)
    assert counted(THAI, Normalization(nfkc=True))[1] == 3
    assert counted(HANGUL, Normalization(keep_accents=True)) == (4, 0, 0)


@pytest.mark.parametrize(
    ("counts", "parts", "changes"),
    [
        ((1000, 5, 0), ["takes 5 accents"], False),
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
    assert is_warning == changes == ("prepare in a new folder" in caplog.text)
    assert bool(caplog.text) == bool(parts) and all(part in caplog.text for part in parts)


@pytest.mark.parametrize("text", [GERMAN, HINDI, ARABIC])
def test_a_vocabulary_that_is_made_here_keeps_accents(tmp_path, text):
    run(text, tmp_path / "kept", vocabulary="characters")
    assert text_of(tmp_path / "kept") == text


@pytest.mark.parametrize(
    ("vocabulary", "size", "options"),
    [("sentencepiece", 40, {}), ("wordpiece", 70, {"uncased": True})],
)
def test_a_trained_one_too(tmp_path, vocabulary, size, options):
    text = "\n\n".join([GERMAN.lower()] * 40)
    run(text, tmp_path / "c", vocabulary=vocabulary, vocab_size=size, **options)
    assert "über den" in text_of(tmp_path / "c")


def test_taking_them_off_is_asked_for_and_said(tmp_path, caplog):
    text = "\n\n".join([GERMAN.lower()] * 40)
    options = {"vocabulary": "wordpiece", "vocab_size": 60, "strip_accents": True}
    assert run(text, tmp_path / "c", **options)["marks"] == 200
    assert "uber den" in text_of(tmp_path / "c") and "takes 200 accents" in caplog.text


@pytest.mark.parametrize("text", [GERMAN, THAI])
def test_an_imported_vocabulary_strips_and_it_is_said(tmp_path, text, caplog):
    dropped = run(text, tmp_path / "c", data.tokenizer_path())
    assert dropped["marks"] == combining(text) > 0
    assert f"takes {combining(text)} accents" in caplog.text


def test_vowel_signs_that_uncased_bert_takes_off_are_counted(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n")
    tokenizer, parts = str(tmp_path / "vocab.txt"), unicodedata.normalize("NFD", HINDI)
    lost = sum(unicodedata.category(part) == "Mn" for part in parts)
    uncased = run(HINDI, tmp_path / "uncased", tokenizer, uncased=True)
    assert uncased["marks"] == lost > combining(HINDI)
    assert run(HINDI, tmp_path / "cased", tokenizer)["marks"] == 0


@pytest.mark.parametrize(("strip", "expected"), [(False, GERMAN), (True, PLAIN(GERMAN))])
def test_a_corpus_gives_its_normalisation_to_the_next(tmp_path, strip, expected):
    run(GERMAN, tmp_path / "first", vocabulary="characters", strip_accents=strip)
    file = tmp_path / "first" / "vocabulary.json"
    alone = shutil.copy(file, tmp_path / "alone.json")
    for number, tokenizer in enumerate((file, file.parent, alone)):
        run(GERMAN, tmp_path / str(number), str(tokenizer))
        assert text_of(tmp_path / str(number)) == expected


def test_the_copy_of_a_run_gives_its_normalisation_too(tmp_path):
    text = GERMAN.lower()
    run(text, tmp_path / "first", vocabulary="characters")
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "first" / "vocabulary.json", tmp_path / "copy")
    (tmp_path / "copy" / "normalization.json").write_text('{"lower": true, "keep_accents": true}')
    run(GERMAN, tmp_path / "second", str(tmp_path / "copy"))
    assert text_of(tmp_path / "second") == text


def test_a_resumed_corpus_is_made_as_it_was_begun(tmp_path):
    run(GERMAN, tmp_path / "c", vocabulary="characters", strip_accents=True)
    before = data.contents(tmp_path / "c")
    (tmp_path / "c" / "manifest.json").unlink()
    run(GERMAN, tmp_path / "c", vocabulary="characters")
    assert data.contents(tmp_path / "c") == before


def test_the_sample_of_the_tokenizer_warns_before_the_long_work(tmp_path, caplog):
    text = "".join(f"{THAI} {number}\n\n" for number in range(200))
    run(text, tmp_path / "c", strip_accents=True, vocab_size=60)
    assert sum("--strip_accents" in record.getMessage() for record in caplog.records) == 2
    assert "wrapped" not in caplog.text
    run(text, tmp_path / "d", strip_accents=True, sentences="punctuation", vocab_size=60)
    assert "only 0% of the sentences end with punctuation" in caplog.text
    found = info(str(tmp_path / "d"))
    assert found["vocabulary"] == 60 and "vocab_size" not in found["options"]
