"""The bytes of a page, reading them back, and a shard held against its entry."""

import re

import numpy as np
import pytest

from xlnet_jax.data.corpus import pages
from xlnet_jax.errors import BadInput

VOCAB_SIZE = 32000


def page(page_tokens, seed=0):
    generator = np.random.Generator(np.random.Philox(seed))
    tokens = generator.integers(0, VOCAB_SIZE, page_tokens, dtype=np.int32)
    return tokens, generator.integers(0, 8, page_tokens, dtype=np.uint8)


def tfds_record(features, tokens, starts):
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    example = features.encode_example({"tokens": tokens, "starts": starts})
    serializer = ExampleSerializer(features.get_serialized_info())
    return serializer.get_tf_example(example).SerializeToString(deterministic=True)


# The lengths in a record take one to four bytes each.
@pytest.mark.parametrize("page_tokens", [1, 30, 127, 128, 5000, 600_000])
def test_a_page_has_the_bytes_that_tfds_writes_and_reads(page_tokens):
    tokens, starts = page(page_tokens)
    features = pages.features(page_tokens)
    record = pages.encode(tokens, starts)
    assert record == tfds_record(features, tokens, starts)
    read = features.deserialize_example_np(record)
    np.testing.assert_array_equal(read["tokens"], tokens)
    np.testing.assert_array_equal(read["starts"], starts)
    found_tokens, found_starts = pages.decode(record, page_tokens, VOCAB_SIZE)
    np.testing.assert_array_equal(found_tokens, tokens, strict=True)
    np.testing.assert_array_equal(found_starts, starts, strict=True)


def refused(record, words, page_tokens=64, vocab_size=VOCAB_SIZE):
    with pytest.raises(BadInput, match=words) as error:
        pages.decode(record, page_tokens, vocab_size)
    assert "\n" not in str(error.value)


def test_other_records():
    tokens, starts = page(64)
    record = pages.encode(tokens, starts)
    refused(b"", "0 bytes is not a page of 64 tokens")
    refused(record[:-1], "not a page of 64 tokens")
    refused(record, "not a page of 32 tokens", page_tokens=32)
    refused(record.replace(b"tokens", b"tokenz"), "not a tf.Example")
    refused(b"\x00" * len(record), "not a tf.Example")
    for bad in (VOCAB_SIZE, -1):
        tokens[7] = bad
        said = f"token 7 is {bad}, outside the vocabulary of {VOCAB_SIZE} pieces"
        refused(pages.encode(tokens, starts), said)
    tokens[7], starts[9] = VOCAB_SIZE - 1, 8
    refused(pages.encode(tokens, starts), "flags of token 9 are 8")


def shard_refused(path, entry, words, page_tokens=64, vocab_size=VOCAB_SIZE):
    with pytest.raises(BadInput, match=f"{re.escape(path)}.*{words}") as error:
        list(pages.scan(path, entry, page_tokens, vocab_size))
    assert "\n" not in str(error.value)


def test_scan(tmp_path):
    path = str(tmp_path / "shard")
    tokens, starts = page(1000)
    writer = pages.PageWriter(path, 64)
    for first in range(0, 1000, 100):
        writer.write(tokens[first : first + 100], starts[first : first + 100])
    entry = writer.close()
    assert (entry["tokens"], entry["pages"]) == (1000, 16)
    found = map(np.concatenate, zip(*pages.scan(path, entry, 64, VOCAB_SIZE), strict=True))
    for read, written in zip(found, (tokens, starts), strict=True):
        np.testing.assert_array_equal(read, written)
    for name, value, words in (
        ("pages", 15, "holds 16 pages, not the 15"),
        ("bytes", 7, "bytes, not 7"),
        ("sha256", "0" * 64, "the file does not match its hash"),
        ("content", "0" * 64, "tokens or starts do not match their hash"),
        ("tokens", 999, "page 15: it has 39 tokens, but the rest is not padding"),
    ):
        shard_refused(path, entry | {name: value}, words)
    shard_refused(path, entry, "page 0: token . is", vocab_size=100)
    shard_refused(path, entry, "page 0: a record of .* not a page of 32 tokens", page_tokens=32)
    shard_refused(f"{path}s", entry, "No such file")
