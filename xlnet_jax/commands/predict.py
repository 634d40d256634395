"""`xlnet-jax predict`: texts in, labels, scores, answers or vectors out, from a fine-tuned model."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.inputs import read_rows
from xlnet_jax.config import Config
from xlnet_jax.convert.source import PARAMS, open_source
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import session
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.data import rows_of
from xlnet_jax.finetune.evaluation import Predictor, best_step
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.setup import trained
from xlnet_jax.finetune.task import Example, Row
from xlnet_jax.infer.opened import opened
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")

FIELDS = ("text", "texts", "sentence", "sentence1", "sentence2", "context", "question", "options", "tokens")
"""Fields of a JSON object that hold texts, in the order of `Example.texts`; a list holds several."""

SHORTEST = 16
"""Tokens of the shortest batches; the next have twice as many."""


def predict(
    workdir: str, *, texts: Sequence[str] = (), input: str | None = None, step: int | None = None,
    batch_size: int | None = None, overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Predicts with the checkpoint of the best dev score.

    Args:
      workdir: of `xlnet-jax finetune`, or a folder that `xlnet-jax export` wrote of one.
      texts: examples; a tab separates the texts of one.
      input: a file with one example per line, of JSON objects if its name ends in .jsonl; `-` = stdin.
      step: the checkpoint; None = the best one that is there, or the newest if none was scored.
      batch_size: rows at a time; None = as in the evaluations.
      overrides: elastic or free config keys to change.

    Returns:
      One object for each example, in their order; see `Task.outputs` of the task.

    Raises:
      BadInput: no fine-tuned model or good checkpoint in `workdir`, or an example that the task cannot use.
    """
    config, tokenizer, given = _opened(workdir, overrides)
    task = trained(config, tokenizer, workdir)
    words = config.finetune.task == "token_classification"
    examples = [*(_of_line(text, f"text {number}", words) for number, text in enumerate(texts, 1)),
                *(_read(input, words) if input else ())]  # fmt: skip
    if not examples:
        raise BadInput("no text; give texts, or --input=FILE")
    rows = rows_of(task, examples)
    digest = hashlib.sha256(b"".join(tokens.tobytes() for row in rows for tokens in row.tokens)).hexdigest()
    equal = {"the texts (sha256)": digest, "--step": step, "--workdir": workdir}
    make_recipe = functools.partial(task_recipe, task, rows[0])
    with session(config, equal) as processes, opened(config, processes, make_recipe) as model:
        if given is None:
            if step is None:
                with Checkpoints(workdir) as checkpoints:
                    step = best_step(workdir, checkpoints.steps())
            params, found = model.restore(workdir, step)
            log.info("predicting with step %d", found)
        else:
            params = jax.tree.map(lambda leaf, form: jax.device_put(leaf, form.sharding), given, model.abstract_params)
        size = batch_size or config.evaluation.batch_size or config.train.batch_size
        # Few texts need no whole batch.
        devices = meshes.row_devices(model.mesh)
        predictor = Predictor(model.recipe, model.mesh, min(size, -(-len(rows) // devices) * devices))
        predictions = _by_length(predictor, params, rows, config.data.segment_len, task.any_length)
    return task.outputs(predictions, rows, examples)


def _opened(path: str, overrides: Sequence[str]) -> tuple[Config, Tokenizer, Any]:
    """Configuration, tokenizer, and the parameters of an exported folder; None if `path` is a work directory."""
    with files.translate_errors(path):
        listed = files.listing(files.resolve(path))
    if not any(name == f"{PARAMS}/" or name.endswith(".safetensors") for name in listed):
        return workdirs.load_config(path, list(overrides)), workdirs.tokenizer(path), None
    # A Hugging Face folder says nothing of our dtype; there, it is float32.
    with open_source(path, overrides=["--config.model.compute_dtype=float32", *overrides]) as found:
        return found.config, found.tokenizer, found.params()


def _by_length(
    predictor: Predictor, params: Any, rows: Sequence[Row], longest: int, any_length: bool
) -> dict[str, np.ndarray]:
    """The predictions of all rows in their order, with short ones in short batches if possible."""
    length_N = np.full(len(rows), longest)
    if any_length:
        needed_N = np.array([max(map(len, row.tokens)) for row in rows])
        while (length_N // 2 >= np.maximum(needed_N, SHORTEST)).any():
            length_N = np.where(length_N // 2 >= np.maximum(needed_N, SHORTEST), length_N // 2, length_N)
    order, parts = [], []
    for length in np.unique(length_N).tolist():
        mine = np.flatnonzero(length_N == length)
        order.append(mine)
        parts.append(predictor(params, [rows[n] for n in mine.tolist()], segment_len=length)[1])
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *each: np.concatenate(each)[back], *parts)


def _of_line(text: str, where: str, words: bool) -> Example:
    return Example(tuple(text.split() if words else text.split("\t")), None, where)


def _read(path: str, words: bool) -> Iterator[Example]:
    """The examples of a file. Raises BadInput."""
    for where, row in read_rows(path):
        yield _of_line(row, where, words) if isinstance(row, str) else _of_object(row, where)


def _of_object(fields: dict[str, Any], where: str) -> Example:
    texts: list[Any] = []
    for name in FIELDS:
        value = fields.get(name, [])
        texts += value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BadInput(f"{where}: no text under one of the names {', '.join(FIELDS)}")
    return Example(tuple(texts), None, where)
