"""Reads records from labelled files and from data sets built by TFDS. The end of the name decides
the format.

    tfds:NAME:SPLIT     see `data.prepare.records`; classes have their names
    *.csv  *.tsv        a header and one row per example; with finetune.columns `0,1,...` no header.
                        A .tsv has no quotes, as in GLUE
    *.jsonl  *.ndjson   one object per line, an array of objects, or SQuAD 1.1 or 2.0, in a file of
    *.json              any of these three endings
    *.parquet           one row per example
    *.conll  *.conllu   a line for each word with its tags, a blank line after a sentence; columns
    *.iob  *.iob2       count from 0
    *.bio  *.txt
    *.txt               lines of fastText, if the first line starts with `__label__`
    two other files     text_to_text: the sources and the targets, line by line
    a folder            all files below it that `prepare` reads. A .txt is one JSON object, as in
                        RACE, or a text whose label is the name of its folder, as in aclImdb

The name of a text file may also end in .gz or .zst. Several sources are separated by commas. A
record is a dictionary with its file and row. Every message is one line and names both.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from xlnet_jax.config import Config
from xlnet_jax.data.prepare import records as stored
from xlnet_jax.data.prepare import tables
from xlnet_jax.data.prepare.sources import Part, Source, find_sources, kind_of, lines
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.messages import quantity
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

_WITH_FIELDS = [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"]
"""Endings of the names of files whose records have named fields."""
_WITH_WORDS = [".conll", ".conllu", ".iob", ".iob2", ".bio"]
NAMES = ["id", "idx", "index", "guid"]
"""Usual names of the field that identifies an example."""
PREFIX = "__label__"
"""Prefix of fastText labels."""

log = logging.getLogger("xlnet_jax")


class Record(NamedTuple):
    """One record of a source."""

    where: str
    """Place of the record in messages, such as `train.tsv, row 12`."""
    fields: Json
    error: BadInput | None = None
    """The error of a record that could not be read."""

    def checked(self) -> Record:
        """Returns the record itself. Raises BadInput if it could not be read."""
        if self.error is not None:
            raise self.error
        return self

    def field(self, name: str) -> Any:
        """Returns the field of this name. Raises BadInput if it is missing."""
        if name not in self.fields:
            raise BadInput(
                f"{self.where}: no column {name!r}, "
                f"but {self.names or 'none at all'}; set finetune.columns"
            )
        return self.fields[name]

    def text(self, name: str) -> str:
        """Returns a field that must be a text. Raises BadInput if it is empty or not a text."""
        value = self.field(name)
        if isinstance(value, str) and value.strip():
            return value
        wrong = f"is {value!r}, not a text"
        if value is None or isinstance(value, str):
            wrong = "is empty"
        raise BadInput(f"{self.where}: {name!r} {wrong}; correct the row or remove it")

    def list(self, name: str) -> list[Any]:
        """Returns a field that must be a list. Raises BadInput if it is not a list."""
        value = self.field(name)
        if not isinstance(value, list):
            raise BadInput(f"{self.where}: {name!r} must be a list, and is {str(value)[:60]!r}")
        return value

    def first(self, names: Iterable[tuple[str, ...]], what: str) -> tuple[str, ...]:
        """Returns the first group of names whose fields all exist. Raises BadInput if no group
        does.
        """
        for each in names:
            if self.fields.keys() >= {*each}:
                return each
        raise BadInput(
            f"{self.where}: no {what} under a usual name among {self.names}; set finetune.columns"
        )

    @property
    def name(self) -> Json:
        """The identity of the record: its first field of `NAMES`, or the number of its row."""
        number = self.where.rpartition(" ")[2]
        row = {"row": int(number) if number.isdecimal() else self.where}
        return next(({name: self.fields[name]} for name in NAMES if name in self.fields), row)

    @property
    def names(self) -> str:
        """The names of up to 20 fields with a value, for messages."""
        names = [repr(name[:40]) for name, value in self.fields.items() if value is not None]
        return ", ".join(names[:20])


def records(config: Config, source: str) -> Iterator[Record]:
    """Yields the records of all sources, in order. A damaged row of a table or of JSON lines is a
    record with an `error`.

    Raises BadInput if a source is missing, empty, damaged, not UTF-8 or of an unknown kind, and
    RestartMe if a bucket does not answer.
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
    """Returns whether a file for `predict` has records, as a training file has; other files have a
    text in each line.
    """
    kind = kind_of(name)
    if kind.format == "tfds" or kind.suffix in _WITH_FIELDS:
        return True
    of_words = kind.suffix in _WITH_WORDS or (
        kind.suffix == ".txt" and task == "token_classification"
    )
    return task != "text_to_text" and (of_words or os.path.isdir(name))


def _line_files(names: list[str]) -> Iterator[Record]:
    """Yields the records of a file of sources and a file of targets, line by line."""
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
            f"{names[0]} has {one} lines and {names[1]} {two}; line n of the "
            "one must belong to line n of the other"
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
                raise BadInput(f"{path}: unknown format; the name must end in {', '.join(known)}")
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
    """Returns a JSON object, or a text whose label is its folder. Texts outside of the label
    folders and in the folder `unsup` of aclImdb have no label.
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
        is_csv = kind_of(file.path).suffix == ".csv"
        rows = tables.csv_rows(_csv_lines(before)) if is_csv else before.split("\n")
        where = f"{file.path}, row {len([*rows])}"
        raise BadInput(f"{where}: not UTF-8 at byte {error.start}; convert the file") from error


def _csv_lines(text: str) -> Iterable[str]:
    """Returns the lines of a .csv, whose ends may be those of any system, also within quotes."""
    return io.StringIO(text, newline="")


def _table(path: str, text: str, numbered: bool) -> Iterator[Record]:
    """Yields the records of a .csv or .tsv, whose columns may be `numbered`; see `tables.rows`."""
    of_file = files.lines(text) if kind_of(path).suffix == ".tsv" else _csv_lines(text)
    width, short = 0, []
    for number, names, row in tables.rows(path, of_file, header=not numbered):
        where, error, width = f"{path}, row {number}", None, len(names)
        if len(row) < width and "is_duplicate" in names:
            short.append(number)
            continue
        if len(row) != width:
            error = BadInput(f"{where}: {tables.ragged(names, row)}")
        yield Record(where, dict(zip(names, row, strict=False)), error)
    if short:
        what = f"{quantity(len(short), 'row')} of fewer than {width} columns"
        log.warning(
            "%s: left out %s, as GLUE's code does; the first is row %d", path, what, short[0]
        )


def json_lines(path: str, lines: Iterable[str]) -> Iterator[Record]:
    """Yields a record for the JSON object in each line that is not empty."""
    for number, line in enumerate(lines, 1):
        where = f"{path}, row {number}"
        if not line.strip():
            continue
        try:
            yield Record(where, files.json_object(line, where))
        except BadInput as error:
            yield Record(where, {}, error)


def _json(path: str, text: str) -> Iterator[Record]:
    """Returns the records of a JSON file: SQuAD (an object with a list `data`), an array of
    objects, or one object per line.
    """
    try:
        value = files.parse_json(text, path)
    except BadInput:
        value = None  # one object per line; a line may be damaged
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return _squad(path, value)
    return json_lines(path, map(json.dumps, value) if isinstance(value, list) else text.split("\n"))


def _squad(path: str, value: Json) -> Iterator[Record]:
    """Yields the questions of a SQuAD file. A question of a test set has no `answers`."""
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
    """Yields the text and the label of each line; several labels are a list."""
    for number, line in enumerate(files.lines(text), 1):
        if line.strip():
            labels = re.findall(rf"{PREFIX}(\S+)", line)
            label = labels if len(labels) > 1 else "".join(labels)
            rest = re.sub(rf"{PREFIX}\S*", "", line).strip()
            yield Record(f"{path}, row {number}", {"text": rest, "label": label})


def _columns(line: str) -> list[str]:
    """Splits a line into columns at tabs, or at spaces if it has no tab. Other white space, such as
    U+00A0, belongs to a word.
    """
    split = line.split("\t") if "\t" in line else filter(None, line.split(" "))
    return [column.strip(" ") for column in split]


def _conll(path: str, text: str) -> Iterator[Record]:
    """Yields a record for each sentence. Every column is a list with two names, its number from the
    start and its number from the end: 0, 1, -2, -1.
    """
    width, numbered = 2, enumerate(files.lines(text), 1)
    for ends, group in itertools.groupby(
        numbered, lambda each: re.match(r"\s*$|-DOCSTART-", each[1]) is not None
    ):
        sentence = () if ends else [(number, line, _columns(line)) for number, line in group]
        width = next((len(columns) for _, line, columns in sentence if line[0] != "#"), width)
        rows = {}
        for number, line, columns in sentence:
            where, other = f"{path}, row {number}", len(columns) != width
            # A comment is `# text = ...`, but not `#this`.
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
            columns = [
                list(column) for column in zip(*_without_ranges([*rows.values()]), strict=True)
            ]
            by_number = {
                str(n): column
                for start in (0, -len(columns))
                for n, column in enumerate(columns, start)
            }
            yield Record(f"{path}, row {min(rows)}", by_number)


def _without_ranges(rows: list[list[str]]) -> list[list[str]]:
    """Returns the rows without the rows `1-2` and `1.1` of CoNLL-U. CoNLL-U has at least five
    columns, of which the first numbers the words from 1.
    """
    words = [columns for columns in rows if not re.fullmatch(r"\d+[-.]\d+", columns[0])]
    counted = all(columns[0] == str(n) for n, columns in enumerate(words, 1))
    return words if words and counted and len(words[0]) > 4 else rows
