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
from typing import Any

import jax
import numpy as np

from xlnet_jax.config import Config
from xlnet_jax.data.batches.stream import ShuffledBlocks, Stream, Windows
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.task import Example, Row, Task, TaskBatch, batch_of
from xlnet_jax.messages import quantity


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Encoded examples: the `loader.TrainingData` of a task."""

    path: str
    """Where they are from."""
    tokenizer: Tokenizer
    examples: tuple[Example, ...]
    rows: tuple[Row, ...]
    sha256: str
    """Of all pieces and labels, in order."""
    names: tuple[str, ...] = ("train",)

    def stream(self, config: Config) -> Stream:
        """The shuffled rows."""
        return Stream((ShuffledBlocks(len(self.rows), 1, 1, config.seeds.data),), bidirectional=False)

    def build(self, config: Config, where: Windows, *, name: str, step: int, rows: np.ndarray) -> TaskBatch:
        """The batch of the rows that `where` names."""
        del name, step
        chosen = [self.rows[number] for number in where.block_B]
        batch = batch_of(
            chosen, config.finetune.segments, config.data.segment_len, len(rows), self.tokenizer.special.pad
        )
        return dataclasses.replace(batch, weight=batch.weight * where.exists_B)

    def check(self, config: Config) -> None:
        """Raises BadInput if there are fewer rows than one batch has."""
        if len(self.rows) < config.train.batch_size:
            raise BadInput(
                f"finetune.train={self.path} has {quantity(len(self.rows), 'row')}, fewer than train.batch_size="
                f"{config.train.batch_size}; use a smaller batch"
            )


@dataclasses.dataclass(frozen=True)
class InOrder:
    """All rows once, `batch_size` at a time: `loader.Dispatches` of one batch each.

    Attributes:
      pad: the piece that pads.
      local: which rows of a batch this host feeds.
    """

    rows: Sequence[Row]
    segments: int
    segment_len: int
    batch_size: int
    pad: int
    local: np.ndarray

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __call__(self, index: int) -> Any:
        """Batch with a leading axis of one; the last one is filled up with rows of weight 0."""
        first = index * self.batch_size
        chosen = self.rows[first : first + self.batch_size]
        batch = batch_of(chosen, self.segments, self.segment_len, self.batch_size, self.pad)
        return jax.tree.map(lambda x: x[None, self.local], batch)


def encode(task: Task, tokenizer: Tokenizer, path: str, examples: Sequence[Example]) -> TaskData:
    """Encodes examples. Raises BadInput, with the file and row, for one that the task cannot use."""
    if not examples:
        raise BadInput(f"{path} has no examples")
    rows = rows_of(task, examples)
    digest = hashlib.sha256()
    for row in rows:
        for array in (*row.tokens, *row.segments, *(row.labels[name] for name in sorted(row.labels))):
            digest.update(str(array.shape).encode() + array.tobytes())
    return TaskData(path, tokenizer, tuple(examples), tuple(rows), digest.hexdigest())


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
