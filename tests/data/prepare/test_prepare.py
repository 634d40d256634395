"""Preparing: what is written, that it is the same however it was made, and what is refused."""

import ast
import logging
import os
import shutil
import threading

import data_fixtures as data
import numpy as np
import pytest
from special_ids import EOD

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus import pages
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare import pipeline as module
from xlnet_jax.data.prepare import work_unit
from xlnet_jax.data.prepare.text import Request
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput


def _texts(path, split="train"):
    corpus = Corpus(str(path), split)
    tokens = corpus.read(np.array([0]), corpus.tokens)[0][0]
    return [
        corpus.tokenizer.decode(part)
        for part in np.split(tokens, np.flatnonzero(tokens == EOD) + 1)[:-1]
    ]


def test_end_of_document_belongs_to_the_last_sentence(tmp_path):
    inputs = data.write(tmp_path, a="Bado kilu.\nMeno.\n\n\nRasi\n", b="Tuve")
    manifest = data.make_corpus(tmp_path / "c", inputs, heldout=0.0)
    corpus = Corpus(str(tmp_path / "c"))
    encoded = data.encode(["Bado kilu.", "Meno.", "Rasi", "Tuve"], corpus.tokenizer)
    expected = [*encoded[0], *encoded[1], EOD, *encoded[2], EOD, *encoded[3], EOD]
    tokens, starts = corpus.read(np.array([0]), corpus.tokens)
    assert tokens[0].tolist() == expected
    begins = np.cumsum([0, len(encoded[0]), len(encoded[1]) + 1, len(encoded[2]) + 1])
    assert np.flatnonzero(starts[0]).tolist() == begins.tolist()
    assert list(manifest["splits"]) == ["train"]
    train = manifest["splits"]["train"]
    assert (train["tokens"], train["documents"], train["sentences"]) == (len(expected), 3, 4)


@pytest.mark.parametrize(
    ("document", "documents", "paragraphs"),
    [
        ("file", [0, 5], [0, 3, 5, 6]),
        ("blank_line", [0, 3, 5, 6], [0, 3, 5, 6]),
        ("line", [0, 2, 3, 4, 5, 6], None),
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
    assert np.flatnonzero(flags & pages.PARAGRAPH_START).tolist() == (paragraphs or documents)
    train = manifest["splits"]["train"]
    counts = (len(flags), len(documents), len(paragraphs or documents))
    assert (
        tuple(train[name] for name in ("sentences", "documents", "paragraphs"))
        == counts
        == (7, *counts[1:])
    )
    assert manifest["empty"] == (document != "file")


def test_heldout_is_disjoint_and_holds_duplicates_together(tmp_path):
    train, heldout = _texts(data.corpus_path()), _texts(data.corpus_path(), "heldout")
    assert not set(train) & set(heldout)
    assert len(train) + len(heldout) == len(data.documents_of(data.text_folder()))
    assert 0.1 < len(heldout) / (len(train) + len(heldout)) < 0.3
    # The same documents elsewhere, in another order and twice, fall on the same sides.
    documents = data.documents_of(data.text_folder())
    content = "\n\n".join("\n".join(document) for document in [*documents[::-1], *documents])
    data.make_corpus(tmp_path / "c", data.write(tmp_path, a=content))
    assert sorted(_texts(tmp_path / "c", "heldout")) == sorted(2 * heldout)


def test_two_workers_write_the_same_bytes(tmp_path):
    data.make_corpus(tmp_path / "c", workers=2)
    one, two = data.contents(data.corpus_path()), data.contents(tmp_path / "c")
    assert sum(name.startswith("corpus-train") for name in one) > 2
    assert one == two


def test_no_thread_parses_python(tmp_path, monkeypatch):
    """As `np.load` does: in Python 3.11 two threads at once get a SystemError now and then."""
    parse = ast.parse

    def in_the_main_thread(*arguments, **options):
        assert threading.current_thread() is threading.main_thread()
        return parse(*arguments, **options)

    monkeypatch.setattr(ast, "parse", in_the_main_thread)
    data.make_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    "place", ["first unit", "third unit", "inside a unit", "after the renames"]
)
def test_interrupted_and_given_again(tmp_path, monkeypatch, caplog, place):
    calls = []

    def stop_at(number, function):
        def replacement(*args, **kwargs):
            calls.append(args)
            if len(calls) == number:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return replacement

    with monkeypatch.context() as patch:
        if place == "inside a unit":
            patch.setattr(pages.PageWriter, "write", stop_at(4, pages.PageWriter.write))
        elif place == "after the renames":
            patch.setattr(
                manifests, "write_tfds_metadata", stop_at(1, manifests.write_tfds_metadata)
            )
        else:
            number = 1 if place == "first unit" else 3
            patch.setattr(work_unit, "prepare_unit", stop_at(number, work_unit.prepare_unit))
        with pytest.raises(KeyboardInterrupt):
            data.make_corpus(tmp_path / "c")
    with pytest.raises(BadInput, match="is not finished"):
        Corpus(str(tmp_path / "c"))
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        data.make_corpus(tmp_path / "c")
    assert ("going on" in caplog.text) == (place != "first unit")
    assert data.contents(tmp_path / "c") == data.contents(data.corpus_path())


def test_bytes_that_are_not_utf8(tmp_path):
    inputs = data.write(tmp_path, a="Bado.\n\n" * 40 + "\nBado kilu.\n", b=b"Meno \xff ba.\n")
    with pytest.raises(BadInput, match=r"b.txt, byte 5: not UTF-8; .*--errors=replace"):
        data.make_corpus(tmp_path / "c", inputs, heldout=0.0, shard_bytes=50)
    assert any(name.endswith(".json") for name in os.listdir(tmp_path / "c" / "units"))
    # The advice works in the same folder, and gives what it gives in a new one.
    manifest = data.make_corpus(
        tmp_path / "c", inputs, heldout=0.0, shard_bytes=50, errors="replace"
    )
    fresh = data.make_corpus(tmp_path / "d", inputs, heldout=0.0, shard_bytes=50, errors="replace")
    assert manifest["replaced"] == 1 and manifest == fresh
    assert data.contents(tmp_path / "c") == data.contents(tmp_path / "d")
    # There is no way back: a unit may have replaced something.
    with pytest.raises(BadInput, match="was begun with errors=replace, not strict"):
        data.make_corpus(tmp_path / "c", inputs, heldout=0.0, shard_bytes=50)


def test_the_tokenizer_sees_a_seeded_sample_without_the_heldout_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAMPLE_PART_BYTES", 1000)
    samples = []

    def train(texts, path, *_):
        samples.append(list(texts))
        shutil.copy(data.tokenizer_path(), path)

    monkeypatch.setattr(module, "train_tokenizer", train)
    for name, changes in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"sample_bytes": 10**9}}.items():
        data.make_corpus(tmp_path / name, tokenizer=None, **{"sample_bytes": 5000, **changes})
    assert samples[0] == samples[1] != samples[2]
    assert 5000 <= sum(map(len, samples[0])) < 6000
    request = Request(
        "blank_line", "line", Normalization(), data.HELDOUT, "strict", data.PAGE_TOKENS
    )
    kept = [each for each in data.documents_of(data.text_folder()) if not request.held_out([each])]
    assert sorted(samples[3]) == sorted(sentence for document in kept for sentence in document)


def test_no_text_in_a_split(tmp_path, caplog):
    nothing = data.write(tmp_path, a=" \n\n", b="")
    for tokenizer in (None, data.tokenizer_path()):
        with pytest.raises(BadInput, match="the inputs hold no text"):
            data.make_corpus(tmp_path / f"c{tokenizer is None}", nothing, tokenizer=tokenizer)
    all_held_out = (
        r"all of the text \(1 document\) fell to .*; choose another folder and a smaller --heldout"
    )
    with pytest.raises(BadInput, match=all_held_out):
        data.make_corpus(tmp_path / "d", data.write(tmp_path, a="Bado kilu"), heldout=1 - 1e-9)
    # The other way round training is possible, but its loss will have nothing to be compared with.
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        data.make_corpus(tmp_path / "e", data.write(tmp_path, a="Bado kilu"), heldout=1e-9)
    assert (
        "none of the documents, of 11 tokens, is in the held-out split; prepare it with"
        in caplog.text
    )
    assert "such as --heldout=0.2" in caplog.text
