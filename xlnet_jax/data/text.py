"""Text files to documents: which files, how they are cut into work units, what a document and a sentence are.

    document   blank_line   a blank line ends a document, and so does the end of a file (the original's rule)
               file         a file is one document
               line         every line is a document
    sentences  line         every line that is not blank is a sentence (the original's rule)
               punctuation  lines are cut further, after sentence-final punctuation

A work unit is a run of parts; a part is a run of bytes of one file that begins and ends between documents. Which unit
holds what depends on the files alone, never on who works on it.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput

LONGEST_DOCUMENT = 256_000_000
"""Bytes. A document is held in memory: whether it is held out depends on all of it."""

DOCUMENT_RULES = ("blank_line", "file", "line")
SENTENCE_RULES = ("line", "punctuation")

_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*")


@dataclasses.dataclass(frozen=True)
class Source:
    """A text file."""

    path: str
    bytes: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True)
class Part:
    """Bytes [start, end) of a file; they begin and end between documents."""

    path: str
    start: int
    end: int


def find_sources(inputs: Sequence[str]) -> list[Source]:
    """The files that `inputs` name, each once, sorted by path.

    Args:
      inputs: files, folders (all `*.txt` below them) and glob patterns (`**` goes any depth).

    Raises:
      BadInput: an input names nothing.
    """
    paths: set[str] = set()
    for name in inputs:
        if os.path.isdir(name):
            found = glob.glob(os.path.join(glob.escape(name), "**", "*.txt"), recursive=True)
            missing = "this folder holds no *.txt file; give a pattern such as 'FOLDER/**/*.text'"
        elif os.path.isfile(name):
            found, missing = [name], ""
        else:
            found, missing = glob.glob(name, recursive=True), "no such file, folder or pattern"
        found = [os.path.abspath(path) for path in found if os.path.isfile(path)]
        if not found:
            raise BadInput(f"input {name}: {missing}")
        paths.update(found)
    if not paths:
        raise BadInput("no input; name text files, folders or patterns")
    stats = {path: os.stat(path) for path in sorted(paths)}
    return [Source(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()]


def plan(sources: Sequence[Source], unit_bytes: int, document: str) -> list[tuple[Part, ...]]:
    """Cuts the sources, in order, into work units of about `unit_bytes`.

    Files larger than that are cut between documents; a file that is one document is never cut.
    """
    units: list[tuple[Part, ...]] = []
    current: list[Part] = []
    size = 0
    for source in sources:
        for part in _parts(source, unit_bytes, document):
            if current and size + part.end - part.start > unit_bytes:
                units.append(tuple(current))
                current, size = [], 0
            current.append(part)
            size += part.end - part.start
    return [*units, tuple(current)] if current else units


def _parts(source: Source, unit_bytes: int, document: str) -> Iterator[Part]:
    start = 0
    if source.bytes > unit_bytes and document != "file":
        with open(source.path, "rb") as file:
            while source.bytes - start > unit_bytes:
                end = _next_document(file, start + unit_bytes, document)
                if end >= source.bytes:
                    break
                yield Part(source.path, start, end)
                start = end
    if source.bytes:
        yield Part(source.path, start, source.bytes)


def _next_document(file: BinaryIO, offset: int, document: str) -> int:
    """Where a document begins that is among the first to begin after byte `offset`; the file's size if none does."""
    file.seek(offset)
    _read_line(file)  # the rest of one
    if document == "line":
        return file.tell()
    while line := _read_line(file):
        if not line.strip():
            break
    return file.tell()


def _read_line(file: BinaryIO) -> bytes:
    line = file.readline(LONGEST_DOCUMENT + 1)
    if len(line) > LONGEST_DOCUMENT:
        place = file.tell() - len(line)
        raise BadInput(f"{file.name}: a line of more than {LONGEST_DOCUMENT} bytes at byte {place}; break it up")
    return line


class TextReader:
    """Reads parts as documents of normalised sentences, and counts what it met on the way.

    Attributes:
      replaced: undecodable bytes or runs of them that were replaced by U+FFFD so far.
      hashes: SHA-256 of the bytes of every part read to its end so far.
    """

    def __init__(self, document: str, sentences: str, normalization: Normalization, errors: str):
        """See the module's docstring; `errors` is `strict` or `replace`: what happens to bytes that are not UTF-8."""
        self.replaced = 0
        self.hashes: list[str] = []
        self._document = document
        self._sentences = sentences
        self._normalization = normalization
        self._errors = errors

    def documents(self, part: Part) -> Iterator[list[str]]:
        """The documents of a part in order, each a list of normalised sentences, at least one.

        Raises:
          BadInput: not UTF-8, not text, shorter than it was, or a document too long to hold in memory.
        """
        sentences: list[str] = []
        size = 0
        for line in self._lines(part):
            blank = not line or line.isspace()
            if not blank:
                sentences.extend(self._split(line))
                size += len(line)
            if sentences and (self._document == "line" or (blank and self._document == "blank_line")):
                yield sentences
                sentences, size = [], 0
            if size > LONGEST_DOCUMENT:
                raise BadInput(
                    f"{part.path}: a document of more than {LONGEST_DOCUMENT} characters by "
                    f"--document={self._document}; use --document=line, or put blank lines between documents"
                )
        if sentences:
            yield sentences

    def _split(self, line: str) -> Iterator[str]:
        pieces = split_sentences(line) if self._sentences == "punctuation" else (line,)
        for piece in pieces:
            if normal := self._normalization(piece):
                yield normal

    def _lines(self, part: Part) -> Iterator[str]:
        digest = hashlib.sha256()
        try:
            with open(part.path, "rb") as file:
                file.seek(part.start)
                offset = part.start
                while offset < part.end:
                    raw = _read_line(file)
                    if not raw:
                        raise BadInput(f"{part.path}: {part.end - offset} bytes shorter than it was; start over")
                    digest.update(raw)
                    text = self._decode(raw, part.path, offset)
                    offset += len(raw)
                    # Old Mac files end their lines with a lone carriage return.
                    yield from text.rstrip("\r\n").split("\r")
        except OSError as error:
            raise BadInput(f"{part.path}: {error.strerror or error}") from error
        self.hashes.append(digest.hexdigest())

    def _decode(self, raw: bytes, path: str, offset: int) -> str:
        if (nul := raw.find(b"\0")) >= 0:
            raise BadInput(f"{path}: a NUL byte at byte {offset + nul}, so it is not UTF-8 text; unpack or convert it")
        # Only the first line of a file may begin with a byte order mark.
        encoding = "utf-8-sig" if offset == 0 else "utf-8"
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            if self._errors == "strict":
                mark = len(raw) - len(error.object)  # the codec may have taken the byte order mark off
                raise BadInput(
                    f"{path}: not UTF-8 at byte {offset + mark + error.start}; convert the file, or go on with "
                    "--errors=replace"
                ) from error
        text = raw.decode(encoding, "replace")
        self.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
        return text


def split_sentences(line: str) -> Iterator[str]:
    """Cuts a line after sentence-final punctuation and what closes a quotation.

    After `. ! ? …` white space must follow and then something that is not a lower-case letter; after `。！？` nothing.
    There is no list of abbreviations: "Mr. Smith" is cut.
    """
    start = 0
    for end in _SENTENCE_END.finditer(line):
        rest = line[end.end() :].lstrip()[:1] if line[end.start()] not in "。！？" else ""
        if not rest.islower():
            yield line[start : end.end()]
            start = end.end()
    if line[start:].strip():
        yield line[start:]
