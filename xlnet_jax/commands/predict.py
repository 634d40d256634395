"""`xlnet-jax predict`: texts in, labels, scores, answers or vectors out, from a fine-tuned model."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.commands.texts import gathered, read_rows
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.evaluation import Predictor, predictor
from xlnet_jax.finetune.setup import rows_of, trained
from xlnet_jax.finetune.task import Example, Row
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.infer.opened import find, opened
from xlnet_jax.infer.options import Decoding
from xlnet_jax.infer.text_to_text import GREEDY, writer

log = logging.getLogger("xlnet_jax")

FIELDS = ("text", "texts", "sentence", "sentence1", "sentence2", "context", "question", "options", "tokens", "source")
"""Fields of a JSON object that hold texts, in the order of `Example.texts`; a list holds several."""

SHORTEST = 16
"""Tokens of the shortest batches; the next have twice as many."""


def predict(
    workdir: str, *, texts: Sequence[str] = (), input: str | None = None, step: int | None = None,
    batch_size: int | None = None, overrides: Sequence[str] = (), **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Predicts with the checkpoint of the best dev score.

    Args:
      workdir: of `xlnet-jax finetune`, or a folder that `xlnet-jax export` wrote of one.
      texts: examples; a tab separates the texts of one.
      input: a file with one example per line, of JSON objects if its name ends in .jsonl; `-` = stdin. Empty lines are
        left out, or refused by `text_to_text`.
      step: the checkpoint; None = the best one that is there, or the newest if none was scored.
      batch_size: rows at a time; None = as in the evaluations.
      options: of `text_to_text`: temperature, top_k, top_p and seed of `infer.options.Decoding`.

    Returns:
      One object for each example, in their order; see `Task.outputs` of the task.

    Raises BadInput: no fine-tuned model or good checkpoint in `workdir`, or an example that the task cannot use.
    """
    stored = find(workdir, overrides, step)
    config, task = stored.config, trained(stored.config, stored.tokenizer, workdir)
    asked = Decoding(**options)
    if asked != GREEDY and not isinstance(task, TextToText):
        raise BadInput(f"{workdir}: temperature, top_k, top_p and seed are for finetune.task=text_to_text, not for "
                       f"{config.finetune.task}; leave them out")  # fmt: skip
    words = config.finetune.task == "token_classification"
    # The last column is the label, which no example here needs; of embeddings it may be the second text.
    columns = config.finetune.column_list()[: 2 if config.finetune.task == "embeddings" else -1]
    given = ((f"text {number}", text) for number, text in enumerate(texts, 1))
    read = functools.partial(read_rows, every=isinstance(task, TextToText))  # line by line they belong to others
    examples = [example_of(row, where, words, columns) for where, row in gathered(given, input, read)]
    rows = rows_of(task, examples)
    digest = hashlib.sha256(b"".join(tokens.tobytes() for row in rows for tokens in row.tokens)).hexdigest()
    with opened(stored, step, {"the texts (sha256)": digest}) as model:
        log.info("predicting with step %d", model.step)
        size = batch_size or config.evaluation.batch_size or config.train.batch_size
        if isinstance(task, TextToText):
            predictions = writer(task, model.recipe, model.mesh, batch_size or 0, asked)(model.params, rows)
            return task.outputs(predictions, rows, examples)
        # Few texts need no whole batch.
        devices = meshes.row_devices(model.mesh)
        run = predictor(task, model.recipe, model.mesh, min(size, -(-len(rows) // devices) * devices))
        predictions = _by_length(run, model.params, rows, config.data.segment_len, task.any_length)
    return task.outputs(predictions, rows, examples)


def _by_length(
    run: Predictor, params: Any, rows: Sequence[Row], longest: int, any_length: bool
) -> dict[str, np.ndarray]:
    """The predictions of all rows in their order, with short ones in short batches if possible."""
    lengths = [longest >> k for k in range(longest.bit_length()) if longest >> k >= SHORTEST] if any_length else []
    needed_N = [max(map(len, row.tokens)) for row in rows]
    length_N = np.array([min((each for each in lengths if each >= needed), default=longest) for needed in needed_N])
    order, parts = [], []
    for length in np.unique(length_N).tolist():
        numbers = np.flatnonzero(length_N == length)
        order.append(numbers)
        parts.append(run(params, [rows[n] for n in numbers.tolist()], segment_len=length)[1])
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *each: np.concatenate(each)[back], *parts)


def example_of(row: str | dict[str, Any], where: str, words: bool, columns: Sequence[str] = ()) -> Example:
    """The example of a line, or of an object: its `columns`, or `FIELDS`. Raises BadInput for one without texts."""
    if isinstance(row, str):
        return Example(tuple(row.split() if words else row.split("\t")), None, where)
    values = [row[name] for name in (columns if row.keys() & {*columns} else FIELDS) if name in row]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BadInput(f"{where}: no text under one of the names {', '.join([*columns, *FIELDS])}")
    return Example(tuple(texts), None, where)
