"""`xlnet-jax predict`: labels, scores, answers or vectors of texts, by a fine-tuned model."""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.commands.texts import gather, read_lines
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import formats, readers
from xlnet_jax.finetune.evaluation import Predictor, predictor
from xlnet_jax.finetune.formats import Record
from xlnet_jax.finetune.setup import add_example, trained_task
from xlnet_jax.finetune.task import Example, Row, Task
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.infer.opened import Stored, find, opened
from xlnet_jax.infer.options import Decoding
from xlnet_jax.infer.text_to_text import GREEDY, Writer
from xlnet_jax.messages import quantity
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

SHORTEST = 16
"""Tokens of a row in the shortest batches; each next length is twice as long."""


def predict(
    workdir: str,
    *,
    texts: Sequence[str] = (),
    input: str | None = None,
    step: int | None = None,
    batch_size: int | None = None,
    skip_bad: bool = False,
    overrides: Sequence[str] = (),
    **options: Any,
) -> list[Json]:
    """Predicts with the checkpoint of the best dev score.

    Args:
      workdir: work directory of `xlnet-jax finetune`, or a folder that `xlnet-jax export` made of
        it.
      texts: examples; a tab separates the texts of an example.
      input: a file of examples. A file named like a training file is read like a training file, but
        labels may be missing. Any other file has one example per line, like `texts`. `-` = stdin,
        with one example or one JSON object per line. Empty lines are left out; for `text_to_text`
        they are errors.
      step: the checkpoint; None = the best kept one, or the newest if none was scored.
      batch_size: rows at a time; None = as in the evaluations.
      skip_bad: whether examples that cannot be used cause a warning instead of an error.
      options: for `text_to_text`: temperature, top_k, top_p and seed of `infer.options.Decoding`.

    Returns:
      One object for each example, in their order: from a file its `id`, `idx`, `index` or `guid`,
      or the number of its `row`; the values of `Task.outputs`, or an `error`; the `gold` label, if
      given.

    Raises BadInput: no fine-tuned model or good checkpoint in `workdir`, no text, or (unless
    `skip_bad`) an example that the task cannot use; `results` of the error has all objects.
    """
    stored = find(workdir, overrides, step)
    task = trained_task(stored.config, stored.tokenizer, workdir)
    asked = Decoding(**options)
    if asked != GREEDY and not isinstance(task, TextToText):
        raise BadInput(
            f"{workdir}: temperature, top_k, top_p and seed are for finetune.task=text_to_text, "
            f"not for {task.config.finetune.task}; leave them out"
        )
    results, examples, rows = _encode(task, texts, input)
    if examples:
        outputs = _outputs(stored, task, rows, examples, step, batch_size, asked)
        good = (result for result in results if "error" not in result)
        for result, output in zip(good, outputs, strict=True):
            result |= output
    if errors := [result["error"] for result in results if "error" in result]:
        line = (
            f"{len(errors)} of {quantity(len(results), 'example')} could not be used: {errors[0]}"
        )
        if not skip_bad:
            refused = BadInput(
                f"{line}; the others are predicted; with --skip_bad this is only a warning"
            )
            refused.results = results
            raise refused
        log.warning(line)
    return results


def _encode(
    task: Task, texts: Sequence[str], input: str | None
) -> tuple[list[Json], list[Example], list[Row]]:
    """Returns the objects of all examples; and the examples and rows of the objects without an
    `error`, in the same order.
    """
    results, examples, rows = list[Json](), list[Example](), list[Row]()
    # Names of the texts in training, if their number is known.
    names = task.config.finetune.column_list()[:-1] if task.usual is readers.usual else []
    is_none = task.no_label(task.labels)
    given = (_record_of_line(task, f"text {number}", text) for number, text in enumerate(texts, 1))
    for number, record in enumerate(gather(given, input, functools.partial(_records, task))):
        name = record.name if number >= len(texts) else {}
        try:
            found = readers.to_predict(task.read, task.config, record)
        except BadInput as error:
            results.append(name | {"error": str(error)})
            continue
        for question, example in enumerate(found, 1):
            results.append(result := name | ({"question": question} if len(found) > 1 else {}))
            try:
                if names and len(example.texts) != len(names):
                    raise BadInput(
                        f"{example.where}: the number of texts is {len(example.texts)}, and in "
                        f"training it was {len(names)} ({', '.join(names)})"
                    )
                add_example(task, example._replace(label=None), examples, rows)
                if example.label is not None and not is_none(example.label):
                    result["gold"] = example.label
            except BadInput as error:
                result["error"] = str(error)
    return results, examples, rows


def _outputs(
    stored: Stored,
    task: Task,
    rows: Sequence[Row],
    examples: Sequence[Example],
    step: int | None,
    batch_size: int | None,
    asked: Decoding,
) -> list[Json]:
    """Returns the values of `Task.outputs` for each example."""
    config = stored.config
    digest = hashlib.sha256(
        b"".join(tokens.tobytes() for row in rows for tokens in row.tokens)
    ).hexdigest()
    with opened(stored, step, {"the texts (sha256)": digest}) as model:
        log.info("predicting with step %d", model.step)
        size = batch_size or config.evaluation.batch_size or config.train.batch_size
        if isinstance(task, TextToText):
            predictions = Writer(task, model.recipe, model.mesh, batch_size or 0, asked)(
                model.params, rows
            )
            return task.outputs(predictions, rows, examples)
        # A few texts do not need a full batch.
        devices = meshes.row_devices(model.mesh)
        run = predictor(
            task, model.recipe, model.mesh, min(size, -(-len(rows) // devices) * devices)
        )
        predictions = _by_length(run, model.params, rows, config.data.segment_len, task.any_length)
    return task.outputs(predictions, rows, examples)


def _by_length(
    run: Predictor, params: Any, rows: Sequence[Row], longest: int, any_length: bool
) -> dict[str, np.ndarray]:
    """Returns the predictions of all rows in their order; short rows run in short batches."""
    numbers_by = collections.defaultdict[int, list[int]](list)
    for number, row in enumerate(rows):
        needed, length = max(map(len, row.tokens)), longest
        while any_length and length // 2 >= max(needed, SHORTEST):
            length //= 2
        numbers_by[length].append(number)
    order, parts = [], []
    for length, numbers in sorted(numbers_by.items()):
        order.append(numbers)
        parts.append(run(params, [rows[n] for n in numbers], segment_len=length)[1])
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *each: np.concatenate(each)[back], *parts)


def _records(task: Task, path: str) -> Iterator[Record]:
    """Returns the records of `--input`."""
    if formats.has_records(task.config.finetune.task, path):
        return formats.records(task.config, path)
    lines = read_lines(path)
    if lines and lines[0].startswith(formats.PREFIX) and path != "-":
        return formats.records(task.config, path)
    if path == "-" and "".join(lines).lstrip().startswith("{"):
        return formats.json_lines(path, lines)
    # Line n of the output belongs to line n of the input.
    every = isinstance(task, TextToText)
    numbered = ((number, line) for number, line in enumerate(lines, 1) if every or line.strip())
    return (_record_of_line(task, f"{path}, row {number}", line) for number, line in numbered)


def _record_of_line(task: Task, where: str, line: str) -> Record:
    """Splits a line at its tabs into texts, or into words for `token_classification`."""
    words = task.config.finetune.task == "token_classification"
    return Record(where, {"texts": line.split() if words else line.split("\t")})
