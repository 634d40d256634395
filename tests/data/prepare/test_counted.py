"""Corpora of words, characters and bytes, and the published data sets, with sizes small enough for
a test.
"""

import itertools

import data_fixtures as data
import pytest
from special_ids import EOD

from xlnet_jax.cli import main
from xlnet_jax.data.corpus import verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare import datasets, work_unit
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.errors import BadInput


def whole(corpus):
    """All tokens of a split, without the ends of documents."""
    tokens = corpus.read([0], corpus.tokens)[0][0]
    return tokens[tokens != EOD]


@pytest.mark.parametrize("level", ["words", "characters", "bytes"])
def test_a_corpus_of_counted_pieces_is_the_normalised_lines(tmp_path, level):
    made = data.make_corpus(tmp_path / "c", tokenizer=None, vocabulary=level)
    assert made["tokenizer"]["file"] == "vocabulary.json"
    assert verify.verify(str(tmp_path / "c"))[1] == []
    train, heldout = (Corpus(str(tmp_path / "c"), split) for split in ("train", "heldout"))
    assert train.tokenizer.level == level
    lines = list(itertools.chain.from_iterable(data.documents_of(data.text_folder())))
    read = train.tokenizer.decode(whole(train)) + train.tokenizer.decode(whole(heldout))
    if level == "words":
        known, had = set(train.tokenizer.pieces), len("".join(lines))
        lines = [
            " ".join(word if word in known else "<unk>" for word in line.split()) for line in lines
        ]
        assert len("".join(lines)) != had, "every held-out word is known"
    assert sorted(read.split("\n")) == sorted([*lines, ""])
    if level != "words":
        assert len(read.encode()) == sum(
            split["tokens"] - split["documents"] for split in made["splits"].values()
        )
    assert heldout.documents == Corpus(data.corpus_path(), "heldout").documents, (
        "line ends moved documents"
    )
    # Counted in the training text alone, or in all of it.
    counts = train.token_counts + (0 if level == "words" else heldout.token_counts)
    assert train.tokenizer.counts[9:].tolist() == counts[9:].tolist()


def test_a_killed_count_goes_on_and_any_number_of_workers_writes_the_same(tmp_path, monkeypatch):
    data.make_corpus(tmp_path / "whole", tokenizer=None, vocabulary="words", workers=2)
    real, calls = work_unit.count_unit, []

    def killed(*job):
        calls.append(job[1])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*job)

    monkeypatch.setattr(work_unit, "count_unit", killed)
    with pytest.raises(KeyboardInterrupt):
        data.make_corpus(tmp_path / "c", tokenizer=None, vocabulary="words")
    data.make_corpus(tmp_path / "c", tokenizer=None, vocabulary="words")
    units = len(set(calls))
    assert calls == [0, 1, 2, *range(2, units)] and units > 3
    assert data.contents(tmp_path / "c") == data.contents(tmp_path / "whole")
    with pytest.raises(
        BadInput, match="was begun with vocabulary=words, not None; use the same options"
    ):
        data.make_corpus(tmp_path / "c", tokenizer=None)


def test_text_that_changes_after_it_was_counted_is_refused(tmp_path, monkeypatch):
    (path,) = data.write(tmp_path, a="one two\n\nthree\n")
    settings = {"inputs": [path], "tokenizer": None, "vocabulary": "words", "heldout": 0}
    with monkeypatch.context() as patch:
        patch.setattr(work_unit, "prepare_unit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            data.make_corpus(tmp_path / "c", **settings)
    data.write(tmp_path, a="one two\n\nTHREE\n")
    with pytest.raises(BadInput, match="a.txt was changed after .* was begun"):
        data.make_corpus(tmp_path / "c", **settings)


def test_an_unseen_character_is_one_line_with_its_file(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("the plain active voice\n")
    prepare(
        [str(tmp_path / "a.txt")],
        str(tmp_path / "c"),
        PrepareOptions(vocabulary="characters", heldout=0, workers=1),
    )
    (tmp_path / "b.txt").write_text("plain\n\nnaïve\n", encoding="utf-8")
    words = [
        "prepare",
        f"--input={tmp_path / 'b.txt'}",
        f"--output={tmp_path / 'd'}",
        "--heldout=0",
        "--workers=1",
        f"--tokenizer={tmp_path / 'c' / 'vocabulary.json'}",
    ]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert f"{tmp_path / 'b.txt'}: character '\\xef' (U+00EF) is not in the vocabulary" in line
    with pytest.raises(BadInput, match="is one of characters, not of words"):
        made = str(tmp_path / "c" / "vocabulary.json")
        prepare(
            [str(tmp_path / "b.txt")],
            str(tmp_path / "e"),
            PrepareOptions(vocabulary="words", tokenizer=made),
        )


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
    settings = {"inputs": [str(tmp_path)], "tokenizer": None, "heldout": 0.01, "shard_bytes": 25}
    valid = data.make_corpus(tmp_path / "v", dataset="enwik8", **settings)
    test = data.make_corpus(tmp_path / "t", dataset="enwik8:test", **settings)
    assert valid["tokenizer"] == test["tokenizer"] and valid["sha256"] != test["sha256"]
    assert verify.verify(str(tmp_path / "v"))[1] == []
    for path, start, end in (("v", 40, 56), ("t", 56, 70)):
        train, heldout = (Corpus(str(tmp_path / path), split) for split in ("train", "heldout"))
        pieces = train.tokenizer.pieces
        assert bytes(int(pieces[index][3:5], 16) for index in whole(train)) == text[:40]
        assert bytes(int(pieces[index][3:5], 16) for index in whole(heldout)) == text[start:end]
        assert train.documents == 2, "one end of a document for every unit"
    assert train.tokenizer.decode(train.tokenizer.encode("''A''  .")) == "''A''  .", (
        "a prompt is not normalised"
    )


def wikitext(folder, **changes):
    contents = {
        "train": " \n = A = \n \n a <unk> b a b \n",
        "valid": " a new \n \n",
        "test": " b \n c d <unk>\n",
    }
    for split, content in (contents | changes).items():
        (folder / f"wiki.{split}.tokens").write_text(content)


@pytest.mark.usefixtures("small_sizes")
def test_wikitext_is_its_words_and_line_ends_and_a_truncated_file_is_one_line(tmp_path, capsys):
    wikitext(tmp_path)
    data.make_corpus(tmp_path / "c", [str(tmp_path)], tokenizer=None, dataset="wikitext103")
    train, heldout = (Corpus(str(tmp_path / "c"), split) for split in ("train", "heldout"))
    assert train.tokenizer.pieces[9:] == ["<eos>", "=", "a", "b", "A"], (
        "counted in the training text alone"
    )
    assert train.tokenizer.decode(whole(train)) == "\n= A =\n\na <unk> b a b\n"
    assert train.tokenizer.decode(whole(heldout)) == "a <unk>\n\n"
    wikitext(tmp_path, valid=" a new \n")
    words = [
        "prepare",
        f"--input={tmp_path}",
        f"--output={tmp_path / 'd'}",
        "--dataset=wikitext103",
        "--workers=1",
    ]
    assert main(words) == 2
    assert (
        "wiki.valid.tokens has 3 words and line ends, wikitext103 has 4; fetch it again"
        in capsys.readouterr().err
    )
    (tmp_path / "wiki.test.tokens").unlink()
    assert main(words) == 2
    assert (
        "needs wiki.test.tokens, wiki.train.tokens, wiki.valid.tokens and no other"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--dataset=enwik8"],
            "enwik8 has 70 bytes, enwik8 has 100,000,000; unpack it, or fetch it again",
        ),
        (
            ["--dataset=enwik9"],
            "--dataset=enwik9 must be one of enwik8, text8, wikitext103, with :test to hold out",
        ),
        (["--dataset=enwik8:train"], "--dataset=enwik8:train must be one of"),
        (
            ["--dataset=enwik8", "--vocabulary=words"],
            "has a vocabulary of bytes; leave --vocabulary out",
        ),
        (["--dataset=enwik8", "--uncased"], "is read as it is: leave out --uncased"),
    ],
)
def test_the_published_counts_are_required(tmp_path, capsys, words, message):
    enwik8(tmp_path / "enwik8")
    assert (
        main(["prepare", f"--input={tmp_path / 'enwik8'}", f"--output={tmp_path / 'c'}", *words])
        == 2
    )
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert message in line
