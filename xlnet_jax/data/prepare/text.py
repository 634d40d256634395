"""Text to documents: what a document, a paragraph and a sentence are.

    document   blank_line   a blank line ends a document, and so does the end of a file (the original's rule)
               file         a file is one document
               line         every line is a document
    sentences  line         every line that is not blank is a sentence (the original's rule)
               punctuation  lines are cut further, after sentence-final punctuation

A record of JSON-lines, Parquet or TFDS is a document, whatever the rule says. Inside a document a blank line ends a
paragraph.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from xlnet_jax.data.prepare import marks, sources, tfds
from xlnet_jax.data.prepare.sources import Part
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput

Document = list[list[str]]
"""Paragraphs, each a list of normalised sentences; neither is ever empty."""

LONGEST_DOCUMENT = 256_000_000
"""Characters. A document is held in memory: whether it is held out depends on all of it."""

DOCUMENT_RULES = ("blank_line", "file", "line")
SENTENCE_RULES = ("line", "punctuation")

# A charset at the front and nothing that is tried twice: otherwise scanning takes ten times as long, and a row of dots
# quadratic time.
_SENTENCE_END = re.compile(
    r"[.!?…。！？](?:(?<=[。！？])[。！？]*+[」』”’）]*+"
    r"|(?<=[.!?…])(?<![.!?…][.!?…])[.!?…]*+[\"'”’»)\]]*+(?=\s))"
)
_ASCII_SENTENCE_END = re.compile(r"[.!?](?<![.!?][.!?])[.!?]*+[\"')\]]*+ (?![a-z])")
_VISIBLE = re.compile(r"\S")
_ASCII_SPACES = "\t\v\f\x1c\x1d\x1e\x1f"
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")  # NUL, and what JSON may hold but UTF-8 cannot

# Between a chunk and its documents text is one string, because work on long strings costs least: lines end with
# "\n" and the normalised sentences of a line with "\r", except for the last. A line that is not blank and of which
# nothing is left is "\r".


class TextReader:
    """Reads parts as documents of normalised sentences, and counts what it met on the way.

    Attributes:
      replaced: undecodable bytes or runs of them that were replaced by U+FFFD so far.
      empty: documents without a sentence that were left out so far.
      dropped: what normalisation dropped so far.
      hashes: SHA-256 of every part read to its end so far: of its bytes (decompressed), or of its records.
    """

    def __init__(self, document: str, sentences: str, normalization: Normalization, errors: str, field: str = "text"):
        """Sets the rules.

        Args:
          document: see the module's docstring.
          sentences: see the module's docstring.
          normalization: applied to every sentence.
          errors: bytes that are not UTF-8, and documents without a sentence: `strict` refuses both, `replace` puts
            U+FFFD and leaves out.
          field: of a record, the one that holds the text.
        """
        self.replaced = 0
        self.empty = 0
        self.dropped = marks.Counts()
        self.hashes: list[str] = []
        self._document = document
        self._sentences = sentences
        self._normalization = normalization
        self._errors = errors
        self._field = field
        self._without_spaces = dataclasses.replace(normalization, remove_space=False)

    def documents(self, part: Part) -> Iterator[Document]:
        """The documents of a part in order, each with at least one sentence.

        Raises:
          BadInput: not UTF-8, not text, empty, damaged, shorter than it was, or too long to hold in memory.
          RestartMe: the bucket does not answer.
        """
        digest = hashlib.sha256()
        read = {"text": self._text_documents, "json": self._json_documents}
        yield from read.get(sources.kind_of(part.path).format, self._record_documents)(part, digest)
        self.hashes.append(digest.hexdigest())

    def digest(self, part: Part) -> str:
        """The hash that `documents` adds to `hashes`, without a look at the text. Raises as `documents` does."""
        digest = hashlib.sha256()
        if sources.kind_of(part.path).format in ("text", "json"):
            for block in sources.blocks(part):
                digest.update(block)
        else:
            for _, value in sources.records(part, self._field):
                _add_record(digest, value)
        return digest.hexdigest()

    def _text_documents(self, part: Part, digest: Any) -> Iterator[Document]:
        if self._document == "line":
            for offset, raw, text in self._chunks(part, digest):
                for number, line in enumerate(text.split("\n")):
                    if sentences := _sentences_of(line):
                        yield [sentences]
                    elif line:
                        self._leave_out(part, offset + _line_start(raw, number))
            return
        paragraphs = self._paragraphs(part, digest)
        if self._document == "blank_line":
            for sentences, begin in paragraphs:
                if sentences:
                    yield [sentences]
                else:
                    self._leave_out(part, begin)
        elif document := [sentences for sentences, _ in paragraphs if sentences]:
            yield document
        else:
            self._leave_out(part, part.start)

    def _paragraphs(self, part: Part, digest: Any) -> Iterator[tuple[list[str], int]]:
        """What stands between blank lines: its sentences, and if there is none where it begins."""
        sentences: list[str] = []  # of a paragraph that may go on in the next chunk
        begin: int | None = None
        size = 0
        for offset, raw, text in self._chunks(part, digest):
            position = 0
            for block in text.split("\n\n"):
                # A blank line before this block: only the first of a chunk may have none.
                if (position or block.startswith("\n")) and (sentences or begin is not None):
                    yield sentences, begin or 0
                    sentences, begin = [], None
                    size = size if self._document == "file" else 0
                sentences += _sentences_of(block)
                if not sentences and begin is None and (visible := block.lstrip("\n")):
                    number = text.count("\n", 0, position + len(block) - len(visible))
                    begin = offset + _line_start(raw, number)
                size += len(block)
                position += len(block) + 2
                if size > LONGEST_DOCUMENT:
                    raise BadInput(
                        f"{part.path}: a document of more than {LONGEST_DOCUMENT} characters by "
                        f"--document={self._document}; use --document=line, or put blank lines between documents"
                    )
        if sentences or begin is not None:
            yield sentences, begin or 0

    def _chunks(self, part: Part, digest: Any) -> Iterator[tuple[int, bytes, str]]:
        """Runs of whole lines: offset, bytes, and normalised text."""
        for offset, raw in sources.lines(part):
            digest.update(raw)
            yield offset, raw, self._normalise(self._decode(raw, part, offset))

    def _json_documents(self, part: Part, digest: Any) -> Iterator[Document]:
        for offset, raw in sources.lines(part):
            digest.update(raw)
            for line, raw_line in zip(self._decode(raw, part, offset).split("\n"), raw.split(b"\n"), strict=True):
                # A blank line is no record.
                if line and not line.isspace():
                    text = self._from_json(line, part, offset)
                    # Only an escape can stand for what is not text.
                    yield from self._record(self._clean(text, part, offset) if "\\u" in line else text, part, offset)
                offset += len(raw_line) + 1

    def _from_json(self, line: str, part: Part, offset: int) -> str:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad(part, offset, f"not JSON ({error}); every line must be one JSON object") from error
        if not isinstance(value, dict):
            raise _bad(part, offset, f"a JSON {type(value).__name__}; every line must be one JSON object")
        if self._field not in value:
            raise _bad(part, offset, tfds.no_field(self._field, value))
        # Null is no text, as in Parquet.
        text = "" if value[self._field] is None else value[self._field]
        if not isinstance(text, str):
            kind = type(text).__name__
            raise _bad(part, offset, f"field {self._field!r} is {kind}, not a string; choose another with --field")
        return text

    def _record_documents(self, part: Part, digest: Any) -> Iterator[Document]:
        for number, value in sources.records(part, self._field):
            _add_record(digest, value)
            try:
                text = (value or b"").decode()
            except UnicodeDecodeError as error:
                if self._errors == "strict":
                    raise _bad(part, number, "not UTF-8; go on with --errors=replace") from error
                text = self._replace(value or b"", "utf-8")
            yield from self._record(self._clean(text, part, number) if "\0" in text else text, part, number)

    def _record(self, text: str, part: Part, number: int) -> Iterator[Document]:
        if len(text) > LONGEST_DOCUMENT:
            raise _bad(part, number, f"a record of more than {LONGEST_DOCUMENT} characters; break it up")
        if document := [found for block in self._normalise(text).split("\n\n") if (found := _sentences_of(block))]:
            yield document
        else:
            self._leave_out(part, number)

    def _clean(self, text: str, part: Part, number: int) -> str:
        """A record's text without what is no character."""
        clean, count = _NO_CHARACTER.subn("\ufffd", text)
        if count and self._errors == "strict":
            raise _bad(part, number, "a NUL or half a surrogate pair in the text; go on with --errors=replace")
        self.replaced += count
        return clean

    def _leave_out(self, part: Part, number: int) -> None:
        if self._errors == "strict":
            raise _bad(part, number, "an empty document; leave such documents out with --errors=replace")
        self.empty += 1

    def _normalise(self, text: str) -> str:
        self.dropped += marks.count(text, self._normalization)
        if "\r" in text:
            # Old Mac files end their lines with a lone carriage return.
            lines = (piece for line in text.split("\n") for piece in line.rstrip("\r").split("\r"))
            text = "\n".join(lines)
        if not self._normalization.remove_space:
            return "\n".join(map(self._normalise_line, text.split("\n")))
        if text.isascii():
            return self._normalise_ascii(text)
        out: list[str] = []
        for is_ascii, lines in itertools.groupby(text.split("\n"), str.isascii):
            if is_ascii:
                out.append(self._normalise_ascii("\n".join(lines)))
            else:
                out.extend(map(self._normalise_line, lines))
        return "\n".join(out)

    def _normalise_line(self, line: str) -> str:
        if not line or line.isspace():
            return ""
        pieces = split_sentences(line) if self._sentences == "punctuation" else (line,)
        return "\r".join(filter(None, map(self._normalization, pieces))) or "\r"

    def _normalise_ascii(self, text: str) -> str:
        """The same for many lines at once, with white space made single spaces; ten times as fast."""
        for space in _ASCII_SPACES:
            text = text.replace(space, " ")
        while "  " in text:
            text = text.replace("  ", " ")
        text = "\n".join([line.strip(" ") for line in text.split("\n")])
        if self._sentences == "punctuation":
            text = _ASCII_SENTENCE_END.sub(lambda end: end[0][:-1] + "\r", text)
        return self._without_spaces(text)

    def _decode(self, raw: bytes, part: Part, offset: int) -> str:
        place = sources.kind_of(part.path).place
        if (nul := raw.find(b"\0")) >= 0:
            self._decode(raw[: raw.rfind(b"\n", 0, nul) + 1], part, offset)  # something may be wrong before it
            nul = place(offset + nul)
            raise BadInput(f"{part.path}: a NUL byte at {nul}, so it is not UTF-8 text; unpack or convert it")
        # Only the first line of a file may begin with a byte order mark.
        encoding = "utf-8-sig" if offset == 0 else "utf-8"
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            if self._errors == "strict":
                mark = len(raw) - len(error.object)  # the codec may have taken the byte order mark off
                raise BadInput(
                    f"{part.path}: not UTF-8 at {place(offset + mark + error.start)}; convert the file, or go on with "
                    "--errors=replace"
                ) from error
        return self._replace(raw, encoding)

    def _replace(self, raw: bytes, encoding: str) -> str:
        text = raw.decode(encoding, "replace")
        self.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
        return text


def _bad(part: Part, number: int, message: str) -> BadInput:
    return BadInput(f"{part.path}, {sources.kind_of(part.path).place(number)}: {message}")


def _sentences_of(block: str) -> list[str]:
    sentences = block.replace("\r", "\n").split("\n")
    return list(filter(None, sentences)) if "" in sentences else sentences


def _line_start(raw: bytes, number: int) -> int:
    """Where line `number` of a chunk begins. Only for messages: it reads all before."""
    start = 0
    for line in raw.split(b"\n"):
        at = start
        for piece in line.rstrip(b"\r").split(b"\r"):
            if not number:
                return at
            at += len(piece) + 1
            number -= 1
        start += len(line) + 1
    return start


def _add_record(digest: Any, value: bytes | None) -> None:
    # With its length, so that text that moves from one record to the next gives another hash.
    digest.update(b"\xff" * 8 if value is None else len(value).to_bytes(8, "big"))
    digest.update(value or b"")


def split_sentences(line: str) -> Iterator[str]:
    """Cuts a line after sentence-final punctuation and what closes a quotation.

    After `. ! ? …` white space must follow and then something that is not a lower-case letter; after `。！？` nothing.
    There is no list of abbreviations: "Mr. Smith" is cut.
    """
    start = 0
    for end in _SENTENCE_END.finditer(line):
        after = _VISIBLE.search(line, end.end()) if line[end.start()] not in "。！？" else None
        if after is None or not after[0].islower():
            yield line[start : end.end()]
            start = end.end()
    if start < len(line) and not line[start:].isspace():
        yield line[start:]
