"""Records of labelled files and of data sets that TFDS has built, by the end of the name.

    tfds:NAME:SPLIT     see `data.prepare.records`; classes have their names
    *.csv  *.tsv        a header and one row per example; columns `0,1,...` mean a file without a
                        header. A .tsv has no quotes, as in GLUE
    *.jsonl  *.ndjson   one object per line, an array of objects, or SQuAD 1.1 or 2.0; all three
    *.json              ends may have any of these
    *.parquet           one row per example
    *.conll  *.conllu   words in lines with their tags, a blank line after a sentence; columns
    *.iob  *.iob2       count from 0
    *.bio  *.txt
    *.txt               lines of fastText, if the first starts with `__label__`
    two other files     text_to_text: the sources and the targets, line by line
    a folder            the files below it that `prepare` reads. A .txt is one JSON object, as in
                        RACE, or a text whose label is the name of its folder, as in aclImdb

.gz or .zst may follow the end of a text file. Several sources are joined with commas. Every source
becomes records, which are dictionaries with a place for messages. Every error is one line with the
file and the row.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from xlnet_jax.config import Config
from xlnet_jax.data.prepare import records as stored
from xlnet_jax.data.prepare.sources import Part, Source, find_sources, kind_of, lines
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.messages import quantity
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

_WITH_FIELDS = [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"]
"""Ends of names of files whose records say what is what."""
_WITH_WORDS = [".conll", ".conllu", ".iob", ".iob2", ".bio"]
NAMES = ["id", "idx", "index", "guid"]
"""The usual names of what tells an example from the others."""
PREFIX = "__label__"
"""Of the labels of fastText."""

log = logging.getLogger("xlnet_jax")


class Record(NamedTuple):
    """One record of a source."""

    where: str
    """`train.tsv, row 12`."""
    fields: Json
    error: BadInput | None = None
    """Why it could not be read."""

    def checked(self) -> Record:
        """The record itself. Raises BadInput if it could not be read."""
        if self.error is not None:
            raise self.error
        return self

    def field(self, name: str) -> Any:
        """A field. Raises BadInput if there is none."""
        if name not in self.fields:
            raise BadInput(
                f"{self.where}: no column {name!r}, "
                f"but {self.names or 'none at all'}; set finetune.columns"
            )
        return self.fields[name]

    def text(self, name: str) -> str:
        """A field that must be a text. Raises BadInput."""
        value = self.field(name)
        if not isinstance(value, str) or not value.strip():
            what = (
                "is empty"
                if value is None or isinstance(value, str)
                else f"is {value!r}, not a text"
            )
            raise BadInput(f"{self.where}: {name!r} {what}; correct the row or remove it")
        return value

    def list(self, name: str) -> list[Any]:
        """A field that must be a list. Raises BadInput."""
        value = self.field(name)
        if not isinstance(value, list):
            raise BadInput(f"{self.where}: {name!r} must be a list, and is {str(value)[:60]!r}")
        return value

    def first(self, names: Iterable[tuple[str, ...]], what: str) -> tuple[str, ...]:
        """The first of several lists of names whose fields are there. Raises BadInput."""
        for each in names:
            if self.fields.keys() >= {*each}:
                return each
        raise BadInput(
            f"{self.where}: no {what} under a usual name among {self.names}; set finetune.columns"
        )

    @property
    def name(self) -> Json:
        """What tells it from the others: its field of `NAMES`, or the number of its row."""
        number = self.where.rpartition(" ")[2]
        row = {"row": int(number) if number.isdecimal() else self.where}
        return next(({name: self.fields[name]} for name in NAMES if name in self.fields), row)

    @property
    def names(self) -> str:
        """Of its fields that hold something, for messages."""
        return ", ".join(
            [repr(name[:40]) for name, value in self.fields.items() if value is not None][:20]
        )


def records(config: Config, source: str) -> Iterator[Record]:
    """The records of all sources, in order; damaged rows of a table or of JSON lines have their
    `error`.

    Raises BadInput: a source is missing, empty, damaged, not UTF-8 or of an unknown kind.
    RestartMe: a silent bucket.
    """
    names = [name.strip() for name in source.split(",") if name.strip()] or [source]
    task = config.finetune.task
    if task == "text_to_text" and not any(has_records(task, name) for name in names):
        yield from _line_files(names)
        return
    for name in names:
        record = None
        for record in _records(config, name):
            yield record
        if record is None:
            raise BadInput(f"{name} has no examples")


def has_records(task: str, name: str) -> bool:
    """Whether a file for `predict` is read as those for training: others have a text in each
    line.
    """
    kind = kind_of(name)
    if kind.format == "tfds" or kind.suffix in _WITH_FIELDS:
        return True
    of_words = kind.suffix in _WITH_WORDS or (
        kind.suffix == ".txt" and task == "token_classification"
    )
    return task != "text_to_text" and (of_words or os.path.isdir(name))


def _line_files(names: list[str]) -> Iterator[Record]:
    """The lines of two files, one with the sources and one with the targets."""
    if len(names) != 2:
        raise BadInput(
            f"{','.join(names)}: name two files of lines, SOURCES,TARGETS, or a .jsonl, .tsv or "
            ".csv with source and target"
        )
    texts = [
        [line for file in find_sources([name]) for line in files.lines(_decoded(file))]
        for name in names
    ]
    one, two = map(len, texts)
    if one != two:
        raise BadInput(
            f"{names[0]} has {one} lines and {names[1]} {two}; line by line they belong together"
        )
    for number, (source, target) in enumerate(zip(*texts, strict=True), 1):
        yield Record(f"{names[0]}, line {number}", {"source": source, "target": target})


def _records(config: Config, name: str) -> Iterator[Record]:
    for file in find_sources([name]):
        path, kind = file.path, kind_of(file.path)
        end = kind.suffix
        with files.translate_errors(path):
            if kind.format == "tfds":
                for number, fields in enumerate(stored.tfds_rows(path)):
                    yield Record(f"{path}, example {number}", fields)
            elif end == ".parquet":
                for number, fields in enumerate(stored.parquet_rows(path), 1):
                    yield Record(f"{path}, row {number}", fields)
            elif end not in (known := [*_WITH_FIELDS, *_WITH_WORDS, ".txt"]):
                raise BadInput(f"{path}: a name that ends in {', '.join(known)} says what it holds")
            elif end in (".csv", ".tsv"):
                yield from _table(
                    path, _decoded(file), "".join(config.finetune.column_list()).isdecimal()
                )
            elif end in _WITH_FIELDS:
                yield from _json(path, _decoded(file))
            elif end == ".txt" and path.startswith(top := f"{files.resolve(name)}/"):
                yield _in_folder(path, PurePath(path.removeprefix(top)).parent.name, _decoded(file))
            else:
                text = _decoded(file)
                yield from (_fasttext if text.lstrip().startswith(PREFIX) else _conll)(path, text)


def _in_folder(path: str, label: str, text: str) -> Record:
    """An object of JSON, or a text whose label is its folder.

    Texts beside the folders, and those in aclImdb's `unsup`, have no label.
    """
    if text.lstrip().startswith("{"):
        return Record(path, files.json_object(text, path))
    return Record(path, {"text": text, "label": None if label in ("", "unsup") else label})


def _decoded(file: Source) -> str:
    data = b"".join(block for _, block in lines(Part(file.path, 0, file.bytes), cut=True))
    if b"\0" in data:
        raise BadInput(f"{file.path}: a NUL byte, so it is not UTF-8 text; convert the file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode() + "?"
        rows = _csv_rows(before) if kind_of(file.path).suffix == ".csv" else before.split("\n")
        where = f"{file.path}, row {len([*rows])}"
        raise BadInput(f"{where}: not UTF-8 at byte {error.start}; convert the file") from error


def _csv_rows(text: str, strict: bool = False) -> Iterator[list[str]]:
    csv.field_size_limit(sys.maxsize)  # by default 131,072 characters
    return csv.reader(io.StringIO(text, newline=""), strict=strict)


def _table(path: str, text: str, numbered: bool) -> Iterator[Record]:
    """Rows count from 1, as a spreadsheet shows them: the header is row 1."""
    tabs = (line.split("\t") for line in files.lines(text))
    rows = tabs if kind_of(path).suffix == ".tsv" else _csv_rows(text, strict=True)
    names, number, short = list[str](), 0, list[int]()
    try:
        for number, row in enumerate(rows, 1):
            where, error = f"{path}, row {number}", None
            if row in ([], [""]):
                continue
            if not names:
                names = [*map(str, range(len(row)))] if numbered else row
                if twice := [name for name in names if name and names.count(name) > 1]:
                    raise BadInput(f"{where}: two columns are called {twice[0][:60]!r}; rename one")
                if not numbered:
                    continue
            if len(row) < len(names) and "is_duplicate" in names:
                short.append(number)
                continue
            if len(row) != len(names):
                error = BadInput(f"{where}: {len(row)} columns, and the first row has {len(names)}")
            yield Record(where, dict(zip(names, row, strict=False)), error)
    except csv.Error as error:
        raise BadInput(f"{path}, row {number + 1}: {summary(error)}") from error
    if short:
        what = f"{quantity(len(short), 'row')} of fewer than {len(names)} columns"
        log.warning(
            "%s: left out %s, as GLUE's code does; the first is row %d", path, what, short[0]
        )


def json_lines(path: str, lines: Iterable[str]) -> Iterator[Record]:
    """A record for each line that is not empty, an object of JSON."""
    for number, line in enumerate(lines, 1):
        where = f"{path}, row {number}"
        if not line.strip():
            continue
        try:
            yield Record(where, files.json_object(line, where))
        except BadInput as error:
            yield Record(where, {}, error)


def _json(path: str, text: str) -> Iterator[Record]:
    """SQuAD, whose object has a list `data`; an array of objects; or one object per line."""
    try:
        value = files.parse_json(text, path)
    except BadInput:
        value = None  # several lines, one of which may be damaged
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return _squad(path, value)
    return json_lines(path, map(json.dumps, value) if isinstance(value, list) else text.split("\n"))


def _squad(path: str, value: Json) -> Iterator[Record]:
    """The questions of a SQuAD file. A question of a test set has no `answers`."""
    where = path
    try:
        for article, each in enumerate(value["data"], 1):
            for number, paragraph in enumerate(each["paragraphs"], 1):
                where = f"{path}, article {article}, paragraph {number}"
                for question in paragraph["qas"]:
                    fields = {**question, "context": paragraph["context"]}
                    yield Record(f"{where}, question {question['id']}", fields)
    except (KeyError, TypeError) as error:
        raise BadInput(f"{where}: not as in SQuAD ({summary(error)})") from error


def _fasttext(path: str, text: str) -> Iterator[Record]:
    """A text behind its labels; a list of several."""
    for number, line in enumerate(files.lines(text), 1):
        if line.strip():
            labels = re.findall(rf"{PREFIX}(\S+)", line)
            label = labels if len(labels) > 1 else "".join(labels)
            rest = re.sub(rf"{PREFIX}\S*", "", line).strip()
            yield Record(f"{path}, row {number}", {"text": rest, "label": label})


def _columns(line: str) -> list[str]:
    """By tabs if there is one; else by spaces. Other white space, as U+00A0, belongs to a word."""
    split = line.split("\t") if "\t" in line else filter(None, line.split(" "))
    return [column.strip(" ") for column in split]


def _conll(path: str, text: str) -> Iterator[Record]:
    """Sentences; every column is a list under its number, and under its number from the end: 0, 1,
    -2, -1.
    """
    width, numbered = 2, enumerate(files.lines(text), 1)
    for ends, group in itertools.groupby(
        numbered, lambda each: re.match(r"\s*$|-DOCSTART-", each[1]) is not None
    ):
        sentence = () if ends else [(number, line, _columns(line)) for number, line in group]
        width = next((len(columns) for _, line, columns in sentence if line[0] != "#"), width)
        rows = dict[int, list[str]]()
        for number, line, columns in sentence:
            where, other = f"{path}, row {number}", len(columns) != width
            # `# text = ...`, but not `#this`.
            if (
                not rows
                and line[0] == "#"
                and (other or re.match("# |#begin document|#end document", line))
            ):
                continue
            if other:
                raise BadInput(f"{where}: {len(columns)} columns, and the row before has {width}")
            if "" in columns:
                raise BadInput(
                    f"{where}: column {columns.index('')} is empty; write a tag, such as O, or _"
                )
            rows[number] = columns
        if rows:
            lists = [
                list(column) for column in zip(*_without_ranges([*rows.values()]), strict=True)
            ]
            by_number = {
                str(n): column
                for start in (0, -len(lists))
                for n, column in enumerate(lists, start)
            }
            yield Record(f"{path}, row {min(rows)}", by_number)


def _without_ranges(rows: list[list[str]]) -> list[list[str]]:
    """Without the rows `1-2` and `1.1` of CoNLL-U, which has at least five columns and counts the
    words from 1.
    """
    words = [columns for columns in rows if not re.fullmatch(r"\d+[-.]\d+", columns[0])]
    counted = all(columns[0] == str(n) for n, columns in enumerate(words, 1))
    return words if words and counted and len(words[0]) > 4 else rows
