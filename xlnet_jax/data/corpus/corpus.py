"""A corpus: tokens on disk in fixed-size pages, read as a circle: after the end comes the start.

    <corpus>/manifest.json          the contents and how they were made; written last: its presence
                                    means "finished"
             prepare.json           the arguments of `prepare`
             spiece.model           the tokenizer, or tokenizer.json, or a counted vocabulary.json
             token_counts-SPLIT.npy int64 [V]
             document_lengths-SPLIT.npy int32 [documents]; older corpora have none
             corpus-SPLIT.array_record-00000-of-00003 ...   the pages
             dataset_info.json features.json                so that TFDS can open the folder by name

A document is the pieces of its sentences, then, if the vocabulary has EOD, one EOD, which belongs
to the last sentence. A split is the concatenation of its documents. A shard holds consecutive
documents in pages.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from xlnet_jax.data.corpus.manifest import array_name, little_heldout, open_folder
from xlnet_jax.data.corpus.pages import SENTENCE_START, Page
from xlnet_jax.data.corpus.shards import ADVICE, Recent, Shards
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.data.vocabulary import open_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

# Attributes that are not pickled: worker processes do not need the manifest, the listing and the
# lengths, which may have 100 MB each.
_PER_PROCESS = ("manifest", "listing", "lengths", "_shards", "_pages")


class Corpus:
    """One split of a corpus, with random access. Safe to share between threads, and cheap to
    pickle.

    Attributes:
      tokens, documents: number of tokens (at least one) and of documents in the split.
      sha256: hash of the content of all splits; a resumed run requires the same hash.
      token_counts: int64 [V], how often each piece occurs in the split.
      manifest, listing: the manifest, and the size of each file in the folder by name, in
        bytes; a pickled corpus lacks both, and `lengths`.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        cache_bytes: int = 256_000_000,
        opened: Corpus | None = None,
    ):
        """Opens a split and checks everything that can be checked without reading the pages.

        Args:
          split: `train` or `heldout`.
          cache_bytes: limit for the decoded pages kept in memory, per process.
          opened: another open split of the same folder; its manifest, tokenizer and listing are
            reused.

        Raises BadInput: the corpus is unfinished, damaged or incomplete, has an unknown format, or
        lacks this split. RestartMe: the bucket does not answer.
        """
        self.path = str(path)
        self.split = split
        self.manifest, self.listing = (
            (opened.manifest, opened.listing) if opened else open_folder(self.path)
        )
        if split not in self.manifest["splits"]:
            splits = ", ".join(self.manifest["splits"])
            advice = little_heldout(self.manifest) if split == "heldout" else "use one of these"
            raise BadInput(f"corpus {path} has no split {split!r}, only {splits}; {advice}")
        entry = self.manifest["splits"][split]
        self.tokens: int = entry["tokens"]
        self.documents: int = entry["documents"]
        self.sha256: str = self.manifest["sha256"]
        for shard in entry["shards"]:
            file, size = os.path.join(self.path, shard["file"]), self.listing.get(shard["file"])
            if size is None:
                raise BadInput(f"{file} is missing; {ADVICE}")
            if size != shard["bytes"]:
                raise BadInput(f"{file} has {size} bytes, not {shard['bytes']}; {ADVICE}")
        self.tokenizer = opened.tokenizer if opened else read_tokenizer(self.path, self.manifest)
        self.token_counts: np.ndarray = read_counts(self.path, self.manifest, split)
        self._page_tokens: int = self.manifest["page_tokens"]
        self._shard_bytes, *sizes = (
            [shard[size] for shard in entry["shards"]] for size in ("bytes", "tokens", "pages")
        )
        self._first_token, self._first_page = (np.cumsum([0, *size]).tolist() for size in sizes)
        self._cached_pages = max(1, cache_bytes // (self._page_tokens * 5))
        self._start()

    def _start(self) -> None:
        self._shards = Shards(
            self.path, self.split, np.diff(self._first_page).tolist(), self._shard_bytes
        )
        self._pages = Recent[Page](self._cached_pages)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _PER_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each document of the split, its EOD included, int32 [documents].

        Raises BadInput: the corpus has none, or they are damaged.
        """
        lengths = read_lengths(self.path, self.manifest, self.split)
        if lengths is None:
            raise BadInput(
                f"corpus {self.path} has no lengths of documents, which data.documents=whole "
                "needs; prepare it again with another --output"
            )
        return lengths

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads runs of tokens; the split is a circle, so any start int64 [B] and any length are
        valid.

        Returns tokens int32 [B, length], and bool [B, length]: whether a sentence starts there.
        Raises BadInput if a shard is damaged, RestartMe if the bucket does not answer.
        """
        tokens, flags = self.read_flags(starts, length)
        return tokens, (flags & SENTENCE_START).astype(bool)

    def read_flags(self, starts: np.ndarray, length: int) -> Page:
        """Like `read`, but returns all flags of `pages`, uint8 [B, length]."""
        runs = list(self._runs(np.asarray(starts, np.int64) % self.tokens, length))
        pages = self._pages.fetch({run[2] for run in runs}, self._read_pages)
        tokens = np.empty((len(starts), length), np.int32)
        flags = np.empty((len(starts), length), np.uint8)
        for row, column, page, offset, count in runs:
            for array, part in zip((tokens, flags), pages[page], strict=True):
                array[row, column : column + count] = part[offset : offset + count]
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

    def _read_pages(self, numbers: list[int]) -> list[Page]:
        places = []
        for page in numbers:
            shard = bisect.bisect_right(self._first_page, page) - 1
            places.append((shard, page - self._first_page[shard]))
        return self._shards.read(places, self._page_tokens, self.tokenizer.vocab_size)


def read_tokenizer(path: str, manifest: Json) -> Tokenizer:
    """Opens the tokenizer of a corpus. Raises BadInput if another tokenizer made the corpus."""
    entry = manifest["tokenizer"]
    file = os.path.join(path, entry["file"])
    tokenizer = open_tokenizer(file, Normalization(**manifest["normalization"]))
    if tokenizer.sha256 != entry["sha256"]:
        raise BadInput(f"{file} is not the tokenizer that this corpus was made with; {ADVICE}")
    if tokenizer.vocab_size != entry["vocab_size"]:
        raise BadInput(
            f"{file} has {tokenizer.vocab_size} pieces, "
            f"the manifest says {entry['vocab_size']}; {ADVICE}"
        )
    return tokenizer


def read_counts(path: str, manifest: Json, split: str) -> np.ndarray:
    """Reads how often each piece occurs in a split, int64 [V]. Raises BadInput."""
    length = manifest["tokenizer"]["vocab_size"]
    return _read_array(path, manifest, split, "token_counts", length, np.int64)


def read_lengths(path: str, manifest: Json, split: str) -> np.ndarray | None:
    """Reads the number of tokens of each document of a split, int32 [documents]; None if an older
    version made the corpus. Raises BadInput.
    """
    entry = manifest["splits"][split]
    if "document_lengths_sha256" not in entry:
        return None
    return _read_array(path, manifest, split, "document_lengths", entry["documents"], np.int32)


def _read_array(
    path: str, manifest: Json, split: str, kind: str, length: int, dtype: type
) -> np.ndarray:
    """Reads an array of a split, whose sum is the number of its tokens. Raises BadInput."""
    entry, file = manifest["splits"][split], os.path.join(path, array_name(kind, split))
    tokens = entry["tokens"]
    try:
        data = files.read(file)
    except OSError as error:
        raise BadInput(f"{file} is missing or cannot be read; {ADVICE}") from error
    if entry[f"{kind}_sha256"] != hashlib.sha256(data).hexdigest():
        raise BadInput(f"{file} does not match its hash in the manifest; {ADVICE}")
    try:
        numbers = files.numbers_of(data, length, dtype)
    except ValueError as error:
        raise BadInput(f"{file} is damaged ({error}); {ADVICE}") from error
    if numbers.min() < 0 or numbers.sum() != tokens:
        raise BadInput(f"{file} does not add up to the {tokens} tokens of its split; {ADVICE}")
    return numbers
