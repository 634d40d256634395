"""Reading pages: the circle, the cache, threads, pickling, TFDS; and every way a corpus can be broken."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import data_fixtures as data
import numpy as np
import pytest

from xlnet_jax.data.corpus import Corpus
from xlnet_jax.data.manifest import MANIFEST
from xlnet_jax.data.tokenizer import EOD, train_tokenizer
from xlnet_jax.data.unit import Request
from xlnet_jax.errors import BadInput


def _naive(split):
    """The split's tokens and sentence starts, from the text, without pages."""
    request = Request("blank_line", "line", data.tokenizer().normalization, data.HELDOUT, "strict", data.PAGE_TOKENS)
    tokens, starts = [], []
    for document in data.documents_of(data.text_folder()):
        if request.held_out(document) == (split == "heldout"):
            for ids in data.tokenizer().encode(document):
                tokens += ids.tolist()
                starts += [True] + [False] * (len(ids) - 1)
            tokens.append(EOD)
            starts.append(False)
    return np.array(tokens, np.int32), np.array(starts)


@pytest.fixture
def copy(tmp_path):
    """A copy of the corpus that a test may break."""
    return shutil.copytree(data.corpus_path(), tmp_path / "corpus")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_read_equals_a_naive_concatenation(split):
    corpus, (tokens, starts) = Corpus(data.corpus_path(), split), _naive(split)
    shards = corpus.manifest["splits"][split]["shards"]
    # Several shards, several pages, and padding at the end of shards that must not be seen.
    assert len(shards) > 2 and max(shard["pages"] for shard in shards) > 2
    assert any(shard["tokens"] % data.PAGE_TOKENS for shard in shards[:-1])
    assert corpus.tokens == len(tokens) == corpus.token_counts.sum()
    assert corpus.documents == (tokens == EOD).sum()
    np.testing.assert_array_equal(corpus.token_counts, np.bincount(tokens, minlength=data.VOCAB_SIZE))
    for length in (1, 70, corpus.tokens, 2 * corpus.tokens + 3):
        first = np.array([0, 63, 64, len(tokens) - 1, len(tokens), -5, 12345678901])
        read_tokens, read_starts = corpus.read(first, length)
        index = (first[:, None] + np.arange(length)) % len(tokens)
        np.testing.assert_array_equal(read_tokens, tokens[index])
        np.testing.assert_array_equal(read_starts, starts[index])
        assert read_tokens.dtype == np.int32 and read_starts.dtype == bool


def test_read_nothing():
    tokens, starts = Corpus(data.corpus_path()).read(np.zeros(0, np.int64), 5)
    assert tokens.shape == starts.shape == (0, 5)
    assert Corpus(data.corpus_path()).read(np.zeros(3, np.int64), 0)[0].shape == (3, 0)


def test_pages_are_read_once_per_call_and_cached(monkeypatch):
    corpus = Corpus(data.corpus_path(), cache_bytes=3 * data.PAGE_TOKENS * 5)
    read, original = [], corpus._read_pages
    monkeypatch.setattr(corpus, "_read_pages", lambda shard, pages: read.extend(pages) or original(shard, pages))
    corpus.read(np.array([0, 0, 1, 64]), 64)
    assert read == [0, 1]
    corpus.read(np.array([10]), 100)
    assert read == [0, 1]
    corpus.read(np.arange(5) * 64, 64)  # more than the cache holds is read all the same
    assert read == [0, 1, 2, 3, 4] and len(corpus._pages) == 3


def test_threads_and_pickled_copies_read_the_same():
    corpus = Corpus(data.corpus_path(), cache_bytes=5000)
    first = np.random.Generator(np.random.Philox(0)).integers(0, corpus.tokens, (40, 8))
    expected = [corpus.read(row, 100)[0] for row in first]
    again = pickle.loads(pickle.dumps(corpus))
    assert not again._readers and not again._pages and corpus._readers
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda row: again.read(row, 100)[0], first))
    np.testing.assert_array_equal(found, expected)


def test_few_open_shards(monkeypatch):
    monkeypatch.setattr("xlnet_jax.data.corpus._OPEN_SHARDS", 1)
    corpus = Corpus(data.corpus_path())
    np.testing.assert_array_equal(corpus.read(np.array([0]), corpus.tokens)[0][0], _naive("train")[0])
    assert len(corpus._readers) == 1


def test_tfds_reads_it_without_tensorflow():
    program = """
import sys
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
for split in ("train", "heldout"):
    source = builder.as_data_source(split)
    page = source[len(source) - 1]
    print(len(source), page["tokens"].dtype, page["starts"].dtype, page["tokens"].sum(), page["starts"].sum())
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, data.corpus_path()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for split, line in zip(("train", "heldout"), done.stdout.splitlines(), strict=True):
        tokens, starts = _naive(split)
        shard = Corpus(data.corpus_path(), split).manifest["splits"][split]["shards"]
        last = (shard[-1]["tokens"] - 1) % data.PAGE_TOKENS + 1
        documents = np.concatenate([[True], tokens[:-1] == EOD])[-last:].sum()
        padding = 5 * (data.PAGE_TOKENS - last)
        expected = [sum(part["pages"] for part in shard), "int32", "uint8", tokens[-last:].sum() + padding]
        assert line.split() == [str(value) for value in (*expected, starts[-last:].sum() + 2 * documents)]


def _refused(path, *words, split="train"):
    with pytest.raises(BadInput) as error:
        Corpus(str(path), split).read(np.array([0]), 1000)
    assert "\n" not in str(error.value) and error.value.exit_code == 2
    for word in words:
        assert word in str(error.value)


def test_not_a_corpus(tmp_path):
    _refused(tmp_path / "none", "no such folder", "xlnet-jax prepare")
    _refused(tmp_path, "is not a corpus", "xlnet-jax prepare")
    (tmp_path / "prepare.json").write_text("{}")
    _refused(tmp_path, "is not finished", "goes on")
    (tmp_path / MANIFEST).write_text("{")
    _refused(tmp_path, "manifest.json is damaged")


def test_other_format_or_split(copy):
    _refused(copy, "no split 'dev', only train, heldout", "--heldout", split="dev")
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(manifest | {"format_version": 2}))
    _refused(copy, "has format 2, this program reads 1", "prepare it again")
    manifest["splits"]["train"]["shards"].pop()
    (copy / MANIFEST).write_text(json.dumps(manifest))
    _refused(copy, "was changed")


def test_missing_cut_and_damaged_shards(copy):
    shard = copy / Corpus(copy).manifest["splits"]["train"]["shards"][0]["file"]
    whole = shard.read_bytes()
    shard.unlink()
    _refused(copy, shard.name, "is missing", "copy the corpus again")
    shard.write_bytes(whole[:-1000])
    _refused(copy, shard.name, f"has {len(whole) - 1000} bytes, not {len(whole)}")
    shard.write_bytes(bytes(len(whole)))
    _refused(copy, shard.name, "holds 0 pages, not")
    damaged = bytearray(whole)
    place = next(index for index in range(200, len(whole)) if whole[index : index + 8].count(0) == 0)
    damaged[place] ^= 255
    shard.write_bytes(damaged)
    _refused(copy, shard.name, "is damaged", "copy the corpus again")


def test_other_tokenizer_or_counts(copy, tmp_path):
    other = tmp_path / "other.model"
    train_tokenizer(data.synthetic_text(1, 200).split("\n"), str(other), 150, seed=0, threads=2)
    shutil.copy(other, copy / "spiece.model")
    _refused(copy, "spiece.model: not the tokenizer this corpus was made with")
    os.remove(copy / "spiece.model")
    _refused(copy, "spiece.model", "No such file")
    shutil.copy(os.path.join(data.corpus_path(), "spiece.model"), copy)
    (copy / "token_counts-train.npy").write_bytes(b"junk")
    _refused(copy, "token_counts-train.npy is missing or damaged")


def test_hash_follows_content_only(copy, tmp_path):
    moved = shutil.move(copy, tmp_path / "elsewhere")
    assert Corpus(moved).sha256 == Corpus(data.corpus_path()).sha256 == Corpus(data.corpus_path(), "heldout").sha256
