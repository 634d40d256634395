"""A task: examples with labels, their rows of token pieces, a head, its loss, and scores.

    files or TFDS -> Example -> Row(s) -> TaskBatch -> transformer -> Hidden -> Head.losses       in a training step
                                                                            -> Head.predictions -> Task.outputs, .score

A task is data and a head: State, step, loop, checkpoints and resume are those of pretraining. `classification` is the
smallest complete task.

Letters: B rows, C sequences of a row (the options of a multiple choice, else 1), S segments of a sequence
(`finetune.segments`, else 1), T tokens of a segment. Sequences are padded on the left, so that every sequence ends at
the last position of its last segment; there is CLS, and what a head reads stands at -1. Padding is the tokenizer's
piece for it, which no text has; no position sees it, so the side of the padding changes nothing.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np

from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput

Array = Any
"""numpy.ndarray on the host, jax.Array on the device."""

Labels = Mapping[str, Array]
"""Arrays with rows first; the task names them."""


class Example(NamedTuple):
    """One labelled example, as read."""

    texts: tuple[str, ...]
    """As the task wants them: one sentence, two, (context, question), (context, question, option, option, ...)."""
    label: Any
    """As read: text, number, list of answers; None if there is none, as in `predict`."""
    where: str
    """For messages: `train.tsv, row 12`."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a batch before padding. An example has one, or several (the windows of a long context).

    All rows of a task have the same number C of sequences, and labels of the same names, shapes and dtypes; a row
    without labels has zeros. Labels that are positions count in the padded last segment: a piece that is k pieces
    before the end of its sequence is at T - k.
    """

    tokens: tuple[np.ndarray, ...]
    """C sequences, int32 [n] each with n <= S * T: pieces with SEP, and CLS as the last."""
    segments: tuple[np.ndarray, ...]
    """The same shapes: 0 for A, 1 for B, 2 for CLS."""
    labels: Mapping[str, np.ndarray]
    """Of one row."""
    example: int
    """Number of its example."""
    more: Any = None
    """What `outputs` needs of a row, such as the characters behind its pieces; never on a device."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TaskBatch:
    """B rows; K steps stacked add a leading axis to every array."""

    tokens: Array
    """int32 [B, C, S, T]; padding on the left."""
    segments: Array
    """int32 [B, C, S, T]."""
    labels: dict[str, Array]
    """Of the task."""
    weight: Array
    """float32 [B]; 0 = the row fills up the last batch of an evaluation."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hidden:
    """What a head reads."""

    h_BCTD: jax.Array
    """Content stream of the last segments after the last layer and the final dropout, compute dtype."""
    real_BCT: jax.Array
    """bool: not padding."""
    segments_BCT: jax.Array
    """int32, as in `Row`."""
    rows_B: jax.Array
    """Row numbers in the global batch: they key dropout masks."""


class Head(Protocol):
    """A Flax module. Its parameters are under `head`, their depth is `model.heads.DEPTH`.

    Build from `heads.Linear` (logical axes, float32 gradients); logits and losses are at least float32. For the export,
    `Task.export` has the names of its layers.
    """

    def losses(self, hidden: Hidden, labels: Labels, *, deterministic: bool) -> jax.Array:
        """loss_B, at least float32. Dropout needs an rng named `dropout`. All parameters must be used here: `init`
        runs it.

        In training these are the rows of one device (and micro-batch) only.
        """
        ...

    def predictions(self, hidden: Hidden) -> dict[str, jax.Array]:
        """Small arrays with rows first, without dropout: logits, beams, vectors."""
        ...


class Export(NamedTuple):
    """How Hugging Face's transformers has a model that was fine-tuned on a task."""

    architecture: str
    """Its class."""
    tensors: Mapping[str, str]
    """Of every dense layer and LayerNorm of the head: its path below `head/`, and its name there."""
    problem_type: str = ""
    """Key of config.json; "" = none."""
    labels: Callable[[FinetuneConfig], Sequence[str]] = lambda _: ()
    """The names of the outputs; none for a task whose outputs have no names."""


Read = Callable[[Config, str], list[Example]]
"""A reader: from the configuration and one source (`finetune.train` or `finetune.dev`) to its examples."""

OF_ALL_TASKS = frozenset({"task", "train", "dev", "columns", "metric", "tokenizer", "patience"})
"""Keys of `finetune` that every task reads."""


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """One kind of task: all that the program knows of it. Holds no array of a device.

    A sequence may have up to `length` pieces. The names of labels are in `finetune.labels`; if the user has set none,
    the caller has set those of the training examples, sorted.
    """

    config: Config
    tokenizer: Tokenizer

    read: ClassVar[Read]
    """From its files to its examples."""
    export: ClassVar[Export]
    """How transformers has its models."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Keys of `finetune` that it reads beside `OF_ALL_TASKS`."""
    texts: ClassVar[tuple[float, float]] = (1, 2)
    """The fewest and the most texts of an example."""
    any_length: ClassVar[bool] = True
    """Whether predictions mean the same in shorter segments, as those from the vector of CLS: then `predict` makes
    batches of texts of similar length."""
    ranking: ClassVar[tuple[str, ...]] = ()
    """See `metrics`, of a task with the same ones for all examples."""

    @classmethod
    def check_options(cls, config: Config) -> None:
        """Raises BadInput if the user has set a key of `finetune` that this task would not read."""
        usual, known = vars(FinetuneConfig()), OF_ALL_TASKS | cls.options
        for name, value in vars(config.finetune).items():
            if value != usual[name] and name not in known:
                read = ", ".join(f"finetune.{option}" for option in sorted(cls.options))
                raise BadInput(
                    f"finetune.{name}={value} has no meaning with finetune.task={config.finetune.task}, which reads "
                    f"{read or 'no such key'}; leave it at {usual[name]!r}"
                )

    @staticmethod
    def labels_of(examples: Sequence[Example]) -> set[str]:
        """The names of all labels of examples; empty for a task whose labels are no names."""
        del examples
        return set()

    @functools.cached_property
    def labels(self) -> list[str]:
        """The names of the labels by number."""
        return self.config.finetune.label_list()

    @property
    def length(self) -> int:
        """The most pieces of a sequence, in all its segments."""
        return self.config.finetune.segments * self.config.data.segment_len

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names in `score` that may rank checkpoints, the usual one first; all are better if they are higher."""
        return self.ranking

    @abc.abstractmethod
    def encode(self, number: int, example: Example) -> list[Row]:
        """The rows of example `number`. Raises BadInput, starting with `example.where`."""

    @abc.abstractmethod
    def head(self, config: ModelConfig) -> Any:
        """Its `Head`."""

    @abc.abstractmethod
    def outputs(
        self, predictions: Mapping[str, np.ndarray], rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """One JSON object for each example: label and scores, answer, vector.

        Args:
          predictions: `Head.predictions` of `rows`, in their order, on the host.
          rows: all rows of `examples`, which they number from 0.
        """

    @abc.abstractmethod
    def score(self, outputs: Sequence[Mapping[str, Any]], examples: Sequence[Example]) -> dict[str, float]:
        """The scores of what `outputs` has returned for labelled examples: sums divided once, on the host."""


def batch_of(rows: Sequence[Row], segments: int, segment_len: int, batch_size: int, pad: int) -> TaskBatch:
    """Pads rows with the piece `pad` into a batch of `batch_size`; missing ones repeat the first with weight 0."""
    filled = [*rows, *[rows[0]] * (batch_size - len(rows))]
    shape = (batch_size, len(rows[0].tokens), segments * segment_len)
    tokens, kinds = np.full(shape, pad, np.int32), np.zeros(shape, np.int32)
    for b, row in enumerate(filled):
        for c, (pieces, kind) in enumerate(zip(row.tokens, row.segments, strict=True)):
            tokens[b, c, shape[2] - len(pieces) :] = pieces
            kinds[b, c, shape[2] - len(pieces) :] = kind
    split = (*shape[:2], segments, segment_len)
    labels = {name: np.stack([row.labels[name] for row in filled]) for name in rows[0].labels}
    weight = (np.arange(batch_size) < len(rows)).astype(np.float32)
    return TaskBatch(tokens.reshape(split), kinds.reshape(split), labels, weight)


def metric_of(task: Task, config: Config) -> str:
    """The score that ranks checkpoints. Raises BadInput if the task has no score `finetune.metric`."""
    name = config.finetune.metric or task.metrics[0]
    if name not in task.metrics:
        raise BadInput(f"finetune.metric={name} is no score of {config.finetune.task}; use {' or '.join(task.metrics)}")
    return name
