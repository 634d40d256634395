"""Makes labelled examples from records, with a reader for each kind of task.

`formats` reads the records; `finetune.columns` names their fields. Some values stand for a missing
label; see `unlabelled`. Every error is one line with the file and the row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.formats import Record, records
from xlnet_jax.finetune.task import Example

TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("#1 String", "#2 String"),
    ("sentence",),
    ("text",),
)
"""Usual names of texts, in GLUE's files and TFDS."""
LABELS = ["label", "gold_label", "Quality", "is_duplicate", "score", "labels", "answer"]
"""Usual names of labels."""
Read = Callable[[Record, list[str]], Sequence[Example]]
"""A reader: a function from a record and the names in `finetune.columns` to its examples."""


def examples(read: Read, config: Config, source: str, first: Sequence[str] = ()) -> list[Example]:
    """Returns the examples of all records of `finetune.train` or `finetune.dev`. Raises BadInput as
    `formats.records` does.

    Without `finetune.columns` a record is read by `first`, the names in the first training record.
    A record that lacks these texts is read by its own usual names.
    """
    found, columns = [], config.finetune.column_list()
    for record in records(config, source):
        same = {*first[:-1]} <= record.checked().fields.keys()
        found += read(record, columns or [*first] * same)
    return found


def to_predict(read: Read, config: Config, record: Record) -> Sequence[Example]:
    """Returns the examples of a record, read by `finetune.columns`; the record needs no label. A
    record without these texts is read by its list `texts`, or else by its usual names. Raises
    BadInput for any other record.
    """
    columns, fields = config.finetune.column_list(), record.checked().fields
    if read is pairs:  # `predict` also takes single texts
        read = labelled
        columns = [name for name in columns[:2] if name in fields] + (columns[2:] or LABELS[:1])
    if not fields.keys() & {*columns[:-1]}:
        if "texts" in fields:
            return [Example(tuple(record.list("texts")), None, record.where)]
        columns = []
    label = columns[-1:] or LABELS[-1:]
    missing = dict.fromkeys({"answers", "tags", "target", *label} - fields.keys())
    return read(record._replace(fields=fields | missing), columns)


def usual(record: Record) -> list[str]:
    """Returns the usual names of the texts and the label in a record. Raises BadInput if it has
    none.
    """
    return [*record.first(TEXTS, "text"), *record.first(zip(LABELS), "label")]


def usual_pair(record: Record) -> Sequence[str]:
    """Returns the usual names of the two texts in a record. Raises BadInput if it has none."""
    return record.first(TEXTS[:5], "pair of texts")


def _named(names: Sequence[str], most: float, what: str) -> Sequence[str]:
    """Returns the names of columns. Raises BadInput for fewer than two or more than `most` names;
    `what` describes the columns that they must name.
    """
    if not 2 <= len(names) <= most:
        raise BadInput(f"finetune.columns={','.join(names)} must name {what}")
    return names


def labelled(record: Record, columns: list[str]) -> list[Example]:
    """Reads texts and a label, for classification and regression. Raises BadInput."""
    *texts, label = _named(columns or usual(record), math.inf, "a text and a label")
    value = record.field(label)
    value = tuple(value) if isinstance(value, list) else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas reads integers as floats if a cell of the column is empty
    return [Example(tuple(map(record.text, texts)), value, record.where)]


def multi_labelled(record: Record, columns: list[str]) -> list[Example]:
    """Reads texts and a tuple of labels, which may be empty. Raises BadInput.

    The field of the labels is a list of names or whole numbers; a list with 0.0 or 1.0 for each
    class, whose names are then 0, 1, ...; or a text of names separated by `|`, or without `|` by
    commas.
    """
    (example,) = labelled(record, columns)
    if example.label in (None, "") or example.label != example.label:  # NaN
        return [example._replace(label=None)]
    given, text = example.label, str(example.label)
    if not isinstance(given, tuple):
        given = [name.strip() for name in text.split("|" if "|" in text else ",")]
    if all(isinstance(value, float) for value in given) and {*given} <= {0, 1}:
        given = [number for number, value in enumerate(given) if value]
    labels = tuple(map(str, given))
    for name, value in zip(labels, given, strict=True):
        # Some tables have a Python list as text in a cell; it is refused.
        if type(value) not in (str, int) or not name or name[0] == "[" or labels.count(name) > 1:
            raise BadInput(
                f"{record.where}: {name[:60]!r} is not a label, or occurs twice; give label "
                "names with | between them, a list of names, or a list with 0.0 or 1.0 per class"
            )
    return [example._replace(label=labels)]


def multiple_choice(record: Record, columns: list[str]) -> list[Example]:
    """Reads (context, question, option, option, ...) and the letter or number of the right option.
    Raises BadInput.

    A record is an article of RACE, or a single question whose options are columns or a list.
    """
    if "questions" in record.fields:
        return _questions(record)
    usual_names = [(context, "question", "options") for context in ("article", "context")]
    *names, label = columns or [
        *record.first(usual_names, "question"),
        *record.first(zip(LABELS), "label"),
    ]
    texts = []
    for name in names:
        value = record.field(name)
        texts += value if isinstance(value, list) else [record.text(name)]
    return [Example(tuple(texts), record.field(label), record.where)]


def _questions(record: Record) -> list[Example]:
    """Returns the examples of an article of RACE."""
    article, lists = record.text("article"), [record.list("questions"), record.list("options")]
    unanswered = record.field("answers") is None
    lists.append([None] * len(lists[0]) if unanswered else record.list("answers"))
    if len({*map(len, lists)}) > 1:
        counts = "{} questions, {} lists of options and {} answers".format(*map(len, lists))
        raise BadInput(f"{record.where}: {counts}; they must be equal")
    found = []
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        each = Record(f"{record.where}, question {number}", {"options": options})
        found.append(Example((article, question, *each.list("options")), answer, each.where))
    return found


def question_answering(record: Record, columns: list[str]) -> list[Example]:
    """Reads (context, question) and a tuple of answers (first character, text). Raises BadInput.

    The tuple is empty if the context has no answer. A question without `answers` has no label.
    """
    context, question = map(record.text, ("context", "question"))
    answers = record.fields.get("answers")
    start_and_text, given = operator.itemgetter("answer_start", "text"), ()
    try:
        if isinstance(answers, list):  # SQuAD; TFDS has a list of texts and a list of starts
            given = map(start_and_text, answers)
        elif answers is not None:
            given = zip(*start_and_text(answers), strict=True)
        label = tuple(_found(record, context, *each) for each in given)
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(
            f"{record.where}: 'answers' needs lists 'text' and 'answer_start' of one length"
        ) from error
    impossible = record.fields.get("is_impossible")
    if impossible not in (None, True, False):
        raise BadInput(
            f"{record.where}: 'is_impossible' must be true or false, and is {impossible!r}"
        )
    if impossible:
        label = ()  # SQuAD 2.0 gives plausible answers
    elif answers is None:
        label = None
    return [Example((context, question), label, record.where)]


def token_classification(record: Record, columns: list[str]) -> list[Example]:
    """Reads the words of a sentence and a tuple of their tags. Raises BadInput."""
    usual_names = ["tokens", "tags"] if "tokens" in record.fields else ["0", "-1"]
    names = _named(columns or usual_names, 2, "the words and the tags")
    words, tags = record.list(names[0]), record.field(names[1])
    if tags is None or tags is words:  # the file has a single column, without tags
        return [Example(tuple(words), None, record.where)]
    if len(words) != len(record.list(names[1])) or not words:
        raise BadInput(
            f"{record.where}: {len(words)} words and {len(tags)} tags; every word needs one"
        )
    return [Example(tuple(words), tuple(tags), record.where)]


def pairs(record: Record, columns: list[str]) -> list[Example]:
    """Reads two similar texts, and from a third column their similarity. Raises BadInput."""
    names = _named(columns or usual_pair(record), 3, "two texts, or two and a similarity")
    label = None
    if len(names) > 2:
        label = "" if (value := record.field(names[2])) is None else value
    return [Example(tuple(map(record.text, names[:2])), label, record.where)]


def source_and_target(record: Record, columns: list[str]) -> list[Example]:
    """Reads a source and its target. Raises BadInput."""
    source, target = _named(columns or ["source", "target"], 2, "the source and the target")
    text = None if record.field(target) is None else record.text(target)
    return [Example((record.text(source),), text, record.where)]


def _found(record: Record, context: str, start: Any, answer: Any) -> tuple[int, str]:
    """Finds the occurrence of an answer in the context that is nearest to `start`. Returns its
    first character and the answer. Raises BadInput if the context lacks the answer.
    """
    if type(start) is not int or not isinstance(answer, str) or not answer.strip():
        raise BadInput(
            f"{record.where}: an answer needs a text and a whole number as its start, "
            f"not {start!r}, {answer!r}"
        )
    start_at = max(0, start)
    places = (context.rfind(answer, 0, start_at + len(answer)), context.find(answer, start_at))
    if found := [place for place in places if place >= 0]:
        return min(found, key=lambda place: abs(place - start)), answer
    raise BadInput(
        f"{record.where}: the answer {answer[:60]!r} is not in the context; correct it or remove it"
    )
