"""Pages: the records of a corpus's shards.

A page is a tf.Example of `page_tokens` tokens: `tokens` int32, and `starts` uint8 with bit 0 where a sentence starts,
bit 1 where a document does and bit 2 where a paragraph does. Only the last page of a shard is padded. Pages are ArrayRecord records of their own
(`group_size:1`), so any of them is read without its neighbours.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from xlnet_jax import files
from xlnet_jax.data.tokenizer import PAD

SENTENCE_START, DOCUMENT_START, PARAGRAPH_START = 1, 2, 4


def features(page_tokens: int) -> Any:
    """The TFDS features of a page. TFDS is imported here because it takes a second."""
    import tensorflow_datasets as tfds

    # Raw bytes are 25 times faster to write than the default encoding; ArrayRecord compresses them anyway.
    return tfds.features.FeaturesDict(
        {
            "tokens": tfds.features.Tensor(shape=(page_tokens,), dtype=np.int32, encoding="bytes"),
            "starts": tfds.features.Tensor(shape=(page_tokens,), dtype=np.uint8, encoding="bytes"),
        }
    )


class PageWriter:
    """Writes one shard under a temporary name; `close` makes it appear, whole."""

    def __init__(self, path: str, page_tokens: int):
        from tensorflow_datasets.core.example_serializer import ExampleSerializer

        self._path = path
        self._page_tokens = page_tokens
        self._features = features(page_tokens)
        self._serializer = ExampleSerializer(self._features.get_serialized_info())
        self._writer = array_record_module.ArrayRecordWriter(files.temporary(path), "group_size:1")
        self._hashes = (hashlib.sha256(), hashlib.sha256())
        self._left = (np.zeros(0, np.int32), np.zeros(0, np.uint8))
        self._tokens = self._pages = 0

    def write(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        """Appends int32 [N] tokens and their uint8 [N] starts."""
        self._tokens += len(tokens)
        self._hashes[0].update(tokens.tobytes())
        self._hashes[1].update(starts.tobytes())
        tokens, starts = np.concatenate([self._left[0], tokens]), np.concatenate([self._left[1], starts])
        whole = len(tokens) // self._page_tokens * self._page_tokens
        for first in range(0, whole, self._page_tokens):
            page = slice(first, first + self._page_tokens)
            self._write_page(tokens[page], starts[page])
        self._left = (tokens[whole:], starts[whole:])

    def _write_page(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        page = self._features.encode_example({"tokens": tokens, "starts": starts})
        # features.serialize_example would order the two fields differently from process to process.
        self._writer.write(self._serializer.get_tf_example(page).SerializeToString(deterministic=True))
        self._pages += 1

    def close(self) -> dict[str, Any]:
        """Pads the last page, makes the shard durable and visible, and returns its entry in the manifest."""
        tokens, starts = self._left
        if len(tokens):
            padding = (0, self._page_tokens - len(tokens))
            self._write_page(np.pad(tokens, padding, constant_values=PAD), np.pad(starts, padding))
        self._writer.close()
        with open(files.temporary(self._path), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        files.publish(self._path)
        content = hashlib.sha256(b"".join(part.digest() for part in self._hashes)).hexdigest()
        return {"tokens": self._tokens, "pages": self._pages, "bytes": size, "sha256": digest, "content": content}
