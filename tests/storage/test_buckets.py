"""A bucket in place of a disk: the fake one of the tests, and a corpus read from it."""

import pathlib
import pickle
import threading

import data_fixtures as data
import fake_gcs
import numpy as np
import pytest
import tiny

from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.corpus import pages, shards, verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import read_manifest, shard_name
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.train import evaluation

ADDRESS = "gs://bucket/corpus"


@pytest.fixture
def corpus_in(bucket):
    """The server, with the tests' corpus in it."""
    for path in pathlib.Path(data.corpus_path()).iterdir():
        bucket.objects[f"bucket/corpus/{path.name}"] = path.read_bytes()
    bucket.requests.clear()
    return bucket


def shard_names(split="train"):
    return [shard["file"] for shard in read_manifest(data.corpus_path())["splits"][split]["shards"]]


def shard_reads(server):
    return [
        path
        for method, path, _ in server.requests
        if "array_record-" in path and "alt=media" in path
    ]


def same(corpus, split="train"):
    local = Corpus(data.corpus_path(), split)
    starts = np.random.Generator(np.random.Philox(0)).integers(0, local.tokens, 8)
    for length in (100, 20):
        for found, wanted in zip(
            corpus.read(starts, length), local.read(starts, length), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(read_all(corpus)[0], read_all(local)[0])
    assert (corpus.sha256, corpus.tokens) == (local.sha256, local.tokens)
    np.testing.assert_array_equal(corpus.token_counts, local.token_counts)
    assert corpus.tokenizer.sha256 == local.tokenizer.sha256


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_corpus_is_read_from_a_bucket(corpus_in, split):
    corpus = Corpus(ADDRESS, split)
    assert not shard_reads(corpus_in)  # opening it asks for sizes only
    same(corpus, split)
    assert len(shard_reads(corpus_in)) > corpus.manifest["splits"][split]["shards"][0]["pages"]
    assert not any("document_lengths" in path for _, path, _ in corpus_in.requests)
    np.testing.assert_array_equal(corpus.lengths, Corpus(data.corpus_path(), split).lengths)
    same(pickle.loads(pickle.dumps(corpus)), split)


def test_the_pages_of_a_batch_are_read_at_the_same_time_and_exactly(corpus_in):
    corpus = Corpus(ADDRESS)
    page = np.arange(0, corpus.tokens, 7 * data.PAGE_TOKENS)  # of all shards
    corpus.read(corpus._first_token[:-1], 1)
    assert len(shard_reads(corpus_in)) == 2 * len(shard_names())  # each index and a page
    corpus._pages.clear()
    corpus_in.requests.clear()
    original, together = fake_gcs._Handler._get, threading.Barrier(len(page))

    def slow(*arguments):
        together.wait(60)
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fake_gcs, "_ROUTES", [(route[0], route[1], slow) for route in fake_gcs._ROUTES]
        )
        corpus.read(page, 1)
    ranges = [
        [int(number) for number in r.removeprefix("bytes=").split("-")]
        for _, _, r in corpus_in.requests
    ]
    assert len(ranges) == len(page) > 8
    assert all(last - first < 1000 for first, last in ranges)


def test_an_index_that_crosses_blocks(bucket, tmp_path):
    """Fails if the headers at every 64 KiB are taken for a part of the index."""
    writer = pages.PageWriter(str(tmp_path / "shard"), 20)
    tokens = np.random.default_rng(0).integers(
        0, 2 ** (1 + np.arange(120_000) % 14), dtype=np.int32
    )
    writer.write(tokens, np.zeros(120_000, np.uint8))
    entry = writer.close()
    data = (tmp_path / "shard").read_bytes()
    index = shards._edges(data, len(data))[-1]
    assert index // 65536 < len(data[:-65536].rstrip(b"\0")) // 65536
    bucket.objects[f"bucket/{shard_name('train', 0, 1)}"] = data
    read = shards.Shards("gs://bucket", "train", [entry["pages"]], [entry["bytes"]]).read
    found = read([(0, page) for page in range(0, 6000, 97)], 20, 2**14)
    np.testing.assert_array_equal([page for page, _ in found], tokens.reshape(-1, 20)[::97])


def test_a_corpus_is_listed_and_its_manifest_read_once(corpus_in):
    """For both splits: 156,250 shards are 157 requests to list, and a manifest of 90 MB."""
    config = tiny.config(data={"corpus": ADDRESS}, evaluation={"every": 2})
    train = open_mixture(config)
    heldout = evaluation.open_heldout(config, train)
    assert heldout.corpora[0].split == "heldout"
    asked = [path for _, path, _ in corpus_in.requests]
    assert sum("prefix=corpus" in path for path in asked) == 1
    assert sum("manifest.json" in path for path in asked) == 1
    assert "manifest" not in pickle.loads(pickle.dumps(train.corpora[0])).__dict__


def told(kind, words, call):
    with pytest.raises(kind, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def read_all(corpus):
    return corpus.read(np.array([0]), corpus.tokens)


def test_missing_and_damaged_objects(corpus_in):
    address = f"{ADDRESS}/{shard_names()[1]}"
    key = address.removeprefix("gs://")
    opened, whole = Corpus(ADDRESS), corpus_in.objects[key]
    place = len(whole[:65536].rstrip(b"\0")) // 2  # amid the pages, behind which come zeros
    for changed, words in ((place, r"page \d+ is damaged \(Corrupted"), (65600, r"is damaged \(")):
        changed_byte = bytes([whole[changed] ^ 1])
        corpus_in.objects[key] = whole[:changed] + changed_byte + whole[changed + 1 :]
        told(BadInput, f"{address}.*{words}.*; copy the", lambda: read_all(Corpus(ADDRESS)))
    del corpus_in.objects[key]
    told(BadInput, f"{address}.*missing.*; copy the corpus", lambda: read_all(Corpus(ADDRESS)))
    told(BadInput, f"{address}.*missing.*; copy the corpus", lambda: read_all(opened))
    corpus_in.objects[key] = whole[:-1]
    told(BadInput, f"{address} has {len(whole) - 1} bytes, not", lambda: Corpus(ADDRESS))
    corpus_in.objects[key] = whole
    same(Corpus(ADDRESS))


def test_the_bucket_does_not_answer(corpus_in):
    corpus = Corpus(ADDRESS)
    corpus_in.fail_next(3, 503)
    assert corpus.read(np.array([0]), 5)[0].shape == (1, 5)
    corpus_in.down = True
    for call in (lambda: read_all(corpus), lambda: Corpus(ADDRESS), lambda: verify.verify(ADDRESS)):
        told(RestartMe, "disconnected|reset", call)
    corpus_in.down = False
    same(corpus)
    corpus._pages.clear()
    corpus_in.fail_next(1, 403)
    told(BadInput, "the bucket refuses", lambda: corpus.read(np.array([500]), 5))


def test_verify_in_a_bucket(corpus_in):
    counts, problems = verify.verify(ADDRESS, workers=2)
    assert (counts, problems) == verify.verify(data.corpus_path()) and not problems
    first, second = shard_names("heldout")[:2]
    del corpus_in.objects[f"bucket/corpus/{first}"]
    whole = corpus_in.objects[f"bucket/corpus/{second}"]
    corpus_in.objects[f"bucket/corpus/{second}"] = whole[:100] + b"\1\2" + whole[102:]
    _, problems = verify.verify(ADDRESS)
    assert len(problems) == 2 and problems[0].startswith(f"{ADDRESS}/{first} cannot be read")
    assert problems[1].startswith(f"{ADDRESS}/{second}")
