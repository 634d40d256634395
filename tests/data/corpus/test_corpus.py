"""Reading pages: the circle, the cache, threads, pickling, TFDS; and every way a corpus can be
broken.
"""

import builtins
import hashlib
import json
import mmap
import os
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import data_fixtures as data
import numpy as np
import pytest
from special_ids import EOD

from xlnet_jax.data.corpus import pages
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import MANIFEST
from xlnet_jax.data.prepare.text import Request
from xlnet_jax.data.tokenizer import train_tokenizer
from xlnet_jax.errors import BadInput


def _naive(split):
    """The split's tokens and flags, from the text, without pages. A document is one paragraph
    here.
    """
    request = Request(
        "blank_line",
        "line",
        data.tokenizer().normalization,
        data.HELDOUT,
        "strict",
        data.PAGE_TOKENS,
        "text",
    )
    tokens, starts = [], []
    for document in data.documents_of(data.text_folder()):
        if request.held_out([document]) == (split == "heldout"):
            flag = pages.DOCUMENT_START | pages.PARAGRAPH_START
            for ids in data.encode(document, data.tokenizer()):
                tokens += ids.tolist()
                starts += [flag | pages.SENTENCE_START] + [0] * (len(ids) - 1)
                flag = 0
            tokens.append(EOD)
            starts.append(0)
    return np.array(tokens, np.int32), np.array(starts, np.uint8)


@pytest.fixture
def copy(tmp_path):
    """A copy of the corpus that a test may break."""
    return shutil.copytree(data.corpus_path(), tmp_path / "corpus")


def test_a_corpus_is_read_through_a_mount_that_has_neither_mmap_nor_changes(monkeypatch):
    """As Cloud Storage FUSE may be: read-only, no memory mapping, no renames."""
    expected = Corpus(data.corpus_path()).read(np.arange(0, 4000, 100), 100)
    os_open, builtin_open = os.open, open

    def refuse(*_, **__):
        raise PermissionError("a mount that is only read")

    def open_low(path, flags, *words, **more):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return os_open(path, flags, *words, **more)

    def open_high(path, mode="r", *words, **more):
        if set(mode) & set("wax+"):
            refuse()
        return builtin_open(path, mode, *words, **more)

    monkeypatch.setattr(os, "open", open_low)
    monkeypatch.setattr(builtins, "open", open_high)
    for name in ("rename", "replace", "mkdir", "remove", "utime"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(mmap, "mmap", refuse)
    found = Corpus(data.corpus_path()).read(np.arange(0, 4000, 100), 100)
    np.testing.assert_array_equal(found, expected)
    # Nor does the native reader of the shards.
    with open("/proc/self/maps") as maps:
        assert data.corpus_path() not in maps.read()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_read_equals_a_naive_concatenation(split):
    corpus, (tokens, starts) = Corpus(data.corpus_path(), split), _naive(split)
    shards = corpus.manifest["splits"][split]["shards"]
    # Several shards, several pages, and padding at the end of shards that must not be seen.
    assert len(shards) > 2 and max(shard["pages"] for shard in shards) > 2
    assert any(shard["tokens"] % data.PAGE_TOKENS for shard in shards[:-1])
    assert corpus.tokens == len(tokens)
    assert corpus.documents == (tokens == EOD).sum()
    counts = np.bincount(tokens, minlength=data.VOCAB_SIZE)
    np.testing.assert_array_equal(corpus.token_counts, counts)
    lengths = np.diff(np.flatnonzero(tokens == EOD), prepend=-1).astype(np.int32)
    np.testing.assert_array_equal(corpus.lengths, lengths, strict=True)
    first = np.array([0, 63, 64, len(tokens) - 1, len(tokens), -5, 12345678901])
    for length in (0, 1, 70, 2 * corpus.tokens + 3):
        index = (first[:, None] + np.arange(length, dtype=np.int64)) % len(tokens)
        expected = (tokens[index], starts[index])
        begins = expected[1] & pages.SENTENCE_START != 0
        for found, wanted in (
            (corpus.read(first, length), (expected[0], begins)),
            (corpus.read_flags(first, length), expected),
        ):
            for each, of_text in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(each, of_text, strict=True)
    assert corpus.read(first[:0], 5)[0].shape == (0, 5)


def test_threads_and_pickled_copies_read_the_same():
    corpus = Corpus(data.corpus_path(), cache_bytes=5000)
    first = np.random.Generator(np.random.Philox(0)).integers(0, corpus.tokens, (40, 8))
    expected = [corpus.read(row, 100)[0] for row in first]
    assert corpus.lengths.sum() == corpus.tokens  # read, and then not pickled
    again = pickle.loads(pickle.dumps(corpus))
    assert not again._shards._open and not again._pages and "lengths" not in vars(again)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda row: again.read(row, 100)[0], first))
    np.testing.assert_array_equal(found, expected)


def test_tfds_reads_it_without_tensorflow():
    import tensorflow_datasets as tfds

    corpus = Corpus(data.corpus_path())
    source = tfds.builder_from_directory(data.corpus_path()).as_data_source("train")
    shards = corpus.manifest["splits"]["train"]["shards"]
    assert len(source) == sum(shard["pages"] for shard in shards)
    page, size = shards[0]["pages"], data.PAGE_TOKENS  # the first page of the second shard
    (tokens,), (starts,) = corpus.read_flags(np.array([shards[0]["tokens"]]), size)
    np.testing.assert_array_equal(source[page]["tokens"], tokens, strict=True)
    np.testing.assert_array_equal(source[page]["starts"], starts, strict=True)
    assert "tensorflow" not in sys.modules


def _edit(copy, change):
    """Changes the manifest of a corpus."""
    manifest = json.loads((copy / MANIFEST).read_text())
    change(manifest)
    (copy / MANIFEST).write_text(json.dumps(manifest))


def _refused(path, *words, split="train"):
    with pytest.raises(BadInput) as error:
        Corpus(str(path), split).read(np.array([0]), 1000)
    assert "\n" not in str(error.value) and error.value.exit_code == 2
    for word in words:
        assert word in str(error.value)


def test_not_a_corpus(tmp_path):
    _refused(tmp_path, "no such folder, or nothing in it", "xlnet-jax prepare")
    (tmp_path / "thesis.tex").write_text("")
    _refused(tmp_path, "is not a corpus", "xlnet-jax prepare")
    _refused(tmp_path / "thesis.tex", "Not a directory; name the folder of a corpus")
    (tmp_path / "prepare.json").write_text("{}")
    _refused(tmp_path, "is not finished", "which resumes or says what to change")
    (tmp_path / MANIFEST).write_text("{")
    _refused(tmp_path, "manifest.json is damaged", "copy the corpus again")
    _refused(data.corpus_path(), "has no split 'dev', only train, heldout", split="dev")


def test_missing_cut_and_damaged_shards(copy):
    shard = copy / Corpus(copy).manifest["splits"]["train"]["shards"][0]["file"]
    whole = shard.read_bytes()
    shard.unlink()
    _refused(copy, shard.name, "is missing", "copy the corpus again")
    shard.write_bytes(whole[:-1000])
    _refused(copy, shard.name, f"has {len(whole) - 1000} bytes, not {len(whole)}")
    shard.write_bytes(bytes(len(whole)))
    _refused(copy, f"{shard.name} is damaged (", "copy the corpus again")
    damaged = bytearray(whole)
    damaged[len(whole[:65536].rstrip(b"\0")) // 4] ^= 255  # amid the pages, behind which are zeros
    shard.write_bytes(damaged)
    _refused(copy, f"{shard.name}, page ", " is damaged (", "copy the corpus again")


def test_other_tokenizer_or_counts(copy, tmp_path):
    tokenizer, counts = copy / "spiece.model", copy / "token_counts-train.npy"
    whole = counts.read_bytes()
    model = tokenizer.read_bytes()
    train_tokenizer(data.synthetic_text(1, 200).split("\n"), f"{tmp_path}/other", 150, 0, 2)
    shutil.copy(tmp_path / "other", tokenizer)
    _refused(copy, "spiece.model is not the tokenizer that this corpus was made with")
    tokenizer.unlink()
    _refused(copy, "spiece.model", "No such file")
    tokenizer.write_bytes(model)
    counts.write_bytes(b"junk")
    _refused(copy, "token_counts-train.npy does not match its hash", "copy the corpus again")
    counts.unlink()
    _refused(copy, "token_counts-train.npy is missing")
    for content, said in (
        (whole[:-1], "is damaged (not an int64 array of 200 numbers)"),
        (whole.replace(b"<i8", b"<u8"), "is damaged (not an int64 array of 200 numbers)"),
        (whole[:-1] + b"\x01", "does not add up to the"),
    ):
        counts.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        _edit(copy, lambda m, d=digest: m["splits"]["train"].update(token_counts_sha256=d))
        _refused(copy, f"token_counts-train.npy {said}")
    _edit(copy, lambda manifest: manifest["tokenizer"].update(vocab_size=300))
    _refused(copy, "spiece.model has 200 pieces, the manifest says 300")


def test_lengths_of_documents(copy):
    """They are read when they are needed; an older corpus has none."""
    file = copy / "document_lengths-train.npy"
    whole = file.read_bytes()
    for content, said in (
        (None, "is missing or cannot be read; copy the corpus again"),
        (whole[:-1], "does not match its hash in the manifest; copy the corpus again"),
        (whole[:-4], r"is damaged \(not an int32 array of \d+ numbers\)"),
        (whole[:-1] + b"\1", "does not add up to the"),
    ):
        file.unlink(missing_ok=True)
        if content:
            file.write_bytes(content)
        if content and "hash" not in said:
            digest = hashlib.sha256(content).hexdigest()
            _edit(copy, lambda m, d=digest: m["splits"]["train"].update(document_lengths_sha256=d))
        corpus = Corpus(str(copy))
        with pytest.raises(BadInput, match=f"document_lengths-train.npy {said}"):
            _ = corpus.lengths
    _edit(copy, lambda manifest: manifest["splits"]["train"].pop("document_lengths_sha256"))
    corpus = Corpus(str(copy))
    np.testing.assert_array_equal(corpus.read([0], 99), Corpus(data.corpus_path()).read([0], 99))
    with pytest.raises(
        BadInput,
        match="corpus .*corpus has no lengths of documents, which data.documents=whole needs; "
        "prepare it again with another --output",
    ):
        _ = corpus.lengths


def test_pages_are_read_once_per_call_and_few_shards_are_open(monkeypatch):
    corpus = Corpus(data.corpus_path(), cache_bytes=3 * data.PAGE_TOKENS * 5)
    read, original = [], corpus._shards.read
    monkeypatch.setattr(
        corpus._shards, "read", lambda places, *rest: read.extend(places) or original(places, *rest)
    )
    corpus.read(np.array([0, 0, 1, 64]), 64)
    corpus.read(np.array([10]), 100)
    assert read == [(0, 0), (0, 1)]
    corpus.read(np.arange(5) * 64, 64)  # more than the cache holds is read all the same
    assert read == [(0, page) for page in range(5)] and len(corpus._pages) == 3
    monkeypatch.setattr("xlnet_jax.data.corpus.shards._OPEN_SHARDS", 1)
    corpus = Corpus(data.corpus_path())
    (tokens,), _ = corpus.read(np.array([0]), corpus.tokens)
    np.testing.assert_array_equal(tokens, _naive("train")[0])
    assert len(corpus._shards._open) == 1
