"""Records of labelled files and of data sets that TFDS has built, by the end of the name.

    tfds:NAME:SPLIT     see `data.prepare.tfds`; classes have their names
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
    a folder            the .txt files below it: each one JSON object, as in RACE, or a text whose
                        label is the name of its folder, as in aclImdb; if it has none, the files
                        of the first three lines

.gz or .zst may follow the end of a text file. Several sources are joined with commas. Every source
becomes records, which are dictionaries with a place for messages. Every error is one line with the
file and the row.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from xlnet_jax.config import Config
from xlnet_jax.data.prepare import records as stored
from xlnet_jax.data.prepare import sources
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.messages import quantity, suggest_file
from xlnet_jax.storage import files

_CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".txt")
_WITH_FIELDS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
"""Ends of names of files whose records say what is what."""
_TEXTS = (".txt", ".txt.gz", ".txt.zst")
_OF_QQP = {"question1", "question2", "is_duplicate"}
NAMES = ("id", "idx", "index", "guid")
"""The usual names of what tells an example from the others."""
PREFIX = "__label__"
"""Of the labels of fastText."""

log = logging.getLogger("xlnet_jax")


class Record(NamedTuple):
    """One record of a source."""

    where: str
    """`train.tsv, row 12`."""
    fields: dict[str, Any]
    error: BadInput | None = None
    """Why it could not be read."""

    def field(self, name: str) -> Any:
        """A field. Raises BadInput if there is none."""
        if name not in self.fields:
            raise BadInput(f"{self.where}: no column {name!r}, but {self.names or 'none at all'}; set finetune.columns")
        return self.fields[name]

    def text(self, name: str) -> str:
        """A field that must be a text. Raises BadInput."""
        value = self.field(name)
        if not isinstance(value, str) or not value.strip():
            what = "is empty" if value is None or isinstance(value, str) else f"is {value!r}, not a text"
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
        raise BadInput(f"{self.where}: no {what} under a usual name among {self.names}; set finetune.columns")

    @property
    def name(self) -> dict[str, Any]:
        """What tells it from the others: its field of `NAMES`, or the number of its row."""
        number = self.where.rpartition(" ")[2]
        row = {"row": int(number) if number.isdecimal() else self.where}
        return next(({name: self.fields[name]} for name in NAMES if name in self.fields), row)

    @property
    def names(self) -> str:
        """Of its fields that hold something, for messages."""
        return ", ".join([repr(name[:40]) for name, value in self.fields.items() if value is not None][:20])


def records(config: Config, source: str, lenient: bool = False) -> Iterator[Record]:
    """The records of all sources, in order; if `lenient` also damaged rows of a table or of JSON lines, each with its
    `error`.

    Raises BadInput: a source is missing, empty, damaged, not UTF-8 or of an unknown kind. RestartMe: a silent bucket.
    """
    names = [name.strip() for name in source.split(",") if name.strip()] or [source]
    if config.finetune.task == "text_to_text" and not any(map(_has_fields, names)):
        yield from _line_files(names)
        return
    for name in names:
        record = None
        for record in _records(config, name):
            if record.error is not None and not lenient:
                raise record.error
            yield record
        if record is None:
            raise BadInput(f"{name} has no examples")


def _end(path: str) -> str:
    """The end of a name that says what is in the file: `.tsv` of `train.tsv.gz`."""
    stem, end = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if sources.kind_of(path).compression else end


def has_records(task: str, name: str) -> bool:
    """Whether a file for `predict` is read as those for training: others have a text in each line."""
    end = _end(name)
    of_words = end in _CONLL and (end != ".txt" or task == "token_classification")
    return _has_fields(name) or (task != "text_to_text" and (of_words or os.path.isdir(name)))


def _has_fields(name: str) -> bool:
    """Whether each record of a source says what is what."""
    return name.startswith(stored.PREFIX) or _end(name) in _WITH_FIELDS


def _line_files(names: list[str]) -> Iterator[Record]:
    """The lines of two files, one with the sources and one with the targets."""
    if len(names) != 2:
        raise BadInput(f"{','.join(names)}: name two files of lines, SOURCES,TARGETS, or a .jsonl, .tsv or .csv with "
                       "source and target")  # fmt: skip
    sources, targets = (files.lines(_decoded(name)) for name in names)
    if len(sources) != len(targets):
        raise BadInput(f"{names[0]} has {len(sources)} lines and {names[1]} {len(targets)}; line by line they belong "
                       "together")  # fmt: skip
    for number, pair in enumerate(zip(sources, targets, strict=True), 1):
        yield Record(f"{names[0]}, line {number}", dict(zip(("source", "target"), pair, strict=True)))


def _records(config: Config, name: str) -> Iterator[Record]:
    if name.startswith(stored.PREFIX):
        fields = enumerate(stored.tfds_rows(stored.find_tfds(name, None).path))
        yield from (Record(f"{name}, example {number}", each) for number, each in fields)
        return
    with files.translate_errors(name):
        listed, others = files.find(name, _TEXTS)
    in_folder = sorted(path for path in others or () if _end(path) in _WITH_FIELDS)
    if not listed and not in_folder:
        check_link("finetune", name)
        what = f"no such file{suggest_file(name)}"
        if others is not None:
            what = f"this folder holds no .txt file, and none that ends in {', '.join(_WITH_FIELDS)}"
        raise BadInput(f"{name}: {what}")
    for path in sorted(file.path for file in listed) or in_folder:
        if listed and others is not None:
            yield _in_folder(files.resolve(name).rstrip("/"), path)
        else:
            yield from _of_file(config, path)


def _in_folder(name: str, path: str) -> Record:
    """An object of JSON, or a text whose label is its folder.

    Texts beside the folders, and those in aclImdb's `unsup`, have no label.
    """
    text, folder = _decoded(path), os.path.dirname(path)
    if text.lstrip().startswith("{"):
        return Record(path, files.json_object(text, path))
    label = os.path.basename(folder)
    has_none = folder == name or label == "unsup"
    return Record(path, {"text": text, "label": None if has_none else label})


def _of_file(config: Config, path: str) -> Iterator[Record]:
    end = _end(path)
    if end == ".parquet":
        with files.translate_errors(path):
            rows = list(stored.parquet_rows(path))
        for number, fields in enumerate(rows, 1):
            yield Record(f"{path}, row {number}", fields)
        return
    if end not in (*_WITH_FIELDS, *_CONLL):
        known = ", ".join((*_WITH_FIELDS, *_CONLL))
        raise BadInput(f"{path}: a name that ends in {known} says what it holds")
    text = _decoded(path)
    if end in (".csv", ".tsv"):
        columns = config.finetune.column_list()
        numbered = bool(columns) and all(map(str.isdecimal, columns))
        yield from _table(path, text, end == ".tsv", numbered)
    elif end in _WITH_FIELDS:
        yield from _json(path, text)
    elif end == ".txt" and text.lstrip().startswith(PREFIX):
        yield from _fasttext(path, text)
    else:
        yield from _conll(path, text)


def _decoded(path: str) -> str:
    with files.translate_errors(path):
        if sources.kind_of(path).compression:
            blocks = sources.lines(sources.Part(path, 0, 0), cut=True)
            data = b"".join(block for _, block in blocks)
        else:
            data = files.read(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode() + "?"
        row = len(list(_csv_rows(before))) if _end(path) == ".csv" else before.count("\n") + 1
        raise BadInput(f"{path}, row {row}: not UTF-8 at byte {error.start}; convert the file") from error


def _csv_rows(text: str, strict: bool = False) -> Iterator[list[str]]:
    csv.field_size_limit(sys.maxsize)  # by default 131,072 characters
    return csv.reader(io.StringIO(text, newline=""), strict=strict)


def _table(path: str, text: str, tabs: bool, numbered: bool) -> Iterator[Record]:
    """Rows count from 1, as a spreadsheet shows them: the header is row 1."""
    lines = (line.split("\t") for line in files.lines(text))
    rows = lines if tabs else _csv_rows(text, strict=True)
    names, number, short = list[str](), 0, list[int]()
    try:
        for number, row in enumerate(rows, 1):
            if row in ([], [""]):
                continue
            if not names:
                names = [str(column) for column in range(len(row))] if numbered else row
                if twice := [name for name in names if name and names.count(name) > 1]:
                    raise BadInput(f"{path}, row {number}: two columns are called {twice[0][:60]!r}; rename one")
                if not numbered:
                    continue
            if tabs and len(row) < len(names) and {*names} >= _OF_QQP:
                short.append(number)
                continue
            where, error = f"{path}, row {number}", None
            if len(row) != len(names):
                error = BadInput(f"{where}: {len(row)} columns, and the first row has {len(names)}")
            yield Record(where, dict(zip(names, row, strict=False)), error)
    except csv.Error as error:
        raise BadInput(f"{path}, row {number + 1}: {summary(error)}") from error
    if short:
        what = f"{quantity(len(short), 'row')} of fewer than {len(names)} columns"
        log.warning("%s: left out %s, as GLUE's code does; the first is row %d", path, what, short[0])


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
        yield from _squad(path, value)
        return
    lines = map(json.dumps, value) if isinstance(value, list) else text.split("\n")
    yield from json_lines(path, lines)


def _squad(path: str, value: dict[str, Any]) -> Iterator[Record]:
    """The questions of a SQuAD file as TFDS has them: answers as lists of texts and of starts.

    A question of a test set has no `answers`.
    """
    where = path
    try:
        for article, each in enumerate(value["data"], 1):
            for number, paragraph in enumerate(each["paragraphs"], 1):
                where = f"{path}, article {article}, paragraph {number}"
                for question in paragraph["qas"]:
                    fields = {**question, "context": paragraph["context"]}
                    if (answers := question.get("answers")) is not None:
                        names = "text", "answer_start"
                        fields["answers"] = {name: [each[name] for each in answers] for name in names}
                    yield Record(f"{where}, question {question['id']}", fields)
    except (KeyError, TypeError, AttributeError) as error:
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
    """Sentences; every column is a list under its number, and under its number from the end: 0, 1, -2, -1."""
    lines, width = dict[int, str](), 2
    for number, line in enumerate([*files.lines(text), ""], 1):
        if line.strip() and not line.startswith("-DOCSTART-"):
            lines[number] = line
            continue
        words = (line for line in lines.values() if not line.startswith("#"))
        width = next((len(_columns(line)) for line in words), width)
        rows = dict[int, list[str]]()
        for row, line in lines.items():
            if not rows and _is_comment(line, width):
                continue
            rows[row] = columns = _columns(line)
            where = f"{path}, row {row}"
            if len(columns) != width:
                raise BadInput(f"{where}: {len(columns)} columns, and the row before has {width}")
            if "" in columns:
                empty = columns.index("")
                raise BadInput(f"{where}: column {empty} is empty; write a tag, such as O, or _")
        if rows:
            every = _without_ranges([*rows.values()])
            lists = [list(column) for column in zip(*every, strict=True)]
            both = enumerate(lists), enumerate(lists, -len(lists))
            fields = {str(n): column for columns in both for n, column in columns}
            yield Record(f"{path}, row {min(rows)}", fields)
        lines = {}


def _is_comment(line: str, width: int) -> bool:
    """Of the first line of a sentence with `width` columns: `# text = ...`, but not `#this`."""
    always = line.startswith(("# ", "#begin document", "#end document"))
    return always or (line.startswith("#") and len(_columns(line)) != width)


def _without_ranges(rows: list[list[str]]) -> list[list[str]]:
    """Without the rows `1-2` and `1.1` of CoNLL-U, whose first column counts the words from 1."""
    words = list[list[str]]()
    for columns in rows:
        after = len(words) + 1
        if columns[0] == str(after):
            words.append(columns)
        elif len(columns) < 5 or not re.fullmatch(rf"{after}-\d+|{after - 1}\.\d+", columns[0]):
            return rows
    return words
