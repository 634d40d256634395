"""The shards of a split, read by page: by ArrayRecord from a disk, in exact ranges from a bucket.

ArrayRecord's own client reads one shard after the other. It requests all bytes from a page to the
end of its shard, then closes the connection: 4 MB arrive for a page of 10 kB. Here fsspec fetches
all pages of a batch at the same time, with a request for the exact bytes of each. ArrayRecord reads
them, and checks their hashes, in a sparse file in memory (on Linux).

The index of a shard gives the place of each page; it is read once. An ArrayRecord file consists of
Riegeli's chunks (see its doc/riegeli_records_file_format.md), here one per page. At every 64 KiB it
has a header of 24 bytes, which readers skip:

    pages
    index: place, decoded size and records of each page, compressed
    zeros
    64 KiB with the place of the index
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow

from xlnet_jax.data.corpus.manifest import shard_name
from xlnet_jax.data.corpus.pages import Page, open_shard, read_page
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.storage import files
from xlnet_jax.storage.bucket import Bucket

ADVICE = "copy the corpus again"

# Largest number of open files per split. A process may usually open 1024, and a run may have
# several corpora.
_OPEN_SHARDS = 256
_BLOCK, _BLOCK_HEADER, _CHUNK_HEADER = 1 << 16, 24, 40  # bytes
_INDEX_BYTES = 16  # largest entry of a page in the index
_T = TypeVar("_T")


class Recent(collections.OrderedDict[int, _T]):
    """A cache of the `limit` last used items, by number. Two threads may make the same item, which
    is harmless.
    """

    def __init__(self, limit: int):
        super().__init__()
        self._limit, self._lock = limit, threading.Lock()

    def fetch(self, numbers: set[int], make: Callable[[list[int]], Iterable[_T]]) -> dict[int, _T]:
        """Returns the items with these numbers; `make` makes the missing items from a list of their
        numbers.
        """
        with self._lock:
            things = {number: self[number] for number in numbers if number in self}
        missing = sorted(numbers - things.keys())
        things |= zip(missing, make(missing), strict=True)
        with self._lock:
            for number, thing in things.items():
                self[number] = thing
                self.move_to_end(number)
            while len(self) > self._limit:
                self.popitem(last=False)
        return things


class Shards:
    """Reads pages of the shards of a split; `pages` and `sizes` (bytes) describe each shard. Safe
    to share between threads.
    """

    def __init__(self, path: str, split: str, pages: Sequence[int], sizes: Sequence[int]):
        self._path, self._split, self._pages, self._sizes = path, split, pages, sizes
        storage = files.at(path)
        self._bucket = storage if isinstance(storage, Bucket) else None
        self._open = Recent[_Shard](_OPEN_SHARDS)
        self._file_lock = threading.Lock()
        if self._bucket:
            self._file = os.memfd_create("shard")
            weakref.finalize(self, os.close, self._file)

    def read(
        self, places: Sequence[tuple[int, int]], page_tokens: int, vocab_size: int
    ) -> list[Page]:
        """Reads the pages at `places`: each has the number of a shard and the number of a page in
        that shard.

        Raises BadInput: a shard is missing or damaged. RestartMe: the bucket does not answer.
        """
        shards = self._open.fetch({shard for shard, _ in places}, self._opened)
        fetched = self._fetch(
            (shard, *shards[shard].edges[page : page + 2].tolist()) for shard, page in places
        )
        pages = []
        for (number, page), data in zip(places, fetched, strict=False):
            shard = shards[number]
            with _advised(), contextlib.ExitStack() as opened:
                if data is not None:
                    opened.enter_context(self._only(data, shard.edges[page], shard.size))
                pages.append(read_page(shard.reader, shard.path, page, page_tokens, vocab_size))
        return pages

    def _opened(self, numbers: list[int]) -> Iterator[_Shard]:
        """Opens shards; in a bucket it fetches their last bytes, which hold the index."""
        tails = self._fetch(
            (
                shard,
                max(0, self._sizes[shard] - 2 * _BLOCK - _INDEX_BYTES * self._pages[shard]),
                self._sizes[shard],
            )
            for shard in numbers
        )
        for number, tail in zip(numbers, tails, strict=False):
            path = os.path.join(self._path, shard_name(self._split, number, len(self._pages)))
            pages, size, edges = self._pages[number], self._sizes[number], np.empty(0, np.int64)
            with _advised():
                if tail is None:
                    reader = open_shard(path, pages)
                else:
                    with self._only(tail, size - len(tail), size) as file:
                        reader = open_shard(path, pages, file)
                    try:
                        edges = _edges(tail, size)
                    except (ValueError, OSError) as error:
                        raise BadInput(
                            f"{path} cannot be read from a bucket ({summary(error)})"
                        ) from error
            yield _Shard(path, size, reader, edges)

    @contextlib.contextmanager
    def _only(self, data: bytes, start: int, size: int) -> Iterator[str]:
        """Makes `data` the only bytes of the sparse file that all shards share; yields the file's
        name.
        """
        with self._file_lock:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, size)
            os.pwrite(self._file, data, start)
            yield f"/proc/self/fd/{self._file}"

    def _fetch(self, ranges: Iterable[tuple[int, int, int]]) -> Iterable[bytes | None]:
        """Fetches bytes [start, end) of shards in a bucket, all at the same time; None for each
        range on a disk.
        """
        if not self._bucket:
            return itertools.repeat(None)
        count = len(self._pages)
        named = [
            (shard_name(self._split, shard, count), start, end) for shard, start, end in ranges
        ]
        try:
            return self._bucket.read_ranges(self._path, named)
        except FileNotFoundError as error:
            raise BadInput(f"{error.filename} is missing from its bucket; {ADVICE}") from error


class _Shard(NamedTuple):
    """An open shard: its name, its size in bytes, a reader and, in a bucket, the bytes where each
    page starts and where the last page ends.
    """

    path: str
    size: int
    reader: Any
    edges: np.ndarray


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Adds the remedy to the error of a damaged shard."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{error}; {ADVICE}") from error


def _edges(tail: bytes, size: int) -> np.ndarray:
    """Returns the bytes where each page of a shard starts and where the last page ends, int64
    [pages + 1]. `tail` is the end of the shard; the reader has checked its hashes.

    Raises ValueError for another form of ArrayRecord.
    """
    # After its header the last chunk has five bytes, the tag 8, and a number: the place of the
    # index.
    end, _ = _varint(tail[-_BLOCK + _BLOCK_HEADER + _CHUNK_HEADER + 6 :])
    skipped = range(-end % _BLOCK, size - end, _BLOCK)
    index = tail[len(tail) - (size - end) :]
    index = b"".join(
        [index[: skipped.start], *(index[at + _BLOCK_HEADER : at + _BLOCK] for at in skipped)]
    )
    length = int.from_bytes(index[8:16], "little")
    if index[_CHUNK_HEADER : _CHUNK_HEADER + 1] != b"z":
        raise ValueError("its index is not compressed with Zstandard")
    # The chunk holds the sizes of the records, then the records: the writer's options, then for
    # each page the tag 8 with its place, 16 with its bytes and 24 with its number of records.
    sizes, records = _varint(index[_CHUNK_HEADER + 1 : _CHUNK_HEADER + length])
    options, _ = _varint(_unpacked(records[:sizes]))
    numbers = np.frombuffer(_unpacked(records[sizes:])[options:], np.uint8)
    ends = np.flatnonzero(numbers < 128)
    starts = np.concatenate([[0], ends[:-1] + 1])
    shift = 7 * (np.arange(len(numbers)) - np.repeat(starts, ends + 1 - starts))
    table = np.add.reduceat((numbers & 127).astype(np.int64) << shift, starts).reshape(-1, 6)
    if (table[:, [0, 2, 4, 5]] != (8, 16, 24, 1)).any():
        raise ValueError("a page is not a separate record")
    return np.append(table[:, 1], end)


def _varint(data: bytes) -> tuple[int, bytes]:
    """Returns the number at the start of `data`, seven bits per byte, and the rest of `data`."""
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, data[place + 1 :]
    raise ValueError("it ends too early")


def _unpacked(data: bytes) -> bytes:
    size, packed = _varint(data)
    return pyarrow.decompress(packed, size, "zstd", asbytes=True)
