"""Where text comes from: which files, how they are cut into work units, and the raw lines or
records they hold.

    path                               format     a part counts
    *.jsonl *.ndjson *.json            json       bytes, and is cut between lines
    *.fasta *.fa *.faa *.fna and so on fasta      bytes, and is cut between sequences
    *.csv *.tsv                        table      bytes, always one part
    *.parquet                          parquet    row groups
    tfds:FOLDER:SPLIT                  tfds       examples
    any other                          text       bytes, and is cut between documents
    .gz or .zst after all but parquet  the same   bytes of the compressed file, always one part

A source is a file, on disk or at an address of fsspec (`gs://`), or a split of a TFDS data set. A
work unit is a run of consecutive parts. Parts depend only on the files, never on the engine or its
workers.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

from xlnet_jax.data.prepare import records
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.messages import suggest_file
from xlnet_jax.storage import files
from xlnet_jax.storage.local import File as Source

LONGEST_LINE = 64_000_000
"""Largest number of bytes of a line, which is held in memory several times."""

_log = logging.getLogger("xlnet_jax")
_BLOCK = 1 << 20  # bytes read at once
_SMALL_BLOCK = 1 << 16
_FOLDER_SUFFIXES = (".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".csv", ".tsv"), "table"),
    **dict.fromkeys((".fasta", ".fa", ".fas", ".fsa", ".faa", ".fna", ".ffn", ".frn"), "fasta"),
}
# Where a file may be cut: before any line, before a name of a FASTA, or after a blank line. The
# next part begins where the match with a whole line ends. At the end of the file the line is empty.
_CUTS = {"line": b"", "name": rb"(?=>)|\Z", "blank_line": rb"\s*\Z"}


class Part(NamedTuple):
    """The range [start, end) of a source, cut between documents, in the unit that the module's
    docstring gives.
    """

    path: str
    start: int
    end: int

    def bad(self, number: int, message: str) -> BadInput:
        """Returns the error at a byte (of the decompressed text), row or example of the source."""
        kind = kind_of(self.path)
        noun = {"parquet": "row", "tfds": "example"}.get(kind.format, "byte")
        text = " of the decompressed text" if kind.compression else ""
        return BadInput(f"{self.path}, {noun} {number}{text}: {message}")

    def bad_line(self, number: int, message: str) -> BadInput:
        """Returns the error in the line at a byte; for a row or an example as `bad`."""
        if kind_of(self.path).format in ("parquet", "tfds"):
            return self.bad(number, message)
        blocks = lines(Part(self.path, 0, number), cut=True)
        # A compressed file is read to its end otherwise.
        before = itertools.takewhile(lambda block: block[0] < number, blocks)
        ends = sum(block[: number - start].count(b"\n") for start, block in before)
        return BadInput(f"{self.path}, line {1 + ends}: {message}")


Unit = tuple[Part, ...]
"""A work unit: parts that are prepared together, into one shard per split."""


class Kind(NamedTuple):
    """The format and the compression of a source."""

    format: str
    """Format: `text`, `json`, `fasta`, `table`, `parquet` or `tfds`."""
    compression: str | None
    """Compression, `gzip` or `zstd`; None without, and for `parquet` and `tfds`."""
    suffix: str
    """Ending of the name without the ending of the compression, such as `.jsonl`."""


def kind_of(path: str) -> Kind:
    """Returns the kind of a source, from its name alone."""
    if path.startswith(records.PREFIX):
        return Kind("tfds", None, "")
    stem, suffix = os.path.splitext(path.lower())
    if compression := _COMPRESSIONS.get(suffix):
        suffix = os.path.splitext(stem)[1]
    elif suffix == ".parquet":
        return Kind("parquet", None, suffix)
    return Kind(_FORMATS.get(suffix, "text"), compression, suffix)


def find_sources(
    inputs: Sequence[str], data_dir: str | None = None, suffixes: tuple[str, ...] = _FOLDER_SUFFIXES
) -> list[Source]:
    """Finds the sources of `inputs`, each once, sorted by path.

    An input is a file, a folder or a glob pattern (`**` matches any depth), also an address, or
    a name for `records.find_tfds`. A folder gives all files below it with one of `suffixes`; a
    warning counts its other files.

    Raises BadInput: an input names no file, or no file that can be read. RestartMe: the bucket does
    not answer.
    """
    found: dict[str, Source] = {}
    wanted = ", ".join(f"*{suffix}" for suffix in suffixes)
    for name in inputs:
        try:
            of_name, others = (
                ([records.find_tfds(name, data_dir)], None)
                if name.startswith(records.PREFIX)
                else files.find(name, suffixes)
            )
        except OSError as error:
            raise BadInput(f"input {name}: {summary(error)}") from error
        suffix = os.path.splitext(min(others or [""]))[1]
        advice = f"give a pattern such as '{name.rstrip('/')}/**/*{suffix}'"
        if not of_name and others is not None:
            raise BadInput(f"input {name}: this folder holds no {wanted} file; {advice}")
        if not of_name:
            check_link("input", name)
            raise BadInput(f"input {name}: no such file, folder or pattern{suggest_file(name)}")
        if others:
            _log.warning(
                "input %s: files that are not %s are left out: %d, "
                "the first is %s; to read them, %s as well",
                name,
                wanted,
                len(others),
                min(others),
                advice,
            )
        found.update((source.path, source) for source in of_name)
    return [found[path] for path in sorted(found)]


def plan(sources: Sequence[Source], unit_bytes: int, document: str) -> list[Unit]:
    """Cuts the sources, in order, into work units of about `unit_bytes`.

    Larger files are cut where their format allows it (see the module's docstring); a text file that
    is one document is never cut. Raises OSError and BadInput: a file cannot be read. RestartMe: the
    bucket does not answer.
    """
    units: list[list[Part]] = []
    size = 0
    for source in sources:
        for part, part_bytes in _parts(source, unit_bytes, document):
            if not units or size + part_bytes > unit_bytes:
                units.append([])
                size = 0
            units[-1].append(part)
            size += part_bytes
    return list(map(tuple, units))


def _parts(source: Source, unit_bytes: int, document: str) -> Iterator[tuple[Part, int]]:
    """Yields the parts of a source in order, each with its size in bytes."""
    kind = kind_of(source.path)
    if kind.format == "tfds":
        count = records.tfds_split(source.path).num_examples
        mean = max(1, source.bytes // max(1, count))
        step = max(1, unit_bytes // mean)
        for start in range(0, count, step):
            end = min(start + step, count)
            yield Part(source.path, start, end), mean * (end - start)
    elif kind.format == "parquet":
        start = size = 0
        for end, each in enumerate(sizes := records.row_group_bytes(source.path)):
            if end > start and size + each > unit_bytes:
                yield Part(source.path, start, end), size
                start, size = end, 0
            size += each
        if sizes:
            yield Part(source.path, start, len(sizes)), size
    else:
        start = 0
        rule = {"json": "line", "fasta": "name", "table": "file"}.get(kind.format, document)
        if kind.compression is None and rule != "file" and source.bytes > unit_bytes:
            whole = Part(source.path, 0, source.bytes)
            with files.open_to_read(source.path, _SMALL_BLOCK) as file:
                while source.bytes - start > unit_bytes:
                    file.seek(start + unit_bytes)
                    _read_line(file, whole)  # the rest of a line
                    while not (cut := re.match(_CUTS[rule], line := _read_line(file, whole))):
                        pass
                    end = file.tell() - len(line) + cut.end()
                    if end >= source.bytes:
                        break
                    yield Part(source.path, start, end), end - start
                    start = end
        # Where a file is a document, an empty file is read too, so that it is reported.
        if source.bytes or (kind.format == "text" and document == "file"):
            yield Part(source.path, start, source.bytes), source.bytes - start


def _read_line(file: IO[bytes], part: Part, start: int | None = None) -> bytes:
    """Reads the rest of a line. Raises BadInput if it is too long; the message names the byte
    `start` of the line (None = where reading began).
    """
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
        start = file.tell() - len(line) if start is None else start
        raise part.bad(start, f"a line of more than {LONGEST_LINE} bytes; break it up")
    return line


def lines(part: Part, cut: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yields the bytes of a part, unless of parquet or tfds, as runs of whole lines, each with its
    offset in the (decompressed) file.

    With `cut`, both the part and the runs may be cut inside a line. Raises OSError and BadInput:
    the file cannot be read, is damaged, is shorter than it was, or has too long a line. RestartMe:
    the bucket does not answer.
    """
    compression = kind_of(part.path).compression
    offset, end = part.start, sys.maxsize if compression else part.end
    size = _SMALL_BLOCK if compression else _BLOCK  # all blocks before damage are read
    try:
        with contextlib.ExitStack() as opened:
            text = opened.enter_context(files.open_to_read(part.path, _BLOCK))
            if compression:
                import pyarrow

                stream: Any = pyarrow.input_stream(text, compression=compression)
                text = opened.enter_context(io.BufferedReader(stream, _SMALL_BLOCK))
            else:
                text.seek(part.start)
            while offset < end and (block := text.read(min(size, end - offset))):
                if not (cut or block.endswith(b"\n")):
                    block += _read_line(text, part, offset + block.rfind(b"\n") + 1)
                yield offset, block
                offset += len(block)
    except OSError as error:
        if not compression or error.strerror:
            raise
        raise part.bad(
            offset, f"damaged or cut short ({summary(error)}); fetch or compress it again"
        ) from error
    if offset < end and not compression:
        raise BadInput(f"{part.path}: {end - offset} bytes shorter than it was; start over")
