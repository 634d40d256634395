"""Preparing: what is written, that it is the same however it was made, and what is refused."""

import ast
import logging
import shutil
import threading

import data_fixtures as data
import numpy as np
import pytest
from special_ids import EOD

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus import pages
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare import pipeline, work_unit
from xlnet_jax.errors import BadInput


def _texts(path, split="train"):
    corpus = Corpus(str(path), split)
    (tokens,), _ = corpus.read(np.array([0]), corpus.tokens)
    documents = np.split(tokens, np.flatnonzero(tokens == EOD) + 1)[:-1]
    return list(map(corpus.tokenizer.decode, documents))


@pytest.mark.parametrize(
    ("document", "documents", "paragraphs"),
    [
        ("file", [0, 5], [0, 3, 5, 6]),
        ("blank_line", [0, 3, 5, 6], [0, 3, 5, 6]),
        ("line", [0, 2, 3, 4, 5, 6], [0, 2, 3, 4, 5, 6]),
    ],
)
def test_starts_of_paragraphs(tmp_path, document, documents, paragraphs):
    """By the number of their first sentence. A zero-width space is text to Python, and nothing to
    SentencePiece.
    """
    inputs = data.write(
        tmp_path, a="Bado. Kilu.\nMeno.\n\n\u200b\n\n\u200b Rasi.\nTuve.", b="Meno.\n\nRasi."
    )
    manifest = data.make_corpus(
        tmp_path / "c", inputs, heldout=0.0, document=document, sentences="punctuation"
    )
    corpus = Corpus(str(tmp_path / "c"))
    flags = corpus.read_flags(np.array([0]), corpus.tokens)[1][0]
    flags = flags[(flags & pages.SENTENCE_START) > 0]
    assert np.flatnonzero(flags & pages.DOCUMENT_START).tolist() == documents
    assert np.flatnonzero(flags & pages.PARAGRAPH_START).tolist() == paragraphs
    train = manifest["splits"]["train"]
    assert (train["documents"], train["paragraphs"]) == (len(documents), len(paragraphs))
    assert train["sentences"] == len(flags) == 7
    assert manifest["empty"] == (document != "file")


def test_heldout_is_disjoint_and_holds_duplicates_together(tmp_path):
    train, heldout = _texts(data.corpus_path()), _texts(data.corpus_path(), "heldout")
    documents = data.documents_of(data.text_folder())
    assert not set(train) & set(heldout)
    assert len(train) + len(heldout) == len(documents)
    assert 0.1 < len(heldout) / len(documents) < 0.3
    # The same documents elsewhere, in another order and twice, fall on the same sides.
    content = "\n\n".join("\n".join(document) for document in [*documents[::-1], *documents])
    data.make_corpus(tmp_path / "c", data.write(tmp_path, a=content))
    assert sorted(_texts(tmp_path / "c", "heldout")) == sorted(2 * heldout)


def test_no_thread_parses_python(tmp_path, monkeypatch):
    """As `np.load` does: in Python 3.11 two threads at once get a SystemError now and then."""
    parse = ast.parse

    def in_the_main_thread(*arguments, **options):
        assert threading.current_thread() is threading.main_thread()
        return parse(*arguments, **options)

    monkeypatch.setattr(ast, "parse", in_the_main_thread)
    data.make_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (work_unit, "prepare_unit", 3),
        (pages.PageWriter, "write", 4),  # inside a unit
        (manifests, "write_tfds_metadata", 1),  # after the renames
    ],
)
def test_interrupted_and_given_again(tmp_path, monkeypatch, caplog, module, name, call):
    original, calls = getattr(module, name), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.make_corpus(tmp_path / "c")
    with pytest.raises(BadInput, match="is not finished"):
        Corpus(str(tmp_path / "c"))
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        data.make_corpus(tmp_path / "c")
    assert "going on" in caplog.text
    assert data.contents(tmp_path / "c") == data.contents(data.corpus_path())


def test_bytes_that_are_not_utf8(tmp_path):
    inputs = data.write(tmp_path, a="Bado.\n\n" * 40 + "\nBado kilu.\n", b=b"Meno \xff ba.\n")
    options = {"heldout": 0.0, "shard_bytes": 50}
    with pytest.raises(BadInput, match=r"b.txt, byte 5: not UTF-8; .*--errors=replace"):
        data.make_corpus(tmp_path / "c", inputs, **options)
    assert list((tmp_path / "c" / "units").glob("*.json"))
    # The advice works in the same folder, and gives what it gives in a new one.
    manifest = data.make_corpus(tmp_path / "c", inputs, **options, errors="replace")
    data.make_corpus(tmp_path / "d", inputs, **options, errors="replace")
    assert manifest["replaced"] == 1
    assert data.contents(tmp_path / "c") == data.contents(tmp_path / "d")
    # There is no way back: a unit may have replaced something.
    with pytest.raises(BadInput, match="was begun with errors=replace, not strict"):
        data.make_corpus(tmp_path / "c", inputs, **options)


def test_the_tokenizer_sees_a_seeded_sample_without_the_heldout_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_SAMPLE_PART_BYTES", 1000)
    samples = []

    def train(texts, path, *_):
        samples.append(list(texts))
        shutil.copy(data.tokenizer_path(), path)

    monkeypatch.setattr(pipeline, "train_tokenizer", train)
    for number, changes in enumerate(({}, {}, {"seed": 1}, {"sample_bytes": 10**9})):
        settings: dict = {"tokenizer": None, "sample_bytes": 5000} | changes
        data.make_corpus(tmp_path / str(number), **settings)
    assert samples[0] == samples[1] != samples[2]
    assert 5000 <= sum(map(len, samples[0])) < 6000
    heldout = "".join(_texts(data.corpus_path(), "heldout"))
    kept = {line for each in data.documents_of(data.text_folder()) for line in each}
    assert set(samples[3]) == {line for line in kept if line not in heldout}


def test_no_text_in_a_split(tmp_path, caplog):
    nothing = data.write(tmp_path, a=" \n\n", b="")
    for tokenizer in (None, data.tokenizer_path()):
        with pytest.raises(BadInput, match="the inputs hold no text"):
            data.make_corpus(tmp_path / f"c{tokenizer is None}", nothing, tokenizer=tokenizer)
    short = data.write(tmp_path, a="Bado kilu")
    with pytest.raises(
        BadInput, match=r"all of the text \(1 document\) fell to .*; choose another"
    ):
        data.make_corpus(tmp_path / "d", short, heldout=1 - 1e-9)
    # The other way round training is possible, but its loss will have nothing to be compared with.
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        data.make_corpus(tmp_path / "e", short, heldout=1e-9)
    assert "none of the documents, of 11 tokens, is in the held-out split" in caplog.text
    assert "such as --heldout=0.2" in caplog.text
