"""A corpus: tokens on disk in fixed-size pages, read as one long circle.

    <corpus>/manifest.json          what is here and how it was made; written last, so that it means "finished"
             prepare.json           the request it answers
             spiece.model           the tokenizer
             token_counts-SPLIT.npy int64 [V]
             corpus-SPLIT.array_record-00000-of-00003 ...   the pages
             dataset_info.json features.json                so that TFDS reads it by the folder's name

A document is the pieces of its sentences, then one EOD that belongs to the last sentence. A split is the documents one
after the other. A shard holds a run of them in pages.
"""

from __future__ import annotations

import bisect
import collections
import io
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath

from xlnet_jax.data.manifest import MANIFEST, read_manifest
from xlnet_jax.data.pages import SENTENCE_START, features
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput

_OPEN_SHARDS = 512  # file handles; the usual limit of a process is 1024


class Corpus:
    """One split of a corpus, read at random. Safe to share between threads, and cheap to pickle.

    Attributes:
      path: the folder.
      split: `train` or `heldout`.
      tokens: number of tokens in the split; at least one.
      documents: number of documents in the split.
      sha256: of the content of the whole corpus, all splits; a resumed run must find the same.
      tokenizer: the `Tokenizer` the corpus was made with.
      token_counts: int64 [V], how often each piece occurs in the split.
      manifest: the manifest as a dictionary.
    """

    def __init__(self, path: str, split: str = "train", cache_bytes: int = 256_000_000):
        """Opens a split and checks what can be checked without reading it.

        Args:
          path: folder written by `prepare`; `gs://` works where `gcsfs` is installed.
          split: `train` or `heldout`.
          cache_bytes: bound on the decoded pages kept in memory, per process.

        Raises:
          BadInput: not a finished corpus, of another format, damaged or incomplete, or without this split.
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
        if self.tokens != sum(shard["tokens"] for shard in entry["shards"]):
            raise BadInput(
                f"{path}/{MANIFEST}: split {split} says {self.tokens} tokens, its shards hold another number; "
                "restore the file, or prepare the corpus again"
            )
        self.sha256: str = self.manifest["sha256"]
        _check_files(self.path, entry["shards"])
        model = os.path.join(self.path, self.manifest["tokenizer"]["file"])
        self.tokenizer = Tokenizer(model, Normalization(**self.manifest["normalization"]))
        if self.tokenizer.sha256 != self.manifest["tokenizer"]["sha256"]:
            raise BadInput(f"{model}: not the tokenizer this corpus was made with; copy the corpus again")
        self.token_counts: np.ndarray = _read_counts(os.path.join(self.path, entry["token_counts"]))
        self._page_tokens: int = self.manifest["page_tokens"]
        self._shards = entry["shards"]
        self._first_token = np.cumsum([0, *(shard["tokens"] for shard in self._shards)]).tolist()
        self._first_page = np.cumsum([0, *(shard["pages"] for shard in self._shards)]).tolist()
        self._cached_pages = max(1, cache_bytes // (self._page_tokens * 5))
        self._start()

    def _start(self) -> None:
        # Made here, not on first use: importing TFDS in several reader threads at once can deadlock.
        self._features: Any = features(self._page_tokens)
        self._lock = threading.Lock()
        self._readers: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._pages: collections.OrderedDict[int, tuple[np.ndarray, np.ndarray]] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        own_to_the_process = ("_features", "_lock", "_readers", "_pages")
        return {name: value for name, value in self.__dict__.items() if name not in own_to_the_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads runs of tokens; the split is a circle, so any start is good.

        Args:
          starts: int64 [B], any integers, taken modulo the number of tokens.
          length: tokens of a run; it may be longer than the split.

        Returns:
          tokens int32 [B, length], and bool [B, length]: whether a sentence starts there.

        Raises:
          BadInput: a shard is damaged.
        """
        runs = list(self._runs(np.asarray(starts, np.int64) % self.tokens, length))
        pages = self._load({run[2] for run in runs})
        tokens = np.empty((len(starts), length), np.int32)
        flags = np.empty((len(starts), length), np.uint8)
        for row, column, page, offset, count in runs:
            page_tokens, page_starts = pages[page]
            tokens[row, column : column + count] = page_tokens[offset : offset + count]
            flags[row, column : column + count] = page_starts[offset : offset + count]
        return tokens, (flags & SENTENCE_START).astype(bool)

    def _runs(self, starts: np.ndarray, length: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Cuts every row where a page ends: (row, column, page, offset in the page, count)."""
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
        """The wanted pages by number, from the cache or from disk. Two threads may read the same page; no harm."""
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
        file = os.path.join(self.path, self._shards[shard]["file"])
        try:
            records = self._reader(shard, file).read([page - self._first_page[shard] for page in numbers])
        except RuntimeError as error:
            raise BadInput(f"{file} is damaged ({' '.join(str(error).split())}); copy the corpus again") from error
        examples = [self._features.deserialize_example_np(record) for record in records]
        return [(example["tokens"], example["starts"]) for example in examples]

    def _reader(self, shard: int, file: str) -> Any:
        with self._lock:
            if shard in self._readers:
                self._readers.move_to_end(shard)
                return self._readers[shard]
        # Not under the lock: in a bucket this takes a while. Pages are read one by one, so no reading ahead.
        reader = array_record_module.ArrayRecordReader(file, "readahead_buffer_size:0")
        found, expected = reader.num_records(), self._shards[shard]["pages"]
        # A missing or cut file opens without complaint, and empty.
        if found != expected:
            raise BadInput(f"{file} holds {found} pages, not the {expected} of the manifest; copy the corpus again")
        with self._lock:
            self._readers[shard] = reader
            if len(self._readers) > _OPEN_SHARDS:
                # Not closed here: another thread may be reading. The last reference closes it.
                self._readers.popitem(last=False)
        return reader


def _check_files(path: str, shards: list[dict[str, Any]]) -> None:
    def check(shard: dict[str, Any]) -> str:
        file = epath.Path(path) / shard["file"]
        if not file.exists():
            return f"{file} is missing; copy the corpus again"
        size = file.stat().length
        return "" if size == shard["bytes"] else f"{file} has {size} bytes, not {shard['bytes']}; copy the corpus again"

    # In a bucket every look costs a round trip, so many at a time.
    with ThreadPoolExecutor(16) as threads:
        for problem in threads.map(check, shards):
            if problem:
                raise BadInput(problem)


def _read_counts(file: str) -> np.ndarray:
    try:
        return np.load(io.BytesIO(epath.Path(file).read_bytes()))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} is missing or damaged; copy the corpus again") from error
