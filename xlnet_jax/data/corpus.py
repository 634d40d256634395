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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath

from xlnet_jax import files
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


def write_tfds_metadata(path: str, manifest: dict[str, Any]) -> None:
    """Writes what lets TFDS open the folder: `tfds.builder_from_directory(path).as_data_source("train")`."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(path), dataset_name=DATASET_NAME, filetype_suffix="array_record"
    )
    tfds.folder_dataset.write_metadata(
        data_dir=path,
        features=features(manifest["page_tokens"]),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard["pages"] for shard in split["shards"]],
                num_bytes=sum(shard["bytes"] for shard in split["shards"]),
                filename_template=template.replace(split=name),
            )
            for name, split in manifest["splits"].items()
        ],
        version=f"{FORMAT_VERSION}.0.0",
        check_data=False,  # its check needs TensorFlow
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


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest of a finished corpus. Raises BadInput if there is none, or not one of this format."""
    folder = epath.Path(path)
    try:
        if not folder.is_dir():
            raise BadInput(f"corpus {path}: no such folder; make one with `xlnet-jax prepare`")
        if not (folder / MANIFEST).exists():
            if (folder / REQUEST).exists():
                raise BadInput(f"corpus {path} is not finished; give the same `xlnet-jax prepare` again, it goes on")
            raise BadInput(f"{path} is not a corpus: it has no {MANIFEST}; make one with `xlnet-jax prepare`")
        manifest = json.loads((folder / MANIFEST).read_text())
        version = manifest["format_version"]
        if version != FORMAT_VERSION:
            raise BadInput(f"corpus {path} has format {version}, this program reads {FORMAT_VERSION}; prepare it again")
        if content_hash(manifest) != manifest["sha256"]:
            raise BadInput(f"{folder / MANIFEST} was changed: it does not add up to its own sha256; copy it again")
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{folder / MANIFEST} is damaged ({error!r}); copy the corpus again") from error
    except ImportError as error:
        raise BadInput(f"corpus {path}: {error}") from error
    return manifest


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
