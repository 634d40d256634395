"""Pages: the records of a corpus's shards.

A page is a tf.Example of `page_tokens` tokens: `tokens` int32, and `starts` uint8 with bit 0 where
a sentence starts, bit 1 where a document starts and bit 2 where a paragraph starts. Only the last
page of a shard is padded. Each page is a separate ArrayRecord record (`group_size:1`), so it can be
read without its neighbours.

A tf.Example has many valid serialisations; a page always has the serialisation of TFDS. So with any
version of protobuf all pages have the same bytes around their arrays, and reading a page takes a
comparison and two views.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from google.protobuf import any_pb2
from google.protobuf.wrappers_pb2 import BytesValue

from xlnet_jax.errors import BadInput, summary
from xlnet_jax.messages import quantity
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

SENTENCE_START, DOCUMENT_START, PARAGRAPH_START = 1, 2, 4

_ALL_STARTS = SENTENCE_START | DOCUMENT_START | PARAGRAPH_START

_PADDING = 5
"""Token that fills a shard's last page, a part of the format: `<pad>` of XLNet's vocabularies."""

Page = tuple[np.ndarray, np.ndarray]
"""Tokens, int32, and starts, uint8, of a page or of a run of text."""


def features(page_tokens: int) -> Any:
    """Returns the TFDS features of a page. Imports TFDS here, because its import takes a second."""
    import tensorflow_datasets as tfds

    return tfds.features.FeaturesDict(
        {
            "tokens": tfds.features.Tensor(shape=(page_tokens,), dtype=np.int32, encoding="bytes"),
            "starts": tfds.features.Tensor(shape=(page_tokens,), dtype=np.uint8, encoding="bytes"),
        }
    )


@functools.lru_cache(8)
def _around(page_tokens: int) -> tuple[bytes, bytes]:
    """Returns the bytes before the starts of a page, and the bytes between the starts and the
    tokens. The tokens come last.
    """

    def field(data: bytes) -> bytes:
        """Serialises field 1 of a message."""
        return BytesValue(value=data).SerializeToString()

    def feature(name: str, size: int) -> bytes:
        """Serialises features.feature[name].bytes_list.value[0]; only its value has zeros."""
        value = field(field(bytes(size)))
        # An entry of a map has the fields of an Any: a name and bytes.
        return field(any_pb2.Any(type_url=name, value=value).SerializeToString())

    record = field(feature("starts", page_tokens) + feature("tokens", 4 * page_tokens))
    starts = record.index(0)
    tokens = record.index(0, starts + page_tokens)
    return record[:starts], record[starts + page_tokens : tokens]


def encode(tokens: np.ndarray, starts: np.ndarray) -> bytes:
    """Returns the record of a page: tokens int32 and starts uint8, both [page_tokens]."""
    before, between = _around(len(tokens))
    return b"".join((before, starts.tobytes(), between, tokens.astype("<i4", copy=False).tobytes()))


def decode(record: bytes, page_tokens: int, vocab_size: int) -> Page:
    """Inverse of `encode`; returns views of the record. Raises BadInput for any other bytes."""
    before, between = _around(page_tokens)
    first = len(before) + page_tokens
    if len(record) != first + len(between) + 4 * page_tokens:
        raise BadInput(f"a record of {len(record)} bytes is not a page of {page_tokens} tokens")
    if not record.startswith(before) or not record.startswith(between, first):
        raise BadInput("the record is not a tf.Example of `starts` and `tokens`")
    starts = np.frombuffer(record, np.uint8, page_tokens, len(before))
    tokens = np.frombuffer(record, "<i4", page_tokens, first + len(between))
    # Viewed as unsigned, negative numbers are large.
    if tokens.view("<u4").max() >= vocab_size:
        bad = int((tokens.view("<u4") >= vocab_size).argmax())
        raise BadInput(
            f"token {bad} is {tokens[bad]}, outside the vocabulary of {vocab_size} pieces"
        )
    if starts.max() > _ALL_STARTS:
        bad = int((starts > _ALL_STARTS).argmax())
        raise BadInput(
            f"the flags of token {bad} are {starts[bad]}; the largest valid value is {_ALL_STARTS}"
        )
    return tokens, starts


class PageWriter:
    """Writes one shard under a temporary name; `close` publishes the complete file."""

    def __init__(self, path: str, page_tokens: int):
        self._path = path
        self._page_tokens = page_tokens
        self._writer = array_record_module.ArrayRecordWriter(files.temporary(path), "group_size:1")
        self._hashes = (hashlib.sha256(), hashlib.sha256())
        self._left = (np.zeros(0, np.int32), np.zeros(0, np.uint8))
        self._tokens = 0

    def write(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        """Appends tokens, int32 [N], and their starts, uint8 [N]."""
        self._tokens += len(tokens)
        _update(self._hashes, tokens, starts)
        tokens, starts = map(np.concatenate, zip(self._left, (tokens, starts), strict=True))
        whole = len(tokens) // self._page_tokens * self._page_tokens
        for first in range(0, whole, self._page_tokens):
            page = slice(first, first + self._page_tokens)
            self._writer.write(encode(tokens[page], starts[page]))
        self._left = (tokens[whole:], starts[whole:])

    def close(self) -> Json:
        """Pads the last page, makes the shard durable and visible, and returns its entry for the
        manifest.
        """
        tokens, starts = self._left
        if len(tokens):
            padding = (0, self._page_tokens - len(tokens))
            self._writer.write(
                encode(np.pad(tokens, padding, constant_values=_PADDING), np.pad(starts, padding))
            )
        self._writer.close()
        written = files.temporary(self._path)
        entry = {
            "tokens": self._tokens,
            "pages": -(-self._tokens // self._page_tokens),
            "bytes": os.path.getsize(written),
            "sha256": file_hash(written),
            "content": _content_hash(self._hashes),
        }
        files.publish(self._path)
        return entry


def _update(hashes: Any, tokens: np.ndarray, starts: np.ndarray) -> None:
    hashes[0].update(tokens.tobytes())
    hashes[1].update(starts.tobytes())


def _content_hash(hashes: Any) -> str:
    return hashlib.sha256(b"".join(part.digest() for part in hashes)).hexdigest()


def file_hash(path: str) -> str:
    """Returns the SHA-256 of a local file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def scan(path: str, entry: Json, page_tokens: int, vocab_size: int) -> Iterator[Page]:
    """Yields the pages of a local shard in order, without the padding, in bounded memory, and
    compares them with the shard's entry in the manifest.

    Raises BadInput with the file, and with the number of the first bad page if there is one. A
    wrong hash is reported after the last page.
    """
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise BadInput(f"{path}: {summary(error)}") from error
    if size != entry["bytes"]:
        raise BadInput(f"{path} has {size} bytes, not {entry['bytes']}")
    hashes = (hashlib.sha256(), hashlib.sha256())
    reader = open_shard(path, entry["pages"])
    for page in range(entry["pages"]):
        tokens, starts = read_page(reader, path, page, page_tokens, vocab_size)
        used = min(page_tokens, entry["tokens"] - page * page_tokens)
        if (tokens[used:] != _PADDING).any() or starts[used:].any():
            raise BadInput(
                f"{path}, page {page}: it has {used} tokens, but the rest is not padding"
            )
        _update(hashes, tokens[:used], starts[:used])
        yield tokens[:used], starts[:used]
    if _content_hash(hashes) != entry["content"]:
        raise BadInput(f"{path}: the tokens or starts do not match their hash in the manifest")
    if file_hash(path) != entry["sha256"]:
        raise BadInput(
            f"{path}: the pages are correct, but the file does not match its hash in the manifest"
        )


def open_shard(path: str, pages: int, file: str | None = None) -> Any:
    """Opens a local shard at `file`, by default `path`; messages name `path`. Raises BadInput
    unless the shard is readable and has `pages` pages.
    """
    # No read-ahead, because pages are read at random.
    reader = array_record_module.ArrayRecordReader(
        file or path, "readahead_buffer_size:0,max_parallelism:0"
    )
    if not reader.ok():
        try:
            reader.read([0])
        except RuntimeError as error:
            raise BadInput(f"{path} is damaged ({summary(error)})") from error
        raise BadInput(f"{path} is damaged, or changed while it was opened")
    # A missing or truncated file may open without an error, as a file without records.
    if (count := reader.num_records()) != pages:
        raise BadInput(f"{path} holds {quantity(count, 'page')}, not the {pages} of the manifest")
    return reader


def read_page(reader: Any, path: str, page: int, page_tokens: int, vocab_size: int) -> Page:
    """Reads a page of a shard by its number. Raises BadInput with the file and the page."""
    try:
        return decode(reader.read([page])[0], page_tokens, vocab_size)
    except RuntimeError as error:
        raise BadInput(f"{path}, page {page} is damaged ({summary(error)})") from error
    except BadInput as error:
        raise BadInput(f"{path}, page {page}: {error}") from error
