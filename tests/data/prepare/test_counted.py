"""Corpora of words, characters and bytes, and the published data sets, with sizes small enough for
a test.
"""

import re

import data_fixtures as data
import numpy as np
import pytest
from special_ids import EOD

from xlnet_jax.data.corpus import verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare import datasets, work_unit
from xlnet_jax.errors import BadInput


def whole(corpus):
    """All tokens of a split, without the ends of documents."""
    tokens = corpus.read([0], corpus.tokens)[0][0]
    return tokens[tokens != EOD]


def documents(corpus):
    """The texts of all documents of a split."""
    tokens = corpus.read([0], corpus.tokens)[0][0]
    cut = np.split(tokens, 1 + np.flatnonzero(tokens == EOD))
    assert not len(cut.pop())
    return [corpus.tokenizer.decode(ids[:-1]) for ids in cut]


@pytest.mark.parametrize("level", ["words", "characters", "bytes"])
def test_a_corpus_of_counted_pieces_is_the_normalised_lines(tmp_path, level):
    made = data.make_corpus(tmp_path / "c", tokenizer=None, vocabulary=level)
    assert made["tokenizer"]["file"] == "vocabulary.json"
    assert verify.verify(str(tmp_path / "c"))[1] == []
    train, heldout = (Corpus(str(tmp_path / "c"), split) for split in ("train", "heldout"))
    assert train.tokenizer.level == level
    known = set(train.tokenizer.pieces)
    # A document of one line has no line end, unless a line end is a word.
    wanted = [
        "".join(f"{line}\n" for line in lines) if len(lines) > 1 or level == "words" else lines[0]
        for lines in data.documents_of(data.text_folder())
    ]
    read = [*documents(train), *documents(heldout)]
    counts = train.token_counts[9:]
    if level == "words":
        wanted = [
            re.sub(r"\S+", lambda word: word[0] if word[0] in known else "<unk>", text)
            for text in wanted
        ]
        assert any("<unk>" in text for text in wanted), "every held-out word is known"
    else:
        # Counted in all text, not in the training text alone.
        counts = counts + heldout.token_counts[9:]
        assert len("".join(read).encode()) == counts.sum()
    assert sorted(read) == sorted(wanted)
    assert (1 < sum("\n" not in text for text in read) < 80) == (level != "words")
    assert train.tokenizer.counts[9:].tolist() == counts.tolist()
    assert heldout.documents == Corpus(data.corpus_path(), "heldout").documents, (
        "line ends moved documents"
    )


def test_a_killed_count_goes_on_and_any_number_of_workers_writes_the_same(tmp_path, monkeypatch):
    settings = {"tokenizer": None, "vocabulary": "words"}
    data.make_corpus(tmp_path / "whole", **settings, workers=2)
    original, calls = work_unit.count_unit, []

    def killed(*job):
        calls.append(job[-1][0])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*job)

    monkeypatch.setattr(work_unit, "count_unit", killed)
    with pytest.raises(KeyboardInterrupt):
        data.make_corpus(tmp_path / "c", **settings)
    data.make_corpus(tmp_path / "c", **settings)
    units = len(set(calls))
    assert calls == [0, 1, 2, *range(2, units)] and units > 3
    assert data.contents(tmp_path / "c") == data.contents(tmp_path / "whole")
    with pytest.raises(BadInput, match="was begun with vocabulary=words, not None"):
        data.make_corpus(tmp_path / "c", tokenizer=None)


def test_text_that_changes_after_it_was_counted_is_refused(tmp_path, monkeypatch):
    inputs = data.write(tmp_path, a="one two\n\nthree\n")
    settings = {"tokenizer": None, "vocabulary": "words", "heldout": 0}
    monkeypatch.setattr(work_unit, "prepare_unit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        data.make_corpus(tmp_path / "c", inputs, **settings)
    data.write(tmp_path, a="one two\n\nTHREE\n")
    with pytest.raises(BadInput, match="a.txt was changed after .* was begun"):
        data.make_corpus(tmp_path / "c", inputs, **settings)


def test_an_unseen_character_is_refused_with_its_file(tmp_path):
    known, unseen = data.write(tmp_path, a="theplainactivevoice\n", b="plain\n\nnaïve\n")
    settings = {"tokenizer": None, "vocabulary": "characters", "heldout": 0.0}
    data.make_corpus(tmp_path / "c", [known], **settings)
    made = {"tokenizer": str(tmp_path / "c" / "vocabulary.json"), "heldout": 0.0}
    with pytest.raises(
        BadInput, match=r"b.txt, line 3: character '\\xef' \(U\+00EF\) is not in the voc"
    ):
        data.make_corpus(tmp_path / "d", [unseen], **made)
    # A space between two lines is in neither.
    (joined,) = data.write(tmp_path, c="plain\nvoice\n")
    with pytest.raises(BadInput, match=r"c.txt: character ' ' \(U\+0020\) is not in the voc"):
        data.make_corpus(tmp_path / "f", [joined], **made, unwrap=True)
    with pytest.raises(BadInput, match="is one of characters, not of words"):
        data.make_corpus(tmp_path / "e", [unseen], **made, vocabulary="words")


def enwik8(path):
    """70 bytes that are cut in a character at byte 40 and in a line at byte 56; `é` occurs in the
    test split only.
    """
    text = b"''A''  [[b]] &amp; \t\n\n &lt;c&gt; = d. e...\xe2\x82\xac x\ny z 0 1 2  3\n"
    text += b"'' \xc3\xa9 end"
    path.write_bytes(text.ljust(70, b"."))
    return path.read_bytes()


@pytest.fixture
def small_sizes(monkeypatch):
    sizes = {"enwik8": (40, 16, 14), "text8": (40, 16, 14), "wikitext103": (12, 4, 6)}
    for name, each in sizes.items():
        monkeypatch.setitem(datasets.DATASETS, name, datasets.DATASETS[name]._replace(sizes=each))


@pytest.mark.usefixtures("small_sizes")
def test_enwik8_is_its_bytes_in_the_published_splits_with_one_vocabulary(tmp_path):
    text = enwik8(tmp_path / "enwik8")
    made = []
    for name, start, end in (("enwik8", 40, 56), ("enwik8:test", 56, 70)):
        path, inputs = f"{tmp_path}/{start}", [str(tmp_path / "enwik8")]
        made.append(data.make_corpus(path, inputs, tokenizer=None, dataset=name, shard_bytes=25))
        assert verify.verify(path)[1] == []
        train, heldout = (Corpus(path, split) for split in ("train", "heldout"))
        values = [int(piece[3:5], 16) for piece in train.tokenizer.pieces[9:]]
        assert bytes(values[index - 9] for index in whole(train)) == text[:40]
        assert bytes(values[index - 9] for index in whole(heldout)) == text[start:end]
        assert train.documents == 2, "one end of a document for every unit"
    assert made[0]["tokenizer"] == made[1]["tokenizer"] and made[0]["sha256"] != made[1]["sha256"]
    # A prompt is not normalised.
    assert train.tokenizer.decode(train.tokenizer.encode("''A''  .")) == "''A''  ."


def wikitext(folder, valid):
    contents = {"train": " \n = A = \n \n a <unk> b a b \n", "test": " b \n c d <unk>\n"}
    for split, content in {**contents, "valid": valid}.items():
        (folder / f"wiki.{split}.tokens").write_text(content)


@pytest.mark.usefixtures("small_sizes")
def test_wikitext_is_its_words_and_line_ends_and_a_truncated_file_is_refused(tmp_path):
    def made(name):
        data.make_corpus(tmp_path / name, [str(tmp_path)], tokenizer=None, dataset="wikitext103")
        return (Corpus(str(tmp_path / name), split) for split in ("train", "heldout"))

    wikitext(tmp_path, valid=" a new \n \n")
    train, heldout = made("c")
    # Counted in the training text alone.
    assert train.tokenizer.pieces[9:] == ["<eos>", "=", "a", "b", "A"]
    assert train.tokenizer.decode(whole(train)) == "\n= A =\n\na <unk> b a b\n"
    assert train.tokenizer.decode(whole(heldout)) == "a <unk>\n\n"
    wikitext(tmp_path, valid=" a new \n")
    with pytest.raises(
        BadInput, match="wiki.valid.tokens has 3 words and line ends, wikitext103 has 4; fetch"
    ):
        made("d")
    (tmp_path / "wiki.test.tokens").unlink()
    with pytest.raises(
        BadInput, match="needs wiki.test.tokens, wiki.train.tokens, wiki.valid.tokens and no other"
    ):
        made("d")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "enwik8 has 70 bytes, enwik8 has 100,000,000; unpack it, or fetch it again"),
        ({"dataset": "enwik9"}, "--dataset=enwik9 must be one of enwik8, text8, wikitext103"),
        ({"dataset": "enwik8:train"}, "--dataset=enwik8:train must be one of"),
        ({"vocabulary": "words"}, "has a vocabulary of bytes; leave --vocabulary out"),
        ({"uncased": True}, "is read as it is: leave out --uncased"),
    ],
)
def test_the_published_counts_are_required(tmp_path, options, message):
    enwik8(tmp_path / "enwik8")
    settings = {"tokenizer": None, "dataset": "enwik8"} | options
    with pytest.raises(BadInput, match=message):
        data.make_corpus(tmp_path / "c", [str(tmp_path / "enwik8")], **settings)
