"""The rows of a task in batches, as a function of the step, and in order for an evaluation.

    row number = permutation_epoch(n % N)     n = first + (step - start) * B + row of the batch     epoch = n // N

This is the stream of pretraining with windows of one "token" (a row) and one window per block: (start, first, B) is an
entry of its data plan. So the batch size may change, and a resumed run reads what an undisturbed one would have read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence

import numpy as np

from xlnet_jax.config import Config
from xlnet_jax.data.batches.stream import Stream, Windows
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.task import Example, Row, Task, TaskBatch
from xlnet_jax.messages import quantity


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Encoded examples: the `loader.TrainingData` of a task."""

    path: str
    """Where they are from."""
    task: Task
    examples: tuple[Example, ...]
    rows: tuple[Row, ...]
    sha256: str
    """Of all pieces and labels, in order."""
    names: tuple[str, ...] = ("train",)

    @property
    def tokenizer(self) -> Tokenizer:
        """That of the task."""
        return self.task.tokenizer

    def stream(self, config: Config) -> Stream:
        """The shuffled rows."""
        return Stream((len(self.rows),), window=1, windows_per_block=1, bidirectional=False, seed=config.seeds.data)

    def build(self, config: Config, where: Windows, *, name: str, step: int, rows: np.ndarray) -> TaskBatch:
        """The batch of the rows that `where` names."""
        batch = self.task.batch([self.rows[number] for number in where.block_B], len(rows))
        return dataclasses.replace(batch, weight=batch.weight * where.exists_B)

    def check(self, config: Config) -> None:
        """Raises BadInput if there are fewer rows than one batch has."""
        if len(self.rows) < config.train.batch_size:
            raise BadInput(
                f"finetune.train={self.path} has {quantity(len(self.rows), 'row')}, fewer than train.batch_size="
                f"{config.train.batch_size}; use a smaller batch"
            )


def encode(task: Task, path: str, examples: Sequence[Example]) -> TaskData:
    """Encodes examples. Raises BadInput, with the file and row, for one that the task cannot use."""
    rows = rows_of(task, examples)
    digest = hashlib.sha256()
    for row in rows:
        for array in (*row.tokens, *row.segments, *(row.labels[name] for name in sorted(row.labels))):
            digest.update(str(array.shape).encode() + array.tobytes())
    return TaskData(path, task, tuple(examples), tuple(rows), digest.hexdigest())


def rows_of(task: Task, examples: Sequence[Example]) -> list[Row]:
    """The rows of all examples. Raises BadInput, with the place, for an example that the task cannot use."""
    rows: list[Row] = []
    low, high = task.texts
    for number, example in enumerate(examples):
        count = len(example.texts)
        if not low <= count <= high:
            wanted = f"{low}" if low == high else f"{low} or more" if high == math.inf else f"{low} to {high}"
            raise BadInput(f"{example.where}: the number of texts is {count}; this task takes {wanted}")
        if strange := [text for text in example.texts if not isinstance(text, str)]:
            raise BadInput(f"{example.where}: {str(strange[0])[:60]!r} is not a text; correct the row or remove it")
        if not all(map(str.strip, example.texts)):
            raise BadInput(f"{example.where}: a text is empty; correct the row or remove it")
        rows += task.encode(number, example)
        if len(rows[-1].tokens) != len(rows[0].tokens):
            raise BadInput(f"{example.where}: {count} texts, and {examples[0].where} has {len(examples[0].texts)}; "
                           "every example needs the same number")  # fmt: skip
    return rows
