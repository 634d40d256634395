"""Text to documents: the rules of documents, paragraphs and sentences.

    document   blank_line   a blank line ends a document, and so does the end of a file (the
                            original's rule)
               file         a file is one document
               line         every line is a document
    sentences  line         every line that is not blank is a sentence (the original's rule)
               punctuation  lines are cut further, after characters that end a sentence in
                            Unicode (Sentence_Terminal) or `…`

`unwrap` joins the lines of a paragraph before it is cut into sentences. A record of JSON-lines,
CSV, TSV, Parquet or TFDS is always one document. Inside a document a blank line ends a paragraph. A
sequence of a FASTA is one document of one sentence: its lines, joined.

For a counted vocabulary every sentence ends with "\n". With `characters`, `bytes` and `pattern` the
only sentence of a document does not: a sequence or a SMILES gets no character that it does not
have. In byte-level BPE a word begins with its space, so every sentence but the first of a document
begins with a space: the pieces are then the same as if spaces joined the sentences. A part of a
published data set (see `datasets`) is one document, and its lines are unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import normalizers

from xlnet_jax.data.prepare import datasets, marks, records, sources, tables
from xlnet_jax.data.prepare.sources import Part
from xlnet_jax.data.tokenizer import Normalization, without_spaces
from xlnet_jax.storage.files import Json

Document = list[list[str]]
"""Paragraphs, each a list of normalised sentences; no paragraph and no sentence is empty."""

LONGEST_DOCUMENT = 256_000_000
"""Largest number of characters of a document. It is held in memory, because its whole text decides
whether it is held out.
"""

_NEEDS_SPACE = ".!?…"  # they end a sentence only before white space
_WIDE = (
    "。︒︕︖﹒﹖﹗！．？｡"  # no space needs to follow, and only wide quotes and brackets may close
)
_VISIBLE = re.compile(r"\S")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NO_RESIDUE = re.compile(r"[^A-Za-z*]|\*(?=.)")  # `*` is the end of a sequence
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")  # NUL, and surrogates: valid in JSON, not in UTF-8


@dataclasses.dataclass(frozen=True)
class Request:
    """Everything that a corpus depends on, except the text and the tokenizer's training.

    Attributes:
      document, sentences: see the module's docstring.
      heldout: share of the documents that go to the split `heldout`.
      errors: the treatment of bytes that are not UTF-8 and of documents without a sentence.
        `strict` refuses both; `replace` puts U+FFFD for the bytes, leaves the documents out, and
        counts both.
      field: the field of a record, or the column of a table, that holds the text.
      vocabulary: the level of the tokenizer; see `data.subwords` and `data.vocabulary`.
      dataset: a published data set, `NAME` or `NAME:test`, to which the rules above do not apply;
        `` = none.
      unwrap: see the module's docstring.
      pattern: the regular expression of the level `pattern`; see `data.patterns`.
    """

    document: str
    sentences: str
    normalization: Normalization
    heldout: float
    errors: str
    page_tokens: int
    field: str
    vocabulary: str = "sentencepiece"
    dataset: str = ""
    unwrap: bool = False
    pattern: str = ""

    def split_of(self, document: Document, part: Part) -> str:
        """Returns the split of a document: `train` or `heldout`."""
        if self.dataset:
            is_train = datasets.parse(self.dataset).split_of(part) == "train"
        else:
            is_train = not self.held_out(document)
        return "train" if is_train else "heldout"

    def held_out(self, document: Document) -> bool:
        """Returns whether a document is held out. Only the normalised text decides, so equal
        documents are in the same split.
        """
        lines = (
            sentence.removesuffix("\n") for sentence in itertools.chain.from_iterable(document)
        )
        if self.vocabulary == "bytebpe":
            lines = map(str.lstrip, lines)
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.heldout * 2**64


@dataclasses.dataclass
class TextReader:
    """Reads parts as documents of normalised sentences, and counts what it replaces or leaves out.

    Attributes; those after `cleaned` describe the text read so far:
      cleaned: `Tokenizer.cleaned`; `dropped` counts its losses.
      replaced: number of undecodable bytes, or runs of bytes, that U+FFFD replaced.
      empty: number of documents that were left out, because they have no sentence.
      dropped: what normalisation dropped, by `marks.NAMES`.
      read: every part that was read to its end, for a note and for the manifest, with the SHA-256
        of its decompressed bytes or of its records.
      place: the byte, row or example of the document that was read last.
    """

    rules: Request
    cleaned: Callable[[str], str] | None = None
    replaced: int = 0
    empty: int = 0
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    read: list[Json] = dataclasses.field(default_factory=list)
    place: int = 0

    def documents(self, part: Part) -> Iterator[Document]:
        """Yields the documents of a part in order, each with at least one sentence.

        Raises BadInput: not UTF-8, not text, empty, damaged, shorter than it was, or too long to
        hold in memory. RestartMe: the bucket does not answer.
        """
        read = {
            "text": self._text_documents,
            "json": self._json_documents,
            "fasta": self._sequences,
            "table": self._table_documents,
        }
        kind, level = sources.kind_of(part.path).format, self.rules.vocabulary
        reader = read.get(kind, self._record_documents)
        for document, place in (self._published if self.rules.dataset else reader)(part):
            self.place = place
            if not document:
                if self.rules.errors == "strict":
                    raise part.bad_line(
                        place,
                        "an empty document; leave such documents out with --errors=replace",
                    )
                self.empty += 1
            elif self.rules.dataset or level in ("sentencepiece", "wordpiece"):
                yield document
            elif level == "bytebpe":
                spaced = [[f" {sentence}" for sentence in paragraph] for paragraph in document]
                spaced[0][0] = document[0][0]
                yield spaced
            else:
                one = sum(map(len, document)) == 1 and level != "words"
                end = "" if one else "\n"
                yield [[sentence + end for sentence in paragraph] for paragraph in document]

    def digest(self, part: Part) -> str:
        """Returns the hash that `documents` adds to `read`, without checking the text. Raises as
        `documents` does.
        """
        for _ in self._raw(part):
            pass
        return self.read.pop()["sha256"]

    def _raw(self, part: Part) -> Iterator[tuple[int, Any]]:
        """Yields runs of whole lines, or records, each with its byte, row or example; adds the part
        to `read` at the end.
        """
        digest, kind = hashlib.sha256(), sources.kind_of(part.path).format
        if kind not in ("parquet", "tfds"):
            for offset, raw in sources.lines(part, cut=bool(self.rules.dataset)):
                digest.update(raw)
                yield offset, raw
        else:
            read = records.tfds_texts if kind == "tfds" else records.parquet_texts
            for number, value in read(part.path, part.start, part.end, self.rules.field):
                # With its length, so that moving text from one record to the next changes the hash.
                digest.update(b"\xff" * 8 if value is None else len(value).to_bytes(8, "big"))
                digest.update(value or b"")
                yield number, value
        self.read.append(part._asdict() | {"sha256": digest.hexdigest()})

    # `_published`, `_sequences` and `_*_documents` yield every document with its byte, row or
    # example; an empty document is [].

    def _published(self, part: Part) -> Iterator[tuple[Document, int]]:
        raw = b"".join(raw for _, raw in self._raw(part))
        try:
            text = raw.decode(
                errors="surrogateescape" if self.rules.vocabulary == "bytes" else "strict"
            )
        except UnicodeDecodeError as error:
            raise part.bad(part.start + error.start, "not UTF-8; fetch the file again") from error
        yield [_LINE.findall(text)], part.start

    def _text_documents(self, part: Part) -> Iterator[tuple[Document, int]]:
        paragraphs = self._paragraphs(part, self._lines(part, is_text=True), self.rules.document)
        if self.rules.document == "file":
            yield [sentences for sentences, _ in paragraphs if sentences], part.start
        else:
            for sentences, start in paragraphs:
                yield [sentences] if sentences else [], start

    def _lines(self, part: Part, is_text: bool) -> Iterator[tuple[int, str]]:
        """Yields the lines of a part without their ends, each with its byte."""
        for offset, raw in self._raw(part):
            raw = raw.removesuffix(b"\n")
            text = self._decode(raw, part, offset)
            if is_text:
                self.dropped.update(marks.count(text, self.cleaned))
            for line, raw_line in zip(text.split("\n"), raw.split(b"\n"), strict=True):
                yield offset, line
                offset += len(raw_line) + 1

    def _paragraphs(
        self, part: Part, lines: Iterable[tuple[int, str]], document: str
    ) -> Iterator[tuple[list[str], int]]:
        """Yields the sentences of each paragraph, or of each line that is not blank if `document`
        is `line`, as a list with its place.
        """
        size = 0
        for is_blank, run in itertools.groupby(
            _ended(lines), lambda each: not each[1] or each[1].isspace()
        ):
            for paragraph in [] if is_blank else zip(run) if document == "line" else [run]:
                read, start = list[str](), None
                size = size if document == "file" else 0
                for place, line in paragraph:
                    start = place if start is None else start
                    read.append(line)
                    size += len(line)
                    if size > LONGEST_DOCUMENT:
                        raise part.bad(
                            place,
                            f"a document of more than {LONGEST_DOCUMENT} "
                            "characters; use --document=line, or put blank lines "
                            "between documents",
                        )
                cut = [unwrapped(read)] if self.rules.unwrap else read
                if self.rules.sentences == "punctuation":
                    cut = itertools.chain.from_iterable(map(split_sentences, cut))
                yield list(filter(None, map(self.rules.normalization, cut))), start or 0

    def _json_documents(self, part: Part) -> Iterator[tuple[Document, int]]:
        field = self.rules.field
        for offset, line in self._lines(part, is_text=False):
            if not line.strip():  # a blank line is no record
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise part.bad(
                    offset, f"not JSON ({error}); every line must be one JSON object"
                ) from error
            if not isinstance(value, dict):
                raise part.bad(
                    offset, f"a JSON {type(value).__name__}; every line must be one JSON object"
                )
            if field not in value:
                raise part.bad(offset, records.no_field(field, value))
            text = value[field]
            if not isinstance(text, str | None):
                raise part.bad(
                    offset,
                    f"field {field!r} is {type(text).__name__}, not a "
                    "string; choose another with --field",
                )
            # null is no text, as in Parquet
            yield self._record(text or "", part, offset), offset

    def _table_documents(self, part: Part) -> Iterator[tuple[Document, int]]:
        offset = part.start

        def of_file() -> Iterator[str]:
            nonlocal offset
            for start, line in _ended(self._lines(part, is_text=False)):
                offset = start
                yield f"{line}\n"

        # `offset` is the last line of each row: a value in quotes may have several lines.
        for _, names, row in tables.rows(part.path, of_file()):
            if self.rules.field not in names:
                raise part.bad_line(0, records.no_field(self.rules.field, names))
            if len(row) != len(names):
                raise part.bad_line(offset, tables.ragged(names, row))
            text = row[names.index(self.rules.field)]
            yield self._record(text, part, offset), offset

    def _sequences(self, part: Part) -> Iterator[tuple[Document, int]]:
        """Yields the sequences of a FASTA. Only messages keep the names, because a corpus has no
        place for them.
        """
        name, start, sequence = "", part.start, ""
        for offset, line in _ended(self._lines(part, is_text=False)):
            line, is_name = line.rstrip(), line.startswith(">")
            if is_name:
                if name:
                    yield self._sequence(part, start, name, sequence), start
                name, start, sequence = line[1:].strip(), offset, ""
            if line and not name:
                raise part.bad_line(
                    offset,
                    "a sequence without a name; it needs a line >NAME before it, and "
                    "comments are not read",
                )
            if line and not is_name:
                # A line may follow one that ends with `*`.
                if wrong := _NO_RESIDUE.search(sequence[-1:] + line):
                    raise part.bad_line(
                        offset,
                        f"{wrong[0]!r} in the sequence {name!r:.60}; remove all "
                        "but letters, such as gaps and digits ('*' may be at the end)",
                    )
                sequence += line
        if name:
            yield self._sequence(part, start, name, sequence), start

    def _sequence(self, part: Part, start: int, name: str, sequence: str) -> Document:
        sequence = self.rules.normalization(sequence.removesuffix("*"))
        if not sequence and self.rules.errors == "strict":
            advice = "leave such sequences out with --errors=replace"
            raise part.bad_line(start, f"the sequence {name!r:.60} is empty; {advice}")
        return [[sequence]] if sequence else []

    def _record_documents(self, part: Part) -> Iterator[tuple[Document, int]]:
        for number, value in self._raw(part):
            try:
                text = (value or b"").decode()
            except UnicodeDecodeError as error:
                if self.rules.errors == "strict":
                    raise part.bad(number, "not UTF-8; continue with --errors=replace") from error
                text = self._replace(value)
            yield self._record(text, part, number), number

    def _record(self, text: str, part: Part, number: int) -> Document:
        text, count = _NO_CHARACTER.subn("\ufffd", text)
        if count and self.rules.errors == "strict":
            raise part.bad(
                number, "a NUL or half a surrogate pair in the text; continue with --errors=replace"
            )
        self.replaced += count
        self.dropped.update(marks.count(text, self.cleaned))
        paragraphs = self._paragraphs(part, ((number, line) for line in text.split("\n")), "file")
        return [sentences for sentences, _ in paragraphs if sentences]

    def _decode(self, raw: bytes, part: Part, offset: int) -> str:
        if (nul := raw.find(b"\0")) >= 0:
            raise part.bad(
                offset + nul, "a NUL byte, so it is not UTF-8 text; unpack or convert it"
            )
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if self.rules.errors == "strict":
                raise part.bad(
                    offset + error.start,
                    "not UTF-8; convert the file, or continue with --errors=replace",
                ) from error
            text = self._replace(raw)
        # Only the first line of a file may start with a byte order mark.
        return text if offset else text.removeprefix("\ufeff")

    def _replace(self, raw: bytes) -> str:
        text = raw.decode(errors="replace")
        self.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
        return text


def wrapped(sentences: Sequence[str]) -> str | None:
    """Returns advice if most sentences end without punctuation although punctuation cuts the text,
    so its lines are probably wrapped; otherwise None.
    """
    ended = sum(_sentence_ends()[1].search(sentence) is not None for sentence in sentences)
    if 2 * ended >= len(sentences):
        return None
    return (
        f"only {ended / len(sentences):.0%} of the sentences end with punctuation, and the end of "
        "a line always ends one: if your lines are wrapped, prepare in a new folder with --unwrap"
    )


def unwrapped(lines: Sequence[str]) -> str:
    """Joins the lines of a paragraph with a space, or with none in scripts without spaces. Keeps a
    hyphen at the end of a line.
    """
    joined = lines[0].strip()
    for line in map(str.strip, lines[1:]):
        ends = joined[-1] + line[0]
        together = any(map(without_spaces, ends)) and not any(map(str.isascii, ends))
        joined += line if together else f" {line}"
    return joined


@functools.cache
def _sentence_ends() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns a pattern for sentence ends anywhere in a line, and a pattern for a sentence end at
    the end of a line. `tokenizers` has Unicode's property, but Python does not.
    """
    drop = normalizers.Replace(
        tokenizers.Regex(rf"[\P{{Sentence_Terminal}}{_NEEDS_SPACE}{_WIDE}]"), ""
    )
    # All characters below U+20000 but surrogates; above are ideographs.
    others = drop.normalize_str("".join(map(chr, (*range(0xD800), *range(0xE000, 0x20000)))))
    # Patterns start with a character class and never backtrack: otherwise scanning takes ten times
    # as long, and a row of dots quadratic time. A wide full stop may be a decimal point.
    ends = (
        rf"[.!?…{_WIDE}{others}](?:(?<=[{_WIDE}])(?<!\d[﹒．](?=\d))[{_WIDE}]*+[」』”’）｣]*+"
        rf"|(?<=[{others}])[{others}!?]*+[\"'”’»)\]]*+"
        r"|(?<=[.!?…])(?<![.!?…][.!?…])[.!?…]*+[\"'”’»)\]]*+(?=\s))"
    )
    return re.compile(ends), re.compile(rf"[.!?…{_WIDE}{others}][\"'”’»)\]」』）｣]*$")


def _ended(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Ends lines also at a lone carriage return, as old Mac files do; places stay."""
    return ((place, line) for place, whole in lines for line in whole.rstrip("\r").split("\r"))


def split_sentences(line: str) -> Iterator[str]:
    """Cuts a line after sentence-final punctuation and the quotes or brackets that close after it.

    After `. ! ? …` white space must follow, and then no lower-case letter. After the punctuation of
    other scripts, such as `。` and `।`, anything may follow. There is no list of abbreviations:
    "Mr. Smith" is cut.
    """
    start = 0
    for end in _sentence_ends()[0].finditer(line):
        after = _VISIBLE.search(line, end.end()) if line[end.start()] in _NEEDS_SPACE else None
        if after is None or not after[0].islower():
            yield line[start : end.end()]
            start = end.end()
    if line[start:].strip():
        yield line[start:]
