"""Scores a task on its dev set, as an `Evaluator` of the training loop, and predicts examples."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import Diverged
from xlnet_jax.finetune.setup import TaskData
from xlnet_jax.finetune.task import Row, Task, TaskBatch
from xlnet_jax.messages import quantity
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.run.progress import loss_text, number
from xlnet_jax.run.retries import until_it_works
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train.evaluation import NO_HOOKS, Hooks, best, results, rows_at_once
from xlnet_jax.train.recipe import Recipe

log = logging.getLogger("xlnet_jax")


@dataclasses.dataclass(frozen=True)
class InOrder:
    """Dispatches (`loader.Dispatches`) of one batch each, which read every row once, `size` rows
    per batch. This host feeds the rows `local` of each batch.
    """

    task: Task
    rows: Sequence[Row]
    size: int
    segment_len: int
    local: np.ndarray

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def __call__(self, index: int) -> Any:
        """Returns batch `index` with a leading axis of length 1. Rows of weight 0 fill up the last
        batch.
        """
        chosen = self.rows[index * self.size : (index + 1) * self.size]
        return jax.tree.map(
            lambda x: x[None, self.local], self.task.batch(chosen, self.size, self.segment_len)
        )


Predictor = Callable[..., tuple[np.ndarray, dict[str, np.ndarray]]]
"""Type of the function that `predictor` makes."""
Write = Callable[..., dict[str, np.ndarray]]
"""Function from parameters, rows and hooks to the predictions of a task that writes texts; see
`infer.text_to_text.Writer`.
"""


def predictor(task: Task, recipe: Recipe, mesh: Mesh, batch_size: int = 0) -> Predictor:
    """Makes a function from parameters and N rows to loss_N and the predictions of the head, in the
    order of the rows, on every host.

    The function takes `batch_size` rows at a time (0 = as configured) and compiles once for each
    value of its argument `segment_len` (None = as configured).
    """
    config, size = recipe.config, rows_at_once(recipe.config, mesh, batch_size)

    def run(params: Any, batches: TaskBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        batch = jax.tree.map(lambda x: x[0], batches)
        with meshes.RULES.applied():
            return recipe.model.evaluate(params, batch)

    # Replicated, because every host scores all predictions.
    compiled = jax.jit(run, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def predict(
        params: Any, rows: Sequence[Row], hooks: Hooks = NO_HOOKS, segment_len: int | None = None
    ) -> Any:
        length = segment_len or config.data.segment_len
        batches = InOrder(task, rows, size, length, meshes.rows_here(size, mesh))
        parts = results(
            batches, config, lambda batch: compiled(params, meshes.place(batch, mesh, size)), hooks
        )
        # Drops the rows that fill up the last batch.
        return jax.tree.map(lambda *arrays: np.concatenate(arrays)[: len(rows)], *parts)

    return predict


class TaskEvaluator:
    """Scores a dev set, and writes the outputs of the best evaluation to `predictions.jsonl` in the
    work directory.
    """

    def __init__(
        self, recipe: Recipe, mesh: Mesh, dev: TaskData, workdir: str, write: Write | None
    ) -> None:
        self._predict, self._dev = predictor(dev.task, recipe, mesh), dev
        self._write, self._workdir = write, workdir

    def __call__(self, params: Any, hooks: Hooks = NO_HOOKS) -> Json:
        """Returns `score` (by `Task.metric`), all scores of the task by name, the mean `loss` as in
        training, and `rank` = -score.
        """
        task, dev = self._dev.task, self._dev
        loss_N, predictions = self._predict(params, dev.rows, hooks)
        loss = np.average(loss_N.astype(np.float64), weights=predictions.get("weight"))
        if self._write is not None:
            predictions = self._write(params, dev.rows, hooks)
        outputs = task.outputs(predictions, dev.rows, dev.examples)
        scores = task.score(outputs, dev.examples)
        score = scores[task.metric]
        if not math.isfinite(score):
            raise Diverged(
                f"{task.metric} on the dev set is {score}; lower optimizer.learning_rate"
            )
        earlier = best(read_jsonl(self._workdir, "evaluations.jsonl"))
        if jax.process_index() == 0 and (earlier is None or score > earlier["score"]):
            lines = [
                {"where": each.where, "texts": each.texts, "gold": task.gold(each), **output}
                for each, output in zip(dev.examples, outputs, strict=True)
            ]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            path = os.path.join(self._workdir, "predictions.jsonl")
            write = functools.partial(files.write, path, text.encode())
            until_it_works(write, path, task.config.checkpoint.io_deadline_seconds, lambda: None)
        return {"loss": number(loss), "score": score, **scores, "rank": -score}

    def described(self, scores: Json) -> str:
        """Returns the ranking score and the loss, for the log."""
        examples = quantity(len(self._dev.examples), "dev example")
        return (
            f"{self._dev.task.metric} {scores['score']:.4f}, "
            f"loss {loss_text(scores['loss'])} on {examples}"
        )
