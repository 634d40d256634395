"""One work unit of `prepare`: some text in, one shard per split and a note out.

The output depends only on the request, the text and the unit's number. A shard is written on the
local disk, read again, and moved to its place, which may be in a bucket. The note is written last
and means "done". Two processes may safely make the same unit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from xlnet_jax.data import unknown, vocabulary
from xlnet_jax.data.corpus import pages
from xlnet_jax.data.prepare import marks
from xlnet_jax.data.prepare.sources import Unit
from xlnet_jax.data.prepare.text import Document, Request, TextReader
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

Numbered = tuple[int, Unit]
"""The number of a unit, and the unit."""
SPLITS = ("train", "heldout")
FOLDER = "units"
COUNTS = "counts"
"""Suffix of the file with a unit's counts; see `count_unit`."""
COUNTED = ("tokens", "documents", "sentences", "paragraphs")

_REQUESTS = 16  # to a bucket, at the same time
_ENCODE_CHARACTERS = 500_000  # text per call of SentencePiece


def file_name(output: str, index: int, suffix: str) -> str:
    """Returns the path of a file of unit `index` in an unfinished corpus: of its note for suffix
    `json`, of its shard for the name of a split.
    """
    return os.path.join(output, FOLDER, f"{index:05d}.{suffix}")


def file_names(output: str, units: Sequence[Any], suffix: str) -> list[str]:
    """Returns `file_name` of all units."""
    return [file_name(output, index, suffix) for index in range(len(units))]


def in_threads(function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
    """Works as `map`, with many calls at the same time: every request to a bucket costs a round
    trip.
    """
    with ThreadPoolExecutor(_REQUESTS) as threads:
        yield from threads.map(function, *arguments)


class _SplitWriter:
    """Encodes the documents of one split of one unit and writes its shard."""

    def __init__(self, path: str, page_tokens: int, tokenizer: Tokenizer):
        self.path, self._page_tokens, self._tokenizer = path, page_tokens, tokenizer
        self._writer: pages.PageWriter | None = None
        self._waiting: list[Document] = []
        self._characters = 0
        self.counted = Counter[str]()
        self.empty = self.unknown = 0
        self.example = ""
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)
        self.lengths: list[np.ndarray] = []

    def add(self, document: Document) -> None:
        """Takes a document of at least one normalised sentence."""
        self._waiting.append(document)
        self._characters += sum(map(len, itertools.chain.from_iterable(document)))
        if self._characters >= _ENCODE_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        """Writes the waiting documents: D documents, P paragraphs, S sentences of which K have a
        piece, N tokens.
        """
        waiting, self._waiting, self._characters = self._waiting, [], 0
        paragraphs = list(itertools.chain.from_iterable(waiting))
        sentences = list(itertools.chain.from_iterable(paragraphs))
        pieces, length_S = self._tokenizer.encode_normalized(sentences)
        is_unknown_N = pieces == self._tokenizer.special.unk
        self.unknown += int(is_unknown_N.sum())
        if self.unknown and not self.example:
            first = np.searchsorted(np.cumsum(length_S), is_unknown_N.argmax(), "right")
            self.example = unknown.example(self._tokenizer, sentences[first])
        document_P = np.repeat(np.arange(len(waiting)), [len(document) for document in waiting])
        paragraph_S = np.repeat(
            np.arange(len(paragraphs)), [len(paragraph) for paragraph in paragraphs]
        )
        # A sentence of only zero-width characters has no piece and does not count.
        paragraph_K, length_K = paragraph_S[length_S > 0], length_S[length_S > 0]
        document_K = document_P[paragraph_K]
        opens_document_K = np.diff(document_K, prepend=-1) > 0
        opens_paragraph_K = np.diff(paragraph_K, prepend=-1) > 0
        documents = int(opens_document_K.sum())
        self.empty += len(waiting) - documents
        if not documents:
            return
        start_K = np.cumsum(length_K) - length_K
        tokens_N, starts_N = pieces, np.zeros(len(pieces), np.uint8)
        starts_N[start_K] = (
            pages.SENTENCE_START
            + opens_document_K * pages.DOCUMENT_START
            + opens_paragraph_K * pages.PARAGRAPH_START
        )
        ends_D = np.append(start_K[opens_document_K][1:], len(pieces))
        length_D = np.diff(ends_D, prepend=0)
        if (eod := self._tokenizer.special.eod) is not None:
            # EOD ends every document and belongs to the last sentence.
            tokens_N, starts_N = np.insert(pieces, ends_D, eod), np.insert(starts_N, ends_D, 0)
            length_D += 1
        self.counted.update(
            tokens=len(tokens_N),
            documents=documents,
            sentences=len(length_K),
            paragraphs=int(opens_paragraph_K.sum()),
        )
        self.counts += np.bincount(tokens_N, minlength=len(self.counts))
        self.lengths.append(length_D)
        self._writer = self._writer or pages.PageWriter(self.path, self._page_tokens)
        self._writer.write(tokens_N, starts_N)

    def close(self) -> Json | None:
        """Finishes and checks the shard. Returns its entry in the manifest, or None if the split
        has no document in the unit.
        """
        self._flush()
        if not self._writer:
            return None
        entry = self._writer.close()
        for _ in pages.scan(self.path, entry, self._page_tokens, self._tokenizer.vocab_size):
            pass
        return entry


@contextlib.contextmanager
def _located(parts: Unit, request: Request, check: Callable[[list[str]], Any]) -> Iterator[None]:
    """Gives an `Unseen` of the block its file, and the first line or record whose sentences `check`
    refuses. Only a text whose lines are joined may have no such line.
    """
    try:
        yield
    except vocabulary.Unseen as error:
        advice = "correct the text, or prepare with another vocabulary or pattern"
        by_line = dataclasses.replace(request, document="line", unwrap=False, errors="replace")
        reader = TextReader(by_line)
        for part in () if request.dataset else parts:
            for document in reader.documents(part):
                try:
                    check(list(itertools.chain.from_iterable(document)))
                except vocabulary.Unseen as of_line:
                    raise part.bad_line(reader.place, f"{of_line}; {advice}") from error
        where = " to ".join(dict.fromkeys((parts[0].path, parts[-1].path)))
        raise BadInput(f"{where}: {error}; {advice}") from error


def count_unit(output: str, request: Request, unit: Numbered) -> int:
    """Writes the counts of one work unit; returns the number of pieces. Raises BadInput as
    `TextReader.documents`.

    Words are counted only in the training text: a word that occurs only in held-out text becomes
    `<unk>`. Characters, bytes and matches are counted in all text, held out or not, because each
    needs a piece.
    """
    index, parts = unit
    note = file_name(output, index, COUNTS)
    reader, counts, tokens = TextReader(request), Counter[str](), 0
    count = functools.partial(vocabulary.count, level=request.vocabulary, pattern=request.pattern)
    with files.translate_errors(note), _located(parts, request, count):
        for part in parts:
            for document in reader.documents(part):
                of_document = count(itertools.chain.from_iterable(document))
                tokens += of_document.total()
                if request.vocabulary != "words" or request.split_of(document, part) == "train":
                    counts.update(of_document)
        content = {"sources": reader.read, "tokens": tokens, "counts": counts}
        files.write(note, files.to_json(content, indent=None))
    return tokens


def prepare_unit(output: str, tokenizer: Tokenizer, request: Request, unit: Numbered) -> int:
    """Writes the shards of one work unit (one per split that occurs), their token counts and the
    lengths of their documents (int64 [V + documents]), and last the unit's note. Returns the number
    of tokens. Raises BadInput as `TextReader.documents` does, and if a file cannot be written.
    """
    index, parts = unit
    note = file_name(output, index, "json")
    with (
        files.translate_errors(note),
        files.scratch(file_name(output, index, "scratch")) as folder,
        _located(parts, request, tokenizer.encode_normalized),
    ):
        reader = TextReader(request, tokenizer.cleaned)
        writers = {
            name: _SplitWriter(os.path.join(folder, name), request.page_tokens, tokenizer)
            for name in SPLITS
        }
        splits = {}
        for part in parts:
            for document in reader.documents(part):
                writers[request.split_of(document, part)].add(document)
        for split, writer in writers.items():
            if shard := writer.close():
                splits[split] = {**writer.counted, "shard": shard}
                files.rename(writer.path, file_name(output, index, split))
                numbers = np.concatenate([writer.counts, *writer.lengths])
                files.write(file_name(output, index, split + ".npy"), files.array_bytes(numbers))
        content = {
            "tokenizer": tokenizer.sha256,
            "splits": splits,
            "sources": reader.read,
            "replaced": reader.replaced,
            "empty": reader.empty + sum(writer.empty for writer in writers.values()),
            "unknown": sum(writer.unknown for writer in writers.values()),
            "example": max(writer.example for writer in writers.values()),
            "dropped": {name: reader.dropped[name] for name in marks.NAMES},
        }
        files.write(note, files.to_json(content, indent=None))
    return sum(writer.counted["tokens"] for writer in writers.values())
