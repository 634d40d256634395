"""A corpus: tokens on disk in fixed-size pages, read as one long circle.

    <corpus>/manifest.json          the contents and how they were made; written last: its presence means "finished"
             prepare.json           the arguments of `prepare`
             spiece.model           the tokenizer
             token_counts-SPLIT.npy int64 [V]
             corpus-SPLIT.array_record-00000-of-00003 ...   the pages
             dataset_info.json features.json                so that TFDS can open the folder by name

A document is the pieces of its sentences, then one EOD that belongs to the last sentence. A split is the concatenation
of its documents. A shard holds consecutive documents in pages.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from xlnet_jax.data.corpus.manifest import read_manifest
from xlnet_jax.data.corpus.pages import SENTENCE_START, open_shard, read_pages
from xlnet_jax.data.corpus.shard_cache import ShardCache
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

_OPEN_SHARDS = 512  # file handles; the usual limit of a process is 1024
_ADVICE = "copy the corpus again"


class Corpus:
    """One split of a corpus, with random access. Safe to share between threads, and cheap to pickle.

    Attributes:
      path: the folder.
      split: `train` or `heldout`.
      tokens: number of tokens in the split; at least one.
      documents: number of documents in the split.
      sha256: of the content of the whole corpus, all splits; a resumed run requires the same hash.
      tokenizer: the `Tokenizer` the corpus was made with.
      token_counts: int64 [V], how often each piece occurs in the split.
      manifest: the manifest as a dictionary.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        cache_bytes: int = 256_000_000,
        shard_cache: str = "",
        shard_cache_bytes: int | None = None,
    ):
        """Opens a split and checks everything that can be checked without reading the pages.

        Args:
          path: folder written by `prepare`; `gs://` works where `gcsfs` is installed.
          split: `train` or `heldout`.
          cache_bytes: limit for the decoded pages kept in memory, per process.
          shard_cache: folder on the local disk for copies of the shards of a corpus in a bucket; a shard is copied at
            its first read. Empty = read every page from the bucket. A corpus on disk is never copied.
          shard_cache_bytes: limit for that folder; None = until the disk is nearly full. Shards that do not fit are
            read from the bucket.

        Raises:
          BadInput: the corpus is unfinished, damaged or incomplete, has an unknown format, or lacks this split.
          RestartMe: the bucket does not answer.
        """
        self.path = str(path)
        self.split = split
        self.manifest = read_manifest(self.path)
        if split not in self.manifest["splits"]:
            there = ", ".join(self.manifest["splits"])
            raise BadInput(f"corpus {path} has no split {split!r}, only {there}; prepare it with a larger --heldout")
        entry = self.manifest["splits"][split]
        self.tokens: int = entry["tokens"]
        self.documents: int = entry["documents"]
        self.sha256: str = self.manifest["sha256"]
        check_files(self.path, entry["shards"])
        self.tokenizer = read_tokenizer(self.path, self.manifest)
        self.token_counts: np.ndarray = read_counts(self.path, self.manifest, split)
        self._page_tokens: int = self.manifest["page_tokens"]
        self._shards = entry["shards"]
        self._first_token = np.cumsum([0, *(shard["tokens"] for shard in self._shards)]).tolist()
        self._first_page = np.cumsum([0, *(shard["pages"] for shard in self._shards)]).tolist()
        self._cached_pages = max(1, cache_bytes // (self._page_tokens * 5))
        copied = shard_cache and not files.at(self.path).seeks
        self._copies = ShardCache(shard_cache, shard_cache_bytes) if copied else None
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        # Not a method: a corpus that refers to itself would keep its pages until the garbage collector runs.
        opener = functools.partial(_open, self.path, self._shards, self._copies)
        self._reader = functools.lru_cache(_OPEN_SHARDS)(opener)
        self._pages: collections.OrderedDict[int, tuple[np.ndarray, np.ndarray]] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        own_to_the_process = ("_lock", "_reader", "_pages")
        return {name: value for name, value in self.__dict__.items() if name not in own_to_the_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads runs of tokens; the split is a circle, so any start is valid.

        Args:
          starts: int64 [B], any integers, taken modulo the number of tokens.
          length: tokens per run; may exceed the length of the split.

        Returns:
          tokens int32 [B, length], and bool [B, length]: whether a sentence starts there.

        Raises:
          BadInput: a shard is damaged.
        """
        tokens, flags = self.read_flags(starts, length)
        return tokens, (flags & SENTENCE_START).astype(bool)

    def read_flags(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Like `read`, but returns all flags of `pages`, uint8 [B, length]."""
        runs = list(self._runs(np.asarray(starts, np.int64) % self.tokens, length))
        pages = self._load({run[2] for run in runs})
        tokens = np.empty((len(starts), length), np.int32)
        flags = np.empty((len(starts), length), np.uint8)
        for row, column, page, offset, count in runs:
            page_tokens, page_starts = pages[page]
            tokens[row, column : column + count] = page_tokens[offset : offset + count]
            flags[row, column : column + count] = page_starts[offset : offset + count]
        return tokens, flags

    def _runs(self, starts: np.ndarray, length: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Cuts every row at page boundaries: (row, column, page, offset in the page, count)."""
        for row, position in enumerate(starts.tolist()):
            column = 0
            while column < length:
                shard = bisect.bisect_right(self._first_token, position) - 1
                page, offset = divmod(position - self._first_token[shard], self._page_tokens)
                left_in_shard = self._first_token[shard + 1] - position
                count = min(length - column, self._page_tokens - offset, left_in_shard)
                yield row, column, self._first_page[shard] + page, offset, count
                column += count
                position = (position + count) % self.tokens

    def _load(self, wanted: set[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The wanted pages by number, from the cache or from disk. Two threads may read the same page: harmless."""
        with self._lock:
            pages = {page: self._pages[page] for page in wanted if page in self._pages}
            for page in pages:
                self._pages.move_to_end(page)
        missing: dict[int, list[int]] = collections.defaultdict(list)
        for page in sorted(wanted - pages.keys()):
            missing[bisect.bisect_right(self._first_page, page) - 1].append(page)
        for shard, numbers in missing.items():
            pages.update(zip(numbers, self._read_pages(shard, numbers), strict=True))
        with self._lock:
            for numbers in missing.values():
                self._pages.update((page, pages[page]) for page in numbers)
            while len(self._pages) > self._cached_pages:
                self._pages.popitem(last=False)
        return pages

    def _read_pages(self, shard: int, numbers: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        in_shard = [page - self._first_page[shard] for page in numbers]
        file, reader = self._reader(shard)
        with _advised():
            return read_pages(reader, file, in_shard, self._page_tokens, self.tokenizer.vocab_size)


def _open(path: str, shards: list[dict[str, Any]], copies: ShardCache | None, shard: int) -> tuple[str, Any]:
    """The file of a shard (the original or its copy) and its reader."""
    entry = shards[shard]
    file = os.path.join(path, entry["file"])
    if copies:
        file = copies.get(file, entry)
    with _advised():
        return file, open_shard(file, entry["pages"])


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Adds the remedy to the error of a damaged shard."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{error}; {_ADVICE}") from error


def check_files(path: str, shards: list[dict[str, Any]]) -> None:
    """Checks that every shard exists and has the recorded size. Raises BadInput."""
    sizes = files.listing(path)
    for shard in shards:
        file, size = os.path.join(path, shard["file"]), sizes.get(shard["file"])
        if size is None:
            raise BadInput(f"{file} is missing; {_ADVICE}")
        if size != shard["bytes"]:
            raise BadInput(f"{file} has {size} bytes, not {shard['bytes']}; {_ADVICE}")


def read_tokenizer(path: str, manifest: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a corpus. Raises BadInput if the corpus was made with another one."""
    entry = manifest["tokenizer"]
    file = os.path.join(path, entry["file"])
    tokenizer = Tokenizer(file, Normalization(**manifest["normalization"]))
    if tokenizer.sha256 != entry["sha256"]:
        raise BadInput(f"{file} is not the tokenizer that this corpus was made with; {_ADVICE}")
    if tokenizer.vocab_size != entry["vocab_size"]:
        raise BadInput(f"{file} has {tokenizer.vocab_size} pieces, the manifest says {entry['vocab_size']}; {_ADVICE}")
    return tokenizer


def read_counts(path: str, manifest: dict[str, Any], split: str) -> np.ndarray:
    """How often each piece occurs in a split, int64 [V]. Raises BadInput."""
    entry, vocab_size = manifest["splits"][split], manifest["tokenizer"]["vocab_size"]
    file = os.path.join(path, entry["token_counts"])
    try:
        data = files.read(file)
    except OSError as error:
        raise BadInput(f"{file} is missing or cannot be read; {_ADVICE}") from error
    if entry["token_counts_sha256"] not in (None, hashlib.sha256(data).hexdigest()):
        raise BadInput(f"{file} does not match its hash in the manifest; {_ADVICE}")
    # Compared with the bytes that numpy writes: `np.load` accepts far more than this one form.
    empty = files.array_bytes(np.zeros(vocab_size, np.int64))
    if len(data) != len(empty) or not data.startswith(empty[: -8 * vocab_size]):
        raise BadInput(f"{file} is damaged: it is not an int64 array of {vocab_size} counts; {_ADVICE}")
    counts = np.frombuffer(data, "<i8", vocab_size, len(data) - 8 * vocab_size).copy()
    if counts.min() < 0 or counts.sum() != entry["tokens"]:
        raise BadInput(f"{file} does not add up to the {entry['tokens']} tokens of {split}; {_ADVICE}")
    return counts
