"""A corpus: tokens on disk in fixed-size pages, read as one long circle.

    <corpus>/manifest.json          what is here and how it was made; written last, so that it means "finished"
             prepare.json           the request it answers
             spiece.model           the tokenizer
             token_counts-SPLIT.npy int64 [V]
             corpus-SPLIT.array_record-00000-of-00003 ...   the pages
             dataset_info.json features.json                so that TFDS reads it by the folder's name

A document is the pieces of its sentences, then one EOD that belongs to the last sentence. A split is the documents one
after the other. A shard holds a run of them in pages of `page_tokens` tokens; only its last page is padded. A page is a
tf.Example with `tokens` int32 and `starts` uint8 (bit 0: a sentence starts here, bit 1: a document does). Pages are
records of their own (`group_size:1`), so any of them is read without its neighbours.
"""

from __future__ import annotations

import bisect
import collections
import hashlib
import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_record.python import array_record_module
from etils import epath

from xlnet_jax.data.tokenizer import PAD, Normalization, Tokenizer
from xlnet_jax.errors import BadInput

FORMAT_VERSION = 1
DATASET_NAME = "corpus"
MANIFEST = "manifest.json"
REQUEST = "prepare.json"
TOKENIZER = "spiece.model"
SENTENCE_START, DOCUMENT_START = 1, 2

_OPEN_SHARDS = 512  # file handles; the usual limit of a process is 1024


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


def shard_name(split: str, index: int, count: int) -> str:
    """File name of a shard, by the template of TFDS."""
    return f"{DATASET_NAME}-{split}.array_record-{index:05d}-of-{count:05d}"


def counts_name(split: str) -> str:
    """File name of the token counts of a split."""
    return f"token_counts-{split}.npy"


def content_hash(manifest: dict[str, Any]) -> str:
    """SHA-256 of what is read from a corpus: the vocabulary, and the tokens and starts of every shard in order.

    It does not depend on the page size, on compression, or on where the corpus lies.
    """
    content = [manifest["tokenizer"]["sha256"]]
    content += [[name, [shard["content"] for shard in split["shards"]]] for name, split in manifest["splits"].items()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class PageWriter:
    """Writes one shard under a temporary name; `close` makes it appear, whole."""

    def __init__(self, path: str, page_tokens: int):
        self._path = path
        self._page_tokens = page_tokens
        self._features = features(page_tokens)
        self._writer = array_record_module.ArrayRecordWriter(path + ".tmp", "group_size:1")
        self._content = hashlib.sha256()
        self._left = (np.zeros(0, np.int32), np.zeros(0, np.uint8))
        self._tokens = self._pages = 0

    def write(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        """Appends int32 [N] tokens and their uint8 [N] starts."""
        self._tokens += len(tokens)
        for token, start in zip(tokens.astype("<i4"), starts, strict=True) if len(tokens) < 0 else ():
            self._content.update(token.tobytes() + start.tobytes())
        tokens, starts = np.concatenate([self._left[0], tokens]), np.concatenate([self._left[1], starts])
        whole = len(tokens) // self._page_tokens * self._page_tokens
        for first in range(0, whole, self._page_tokens):
            page = slice(first, first + self._page_tokens)
            self._write_page(tokens[page], starts[page])
        self._left = (tokens[whole:], starts[whole:])
