"""One work unit of `prepare`: some text in, one shard per split and a note out.

Pure: what is written depends on the request, the text and the unit's number alone. Files appear whole or not at all and
the note comes last, so that it means "done". Two processes on the same unit do no harm.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import multiprocessing.connection
import os
import threading
from typing import Any

import numpy as np

from xlnet_jax import files
from xlnet_jax.data import pages, text
from xlnet_jax.data.tokenizer import EOD, Normalization, Tokenizer

SPLITS = ("train", "heldout")
FOLDER = "units"

_ENCODE_CHARACTERS = 500_000  # text per call of SentencePiece


@dataclasses.dataclass(frozen=True)
class Request:
    """All that the corpus depends on besides the text and the tokenizer's training."""

    document: str
    sentences: str
    normalization: Normalization
    heldout: float
    errors: str
    page_tokens: int

    def reader(self) -> text.TextReader:
        """A fresh reader by this request's rules."""
        return text.TextReader(self.document, self.sentences, self.normalization, self.errors)

    def held_out(self, sentences: list[str]) -> bool:
        """By the normalised text alone: equal documents fall on the same side, wherever they stand."""
        digest = hashlib.sha256("\n".join(sentences).encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.heldout * 2**64


def file_name(output: str, index: int, suffix: str) -> str:
    """A file of unit `index` while the corpus is in the making: `json` is its note, a split's name its shard."""
    return os.path.join(output, FOLDER, f"{index:05d}.{suffix}")


def die_with_parent() -> None:
    """Ends this worker process when the one that started it is killed; it would wait for work for ever."""

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


class _SplitWriter:
    """Encodes the documents of one split of one unit and writes its shard."""

    def __init__(self, path: str, page_tokens: int, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._path, self._page_tokens = path, page_tokens
        self._writer: pages.PageWriter | None = None
        self._waiting: list[list[str]] = []
        self._characters = 0
        self.documents = self.sentences = 0
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)

    def add(self, document: list[str]) -> None:
        """Takes a document: its normalised sentences, at least one."""
        self._waiting.append(document)
        self._characters += sum(map(len, document))
        if self._characters >= _ENCODE_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        encoded = iter(self._tokenizer.encode([sentence for document in self._waiting for sentence in document]))
        runs: list[np.ndarray] = []
        sentence_starts, document_starts = [], []
        position = 0
        for document in self._waiting:
            # A sentence may leave no piece (zero-width characters only); then it is none.
            pieces = [ids for ids in itertools.islice(encoded, len(document)) if len(ids)]
            if not pieces:
                continue
            document_starts.append(position)
            for ids in pieces:
                sentence_starts.append(position)
                position += len(ids)
            # EOD starts no sentence: it belongs to the last one.
            runs += [*pieces, np.array([EOD], np.int32)]
            position += 1
        self._waiting, self._characters = [], 0
        if not runs:
            return
        tokens, starts = np.concatenate(runs), np.zeros(position, np.uint8)
        starts[sentence_starts] |= pages.SENTENCE_START
        starts[document_starts] |= pages.DOCUMENT_START
        self.documents += len(document_starts)
        self.sentences += len(sentence_starts)
        self.counts += np.bincount(tokens, minlength=len(self.counts))
        self._writer = self._writer or pages.PageWriter(self._path, self._page_tokens)
        self._writer.write(tokens, starts)

    def close(self) -> dict[str, Any] | None:
        """The shard's entry in the manifest, or None where the split has no document here."""
        self._flush()
        return self._writer.close() if self._writer else None


def prepare_unit(output: str, index: int, parts: tuple[text.Part, ...], tokenizer: Tokenizer, request: Request) -> int:
    """Writes the shards of one work unit (one per split that occurs), their token counts, and last the unit's note.

    Returns the number of tokens. Raises BadInput as `TextReader.documents` does.
    """
    reader = request.reader()
    writers = {split: _SplitWriter(file_name(output, index, split), request.page_tokens, tokenizer) for split in SPLITS}
    for part in parts:
        for document in reader.documents(part):
            writers["heldout" if request.held_out(document) else "train"].add(document)
    splits = {}
    for split, writer in writers.items():
        if shard := writer.close():
            splits[split] = {"documents": writer.documents, "sentences": writer.sentences, "shard": shard}
            files.write_array(file_name(output, index, split + ".npy"), writer.counts)
    sources = [
        {**dataclasses.asdict(part), "sha256": digest} for part, digest in zip(parts, reader.hashes, strict=True)
    ]
    note = {"splits": splits, "sources": sources, "replaced": reader.replaced}
    files.write(file_name(output, index, "json"), files.to_json(note))
    return sum(entry["shard"]["tokens"] for entry in splits.values())
