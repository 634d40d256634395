"""A task: examples with labels, their rows of token pieces, a head, its loss, and scores.

    files or TFDS -> Example -> Row(s) -> TaskBatch -> transformer -> Hidden
    Hidden -> losses of the head, in a training step
    Hidden -> predictions of the head -> Task.outputs -> Task.score

A task is data and a head: State, step, loop, checkpoints and resume are the same as in pretraining.
It defines four methods: `sequences` lays out an example, `target` makes its label, `head` makes the
module that reads the vectors, `output` makes the result of `predict`. `classification` is the
smallest complete task.

Letters: B rows, C sequences of a row (the options of a multiple choice, else 1), S segments of a
sequence (`finetune.segments`, else 1), T tokens of a segment. XLNet pads sequences on the left; its
CLS is the last position of the last segment. Members whose texts end (`Member.bounded`) pad on the
right; their CLS is the first piece. The head reads CLS; GPT-2 has no CLS, so its head reads the
last piece. No text contains the padding piece, and no position of a text sees it.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.data import layouts
from xlnet_jax.data.batches.stream import ShuffledBlocks, Stream
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import unlabelled
from xlnet_jax.storage.files import Json

Array = Any
"""numpy.ndarray on the host, jax.Array on the device."""

Labels = Mapping[str, Array]
"""Labels or predictions: arrays, usually with rows first, under names that the task chooses."""

Outputs = Sequence[Json]
"""Results of `Task.outputs`: a JSON object for each example."""

Scores = dict[str, float]
"""Scores of a split by the name of the metric."""


class Example(NamedTuple):
    """One labelled example, as read."""

    texts: tuple[str, ...]
    """The texts in the order of the task: a sentence, two sentences, (context, question), or
    (context, question, option, option, ...).
    """
    label: Any
    """The label as read: text, number, or tuple; None without a label, as in `predict`."""
    where: str
    """Place in messages, such as `train.tsv, row 12`."""


class Row(NamedTuple):
    """One row of a batch before padding. An example has one row, or several for the windows of a
    long context.

    All rows of a task have the same number C of sequences, and labels of the same names, shapes and
    dtypes; a row without labels has zeros. Labels that are positions refer to the padded last
    segment: with padding on the left, the k-th piece from the end of a sequence is at T - k; with
    padding on the right, piece k is at k.
    """

    tokens: tuple[np.ndarray, ...]
    """C sequences, each int32 [n] with n <= S * T: pieces with SEP and CLS; see `layouts`."""
    segments: tuple[np.ndarray, ...]
    """Segment kinds of the tokens: 0 for A, 1 for B, 2 for a CLS at the end."""
    labels: Labels
    example: int
    """Number of the example."""
    more: Any = None
    """Host data for `outputs`, such as the characters of the pieces."""


def as_one_row(rows: Sequence[Row]) -> Row:
    """Joins the sequences of several rows into one row; their labels must be per sequence."""
    if len(rows) == 1:
        return rows[0]
    tokens, segments = (
        sum((getattr(row, name) for row in rows), ()) for name in ("tokens", "segments")
    )
    labels = {name: np.concatenate([row.labels[name] for row in rows]) for name in rows[0].labels}
    return Row(tokens, segments, labels, rows[0].example)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TaskBatch:
    """B rows; K stacked steps add a leading axis to every array."""

    tokens: Array
    """int32 [B, C, S, T]; padded on the side of the member."""
    segments: Array
    """int32 [B, C, S, T]."""
    labels: dict[str, Array]
    weight: Array
    """float32 [B]; 0 = the row fills up the last batch of an evaluation."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hidden:
    """The input of a head."""

    h_BCTD: jax.Array
    """The content stream of the last segments, after the last layer and the dropout before a head;
    compute dtype.
    """
    real_BCT: jax.Array
    """bool: False at padding."""
    segments_BCT: jax.Array
    """int32: segment kinds as in `Row`."""
    rows_B: jax.Array
    """Numbers of the rows in the whole batch; dropout masks depend on them."""

    cls: str = dataclasses.field(default="last", metadata={"static": True})
    """Position of CLS; see `members.member.Member`."""

    @property
    def last_BCD(self) -> jax.Array:
        """The vectors of the last pieces, with padding on either side."""
        last_BC = self.real_BCT.shape[2] - 1 - self.real_BCT[:, :, ::-1].argmax(axis=2)
        return jnp.take_along_axis(self.h_BCTD, last_BC[:, :, None, None], axis=2)[:, :, 0]

    @property
    def cls_BCD(self) -> jax.Array:
        """The vectors of CLS; without CLS, the vectors of the last pieces, which see all other
        pieces.
        """
        if self.cls == "none":
            return self.last_BCD
        return self.h_BCTD[:, :, 0 if self.cls == "first" else -1]


OF_ALL_TASKS = frozenset(
    {
        "task",
        "train",
        "dev",
        "dev_share",
        "epochs",
        "columns",
        "metric",
        "tokenizer",
        "patience",
        "drop_unlabelled",
    }
)
"""Keys of `finetune` that every task reads."""


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """A kind of task. It holds no device arrays.

    A sequence has up to `length` pieces. The names of labels are in `finetune.labels`; if the user
    sets none, `setup.prepare` sets the sorted names from the training examples.
    """

    config: Config
    tokenizer: Tokenizer

    read: ClassVar[Any]
    """The `readers.Read` of the task."""
    usual: ClassVar[Any] = None
    """A function of `readers` that finds the names of the texts and the label in a record, for
    tasks whose data sets use different names.
    """
    options: ClassVar[frozenset[str]] = frozenset()
    """Keys of `finetune` that the task reads besides `OF_ALL_TASKS`."""
    summarised: ClassVar[bool] = False
    """Whether the head reads one vector of a sequence, by `finetune.pooling` if
    `parts.summary=head`.
    """
    texts: ClassVar[tuple[float, float]] = (1, 2)
    """The fewest and the most texts of an example."""
    any_length: ClassVar[bool] = True
    """Whether predictions are independent of the segment length; if so, `predict` may batch texts
    of similar length.
    """
    several_lengths: ClassVar[bool] = False
    """Whether the batches of a run have several lengths; see `stream`."""
    no_label: ClassVar[Any] = staticmethod(unlabelled.rule)
    """A function from the names of the labels to a test for missing labels; see `unlabelled`."""
    ranking: ClassVar[tuple[str, ...]] = ()
    """The `metrics` of a task whose metrics do not depend on the configuration."""

    def __post_init__(self) -> None:
        """Raises BadInput if `finetune.metric` is not a score of the task."""
        if self.metric not in self.metrics:
            raise BadInput(
                f"finetune.metric={self.metric} is no score of {self.config.finetune.task}; use "
                f"{' or '.join(self.metrics)}"
            )

    @classmethod
    def check_options(cls, config: Config) -> None:
        """Raises BadInput if the user has set a key of `finetune` that this task does not read."""
        usual, options = vars(FinetuneConfig()), cls.options
        if cls.summarised and config.model.member.parts.summary == "head":
            options |= {"pooling"}
        for name, value in vars(config.finetune).items():
            if value != usual[name] and name not in OF_ALL_TASKS | options:
                read = ", ".join(f"finetune.{option}" for option in sorted(options))
                raise BadInput(
                    f"finetune.{name}={value} has no meaning with "
                    f"finetune.task={config.finetune.task}, which reads {read or 'no such key'}; "
                    f"leave it at {usual[name]!r}"
                )

    @classmethod
    def labels_of(cls, examples: Sequence[Example]) -> set[str]:
        """Returns the names of all labels of the examples; empty for a task whose labels are not
        names.

        Some tasks raise BadInput for a set of labels that they cannot use.
        """
        if "labels" not in cls.options:
            return set()
        is_none, labels = unlabelled.rule(), [example.label for example in examples]
        each = [x if isinstance(x, tuple) else (x,) for x in labels if not is_none(x)]
        names = {str(name) for words in each for name in words}
        others = names - unlabelled.MINUS_ONE
        return others if len(others) > 2 and unlabelled.are_counted(others) else names

    @functools.cached_property
    def labels(self) -> list[str]:
        """The names of the labels; the number of a label is its index."""
        return self.config.finetune.label_list()

    def label_number(self, label: Any, example: Example) -> int:
        """Returns the number of a label. Raises BadInput, with the place of the example, for an
        unknown label.
        """
        if str(label) not in self.labels:
            some = ", ".join(self.labels[:10]) + (", ..." if len(self.labels) > 10 else "")
            raise BadInput(
                f"{example.where}: unknown label {str(label)[:60]!r}; finetune.labels are {some}"
            )
        return self.labels.index(str(label))

    @property
    def layout(self) -> layouts.Layout:
        """The layout of sequences."""
        return layouts.Layout(self.tokenizer.special, self.config.model.member)

    @property
    def length(self) -> int:
        """The most pieces of a sequence, in all its segments."""
        return self.config.finetune.segments * self.config.data.segment_len

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the scores that may rank checkpoints, the default first. Higher is
        better.
        """
        return self.ranking

    @property
    def metric(self) -> str:
        """The score that ranks checkpoints."""
        return self.config.finetune.metric or self.metrics[0]

    def encode(self, number: int, example: Example) -> list[Row]:
        """Returns the rows of example `number`, by default one row. Raises BadInput; the message
        starts with `example.where`.
        """
        tokens, segments = zip(*self.sequences(example), strict=True)
        return [Row(tokens, segments, self.target(example), number)]

    def sequences(self, example: Example) -> Sequence[layouts.Sequence]:
        """Returns the sequences of a row, by default one sequence of all texts. Raises BadInput for
        a text that is empty after normalisation.
        """
        parts = [self.tokenizer.encode(text) for text in example.texts]
        if not all(map(len, parts)):
            raise BadInput(
                f"{example.where}: a text is empty after normalisation; "
                "correct the row or remove it"
            )
        return [layouts.sentences(self.layout, self.length, *parts)]

    def target(self, example: Example) -> Labels:
        """Returns the labels of a row, zeros for an example without a label. Raises BadInput for a
        label that the task cannot use.
        """
        return {}

    def gold(self, example: Example) -> Any:
        """Returns the label of an example in the form of `outputs`, for JSON."""
        return example.label

    def stream(self, rows: Sequence[Row]) -> Stream:
        """Returns the stream of the rows of each step of a run, by default shuffled. A step may
        also read 2^k times as many rows of 1 / 2^k the length.
        """
        return Stream(
            (ShuffledBlocks(len(rows), 1, 1, self.config.seeds.data),), bidirectional=False
        )

    def head(self, config: ModelConfig) -> Any:
        """Returns the head, a Flax module. Its parameters are under `head`; their depth is
        `model.layers.HEAD_DEPTH`.

            losses(hidden, labels)    loss_B. It must use all parameters, because `init` runs it. In
                                      training it gets the rows of one device (and micro-batch).
            predictions(hidden)       small arrays with rows first, without dropout: logits,
                                      vectors

        Build a head from `heads.Linear` (logical axes, float32 gradients). Logits and losses are at
        least float32. Dropout needs an rng named `dropout`. For the export, `Peer.heads` has the
        names of its layers.
        """
        raise NotImplementedError

    def outputs(
        self, predictions: Labels, rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[Json]:
        """Returns one JSON object for each example, by default the `output` of its row.

        `predictions` of the head are arrays on the host, for all rows of `examples` in their order.
        """
        return [
            self.output({name: array[b] for name, array in predictions.items()})
            for b in range(len(rows))
        ]

    def output(self, prediction: Labels) -> Json:
        """Returns the JSON object of a row, such as label and scores, answer or vector. The default
        `outputs` calls it.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the scores of the `outputs` of labelled examples, computed on the host over the
        whole split.
        """

    def batch(self, rows: Sequence[Row], size: int, segment_len: int | None = None) -> TaskBatch:
        """Pads rows into a batch of `size`; copies of the first row, with weight 0, fill it up.
        `segment_len`: None = as configured.
        """
        T = segment_len or self.config.data.segment_len
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        shape = (size, len(rows[0].tokens), self.config.finetune.segments * T)
        tokens = np.full(shape, self.tokenizer.special.pad, np.int32)
        kinds = np.zeros_like(tokens)
        for b, row in enumerate(filled):
            for c, (pieces, kind) in enumerate(zip(row.tokens, row.segments, strict=True)):
                first = self.layout.origin(pieces) % shape[2]
                place = slice(first, first + len(pieces))
                tokens[b, c, place], kinds[b, c, place] = pieces, kind
        labels = {name: np.stack([row.labels[name] for row in filled]) for name in rows[0].labels}
        weight = (np.arange(size) < len(rows)).astype(np.float32)
        tokens, kinds = (x.reshape(*shape[:2], -1, T) for x in (tokens, kinds))
        return TaskBatch(tokens, kinds, labels, weight)
