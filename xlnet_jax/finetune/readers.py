"""Labelled examples from files and from data sets that TFDS has built.

    tfds:NAME:SPLIT     see `data.prepare.tfds`; classes have their names
    *.csv  *.tsv        a header and one row per example; columns `0,1,...` mean a file without a header. A .tsv has no
                        quotes, as in GLUE
    *.jsonl  *.ndjson   one object per line
    *.json              SQuAD 1.1 or 2.0
    a folder            the .txt files below it, each one JSON object, as in RACE
    two other files     text_to_text: the sources and the targets, line by line
    *.conll  *.txt      words in lines with their tags, a blank line after a sentence; columns count from 0

Several sources are joined with commas. Every source becomes records, which are dictionaries with a place for messages;
the reader of a task makes the `Example`s of each, given the names in `finetune.columns`. Every error is one line with
the file and the row.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xlnet_jax.config import Config
from xlnet_jax.data.prepare import records as stored
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.finetune.task import Example
from xlnet_jax.messages import suggest_file
from xlnet_jax.storage import files

TEXTS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("#1 String", "#2 String"), ("sentence",), ("text",),
)  # fmt: skip
"""The usual names of texts: of GLUE's files and of TFDS."""
LABELS = ("label", "gold_label", "Quality", "is_duplicate", "score", "labels")
"""The usual names of labels."""
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


class Record(NamedTuple):
    """One record of a source."""

    where: str
    """`train.tsv, row 12`."""
    fields: dict[str, Any]

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
    def names(self) -> str:
        """Of its fields, for messages."""
        return ", ".join(repr(name[:40]) for name in list(self.fields)[:20])


Read = Callable[[Record, list[str]], Sequence[Example]]
"""A reader: from a record and the names in `finetune.columns` to its examples."""


def examples(read: Read, config: Config, source: str) -> list[Example]:
    """What `read` makes of all records of `finetune.train` or `finetune.dev`. Raises BadInput; see `records`."""
    return [example for record in records(config, source) for example in read(record, config.finetune.column_list())]


def labelled(record: Record, columns: list[str]) -> list[Example]:
    """Texts and a label: for classification, regression, and multiple choice from a table. Raises BadInput."""
    names = columns or [*record.first(TEXTS, "text"), *record.first([(name,) for name in LABELS], "label")]
    *texts, label = names
    if not texts:
        raise BadInput(f"finetune.columns={label} must name a text and a label")
    value = record.field(label)
    if value is None or value == "":
        raise BadInput(f"{record.where}: {label!r} is empty; give a label, or remove the row")
    return [Example(tuple(map(record.text, texts)), value, record.where)]


def multi_labelled(record: Record, columns: list[str]) -> list[Example]:
    """Texts and a tuple of labels, which may be empty. Raises BadInput.

    They are a list of names or whole numbers; a list with 0.0 or 1.0 for each class, whose names are then 0, 1, ...; or
    a text with `|` between them, or else commas. Several columns of 0 and 1 are named together: `toxic|threat`.
    """
    *texts, last = columns or [""]
    if "|" in last:
        given = {name: record.field(name) for name in last.split("|")}
        return [Example(tuple(map(record.text, texts)), _chosen(record, given), record.where)]
    (example,) = labelled(record, columns)
    given = example.label
    if isinstance(given, str):
        given = [name.strip() for name in given.split("|" if "|" in given else ",")]
    given = given if isinstance(given, list) else [given]
    if any(isinstance(value, (bool, float)) for value in given):
        return [example._replace(label=_chosen(record, dict(enumerate(given))))]
    labels = tuple(map(str, given))
    for name, value in zip(labels, given, strict=True):
        # Some writers of tables put Python's text of a list into a cell.
        if type(value) not in (str, int) or not name or name[0] == "[" or labels.count(name) > 1:
            raise BadInput(f"{record.where}: {name[:60]!r} is no label, or there twice; a list with a number for each "
                           "class has 0.0 and 1.0, and a cell has | between names")  # fmt: skip
    return [example._replace(label=labels)]


def _chosen(record: Record, given: Mapping[Any, Any]) -> tuple[str, ...]:
    """The names whose value is 1. Raises BadInput for one that is neither 0 nor 1."""
    if wrong := [name for name, value in given.items() if str(value).lower() not in _FLAGS]:
        raise BadInput(f"{record.where}: {wrong[0]!r} is {str(given[wrong[0]])[:60]!r} and must be 0 or 1")
    return tuple(str(name) for name, value in given.items() if _FLAGS[str(value).lower()])


def multiple_choice(record: Record, columns: list[str]) -> list[Example]:
    """(context, question, option, option, ...) and the right one's letter: RACE, or a table. Raises BadInput."""
    if "article" not in record.fields:
        return labelled(record, columns)
    article, lists = record.text("article"), [record.list(name) for name in ("questions", "options", "answers")]
    if len({len(each) for each in lists}) > 1:
        counts = "{} questions, {} lists of options and {} answers".format(*map(len, lists))
        raise BadInput(f"{record.where}: {counts}; they must be equal")
    found = []
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        where = f"{record.where}, question {number}"
        if not isinstance(options, list):
            raise BadInput(f"{where}: the options must be a list, and are {str(options)[:60]!r}")
        found.append(Example((article, question, *options), answer, where))
    return found


def question_answering(record: Record, columns: list[str]) -> list[Example]:
    """(context, question) and a tuple of answers (first character, text), empty if there is none. Raises BadInput."""
    context, question, answers = record.text("context"), record.text("question"), record.field("answers")
    try:
        given = tuple(zip(answers["answer_start"], answers["text"], strict=True))
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"{record.where}: 'answers' needs lists 'text' and 'answer_start' of one length") from error
    if record.fields.get("is_impossible"):
        given = ()  # only plausible ones
    return [Example((context, question), tuple(_found(record, context, *each) for each in given), record.where)]


def token_classification(record: Record, columns: list[str]) -> list[Example]:
    """The words of a sentence and a tuple of their tags. Raises BadInput."""
    names = columns or (["tokens", "tags"] if "tokens" in record.fields else ["0", "-1"])
    if len(names) != 2:
        raise BadInput(f"finetune.columns={','.join(names)} must name the words and the tags")
    words, tags = map(record.list, names)
    if len(words) != len(tags) or not words:
        raise BadInput(f"{record.where}: {len(words)} words and {len(tags)} tags; every word needs one")
    return [Example(tuple(words), tuple(tags), record.where)]


def pairs(record: Record, columns: list[str]) -> list[Example]:
    """Two texts of the same meaning, and how similar they are, if a third column is named. Raises BadInput."""
    names = columns or record.first(TEXTS[:5], "pair of texts")
    if not 2 <= len(names) <= 3:
        raise BadInput(f"finetune.columns={','.join(names)} must name two texts, or two and a similarity")
    label = record.field(names[2]) if len(names) == 3 else None
    return [Example(tuple(map(record.text, names[:2])), label, record.where)]


def source_and_target(record: Record, columns: list[str]) -> list[Example]:
    """A text, and the text that is made from it. Raises BadInput."""
    names = columns or ["source", "target"]
    if len(names) != 2:
        raise BadInput(f"finetune.columns={','.join(names)} must name the source and the target")
    source, target = map(record.text, names)
    return [Example((source,), target, record.where)]


def _found(record: Record, context: str, start: Any, answer: Any) -> tuple[int, str]:
    """An answer with its first character: if it is elsewhere, the occurrence nearest to `start`."""
    if type(start) is not int or not isinstance(answer, str) or not answer.strip():
        raise BadInput(f"{record.where}: an answer needs a text and a whole number as its start, not {start!r}, "
                       f"{answer!r}")  # fmt: skip
    start_at = max(0, start)
    places = (context.rfind(answer, 0, start_at + len(answer)), context.find(answer, start_at))
    if found := [place for place in places if place >= 0]:
        return min(found, key=lambda place: abs(place - start)), answer
    raise BadInput(f"{record.where}: the answer {answer[:60]!r} is not in the context; correct it or remove it")


def records(config: Config, source: str) -> Iterator[Record]:
    """The records of all sources, in order.

    Raises BadInput: a source is missing, empty, damaged, not UTF-8 or of an unknown kind. RestartMe: a silent bucket.
    """
    names = [name.strip() for name in source.split(",") if name.strip()] or [source]
    if config.finetune.task == "text_to_text" and not any(map(_has_fields, names)):
        yield from _line_files(names)
        return
    for name in names:
        record = None
        for record in _records(config, name):
            yield record
        if record is None:
            raise BadInput(f"{name} has no examples")


def _has_fields(name: str) -> bool:
    """Whether each record of a source says what is what."""
    suffix = os.path.splitext(name)[1].lower()
    return name.startswith(stored.PREFIX) or suffix in (".csv", ".tsv", ".jsonl", ".ndjson", ".json")


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
        listed, other_files = files.find(name, (".txt",))
    if not listed:
        check_link("finetune", name)
        what = f"no such file{suggest_file(name)}" if other_files is None else "this folder holds no .txt file"
        raise BadInput(f"{name}: {what}")
    for path in sorted(file.path for file in listed):
        yield from _of_file(config, path, in_folder=other_files is not None)


def _of_file(config: Config, path: str, in_folder: bool) -> Iterator[Record]:
    text, suffix = _decoded(path), os.path.splitext(path)[1].lower()
    if in_folder:
        yield Record(path, files.json_object(text, path))
    elif suffix in (".csv", ".tsv"):
        columns = config.finetune.column_list()
        yield from _table(path, text, suffix == ".tsv", bool(columns) and all(map(str.isdecimal, columns)))
    elif suffix in (".jsonl", ".ndjson"):
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield Record(f"{path}, row {number}", files.json_object(line, f"{path}, row {number}"))
    elif suffix == ".json":
        yield from _squad(path, files.json_object(text, path))
    elif suffix in (".conll", ".txt"):
        yield from _conll(path, text)
    else:
        raise BadInput(f"{path}: a name that ends in .csv, .tsv, .jsonl, .json (SQuAD) or .conll says what it holds")


def _decoded(path: str) -> str:
    with files.translate_errors(path):
        data = files.read(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}, row {row}: not UTF-8 at byte {error.start}; convert the file") from error


def _table(path: str, text: str, tabs: bool, numbered: bool) -> Iterator[Record]:
    """Rows count from 1, as a spreadsheet shows them: the header is row 1."""
    layout: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    rows = csv.reader(io.StringIO(text, newline=""), **layout)
    names, number = None, 0
    try:
        for number, row in enumerate(rows, 1):
            if not row:
                continue
            if names is None:
                names = [str(column) for column in range(len(row))] if numbered else row
                if twice := [name for name in names if name and names.count(name) > 1]:
                    raise BadInput(f"{path}, row {number}: two columns are called {twice[0][:60]!r}; rename one")
                if not numbered:
                    continue
            if len(row) != len(names):
                raise BadInput(f"{path}, row {number}: {len(row)} columns, and the first row has {len(names)}")
            yield Record(f"{path}, row {number}", dict(zip(names, row, strict=True)))
    except csv.Error as error:
        raise BadInput(f"{path}, row {number + 1}: {summary(error)}") from error


def _squad(path: str, value: dict[str, Any]) -> Iterator[Record]:
    """The questions of a SQuAD file as TFDS has them: answers as lists of texts and of starts."""
    where = path
    try:
        for article, each in enumerate(value["data"], 1):
            for number, paragraph in enumerate(each["paragraphs"], 1):
                where = f"{path}, article {article}, paragraph {number}"
                for question in paragraph["qas"]:
                    answers = question.get("answers", [])
                    lists = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                    fields = {**question, "context": paragraph["context"], "answers": lists}
                    yield Record(f"{where}, question {question['id']}", fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{where}: not as in SQuAD ({summary(error)})") from error


def _conll(path: str, text: str) -> Iterator[Record]:
    """Sentences; every column is a list under its number, and under its number from the end: 0, 1, -2, -1."""
    first, rows = 1, list[list[str]]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        columns = line.split()
        if columns and not line.startswith("-DOCSTART-"):
            if rows and len(columns) != len(rows[0]):
                raise BadInput(f"{path}, row {number}: {len(columns)} columns, and the row before has {len(rows[0])}")
            first = first if rows else number
            rows.append(columns)
        elif rows:
            lists = [list(column) for column in zip(*rows, strict=True)]
            both = enumerate(lists), enumerate(lists, -len(lists))
            yield Record(f"{path}, row {first}", {str(n): column for columns in both for n, column in columns})
            rows = []
