"""Classes and numbers for a sentence or a pair: the tasks of GLUE, and the smallest complete `Task`s.

Classes are trained with the cross-entropy, numbers with the squared error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlnet_jax.config import FinetuneConfig, ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import layouts, metrics, readers
from xlnet_jax.finetune.heads import CLASSIFIER, Classifier, cross_entropy, probabilities, squared_error
from xlnet_jax.finetune.task import Example, Export, Row, Task

_LARGEST = float(np.finfo(np.float32).max)


class Classification(Task):
    """One of the classes in `finetune.labels`."""

    read = staticmethod(readers.labelled)
    options = frozenset({"labels", "segments"})
    export = Export(
        "XLNetForSequenceClassification", CLASSIFIER, "single_label_classification", FinetuneConfig.label_list
    )
    ranking = ("accuracy", "f1", "matthews")

    @staticmethod
    def labels_of(examples: Sequence[Example]) -> set[str]:
        """See `Task`."""
        return {str(example.label) for example in examples}

    def head(self, config: ModelConfig) -> Classifier:
        """See `Task`."""
        return Classifier(config, len(self.labels), cross_entropy)

    def encode(self, number: int, example: Example) -> list[Row]:
        """See `Task`."""
        label = 0 if example.label is None else index_of(str(example.label), self.labels, example.where)
        return [_sentence_row(self, number, example, np.int32(label))]

    def outputs(
        self, predictions: Mapping[str, np.ndarray], rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """`label`, and `scores`: the probability of each class."""
        del rows, examples
        return [
            {"label": self.labels[share_N.argmax()], "scores": dict(zip(self.labels, share_N.tolist(), strict=True))}
            for share_N in probabilities(predictions["logits"][:, 0])
        ]

    def score(self, outputs: Sequence[Mapping[str, Any]], examples: Sequence[Example]) -> dict[str, float]:
        """Accuracy, F1 (of the second of two classes, or the mean over several) and Matthews' correlation."""
        label_N = np.array([self.labels.index(str(example.label)) for example in examples])
        predicted_N = np.array([self.labels.index(output["label"]) for output in outputs])
        f1 = metrics.f1 if len(self.labels) == 2 else metrics.macro_f1
        scores = {"accuracy": metrics.accuracy, "f1": f1, "matthews": metrics.matthews}
        return {name: score(label_N, predicted_N) for name, score in scores.items()}


class Regression(Task):
    """A number."""

    read = staticmethod(readers.labelled)
    options = frozenset({"segments"})
    export = Export("XLNetForSequenceClassification", CLASSIFIER, "regression", lambda _: ["score"])
    ranking = ("pearson", "spearman")

    def head(self, config: ModelConfig) -> Classifier:
        """See `Task`."""
        return Classifier(config, 1, squared_error)

    def encode(self, number: int, example: Example) -> list[Row]:
        """See `Task`."""
        label = 0.0 if example.label is None else number_of(example)
        return [_sentence_row(self, number, example, np.float32(label))]

    def outputs(
        self, predictions: Mapping[str, np.ndarray], rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """`score`: the number."""
        del rows, examples
        return [{"score": float(value)} for value in predictions["logits"][:, 0, 0]]

    def score(self, outputs: Sequence[Mapping[str, Any]], examples: Sequence[Example]) -> dict[str, float]:
        """Pearson's and Spearman's correlation."""
        return correlations(examples, [output["score"] for output in outputs])


def _sentence_row(task: Task, number: int, example: Example, label: np.generic) -> Row:
    """The row of one sentence or a pair. Raises BadInput if normalisation leaves nothing of a text."""
    parts = [task.tokenizer.encode(text) for text in example.texts]
    if not all(map(len, parts)):
        raise BadInput(f"{example.where}: a text is empty after normalisation; correct the row or remove it")
    sequence = layouts.sentences(task.tokenizer.special, task.length, *parts)
    return Row((sequence.tokens,), (sequence.segments,), {"label": np.asarray(label)}, number)


def index_of(label: str, labels: Sequence[str], where: str) -> int:
    """The number of a label. Raises BadInput."""
    if label not in labels:
        some = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        raise BadInput(f"{where}: unknown label {label[:60]!r}; finetune.labels are {some}")
    return labels.index(label)


def number_of(example: Example) -> float:
    """The label as a number. Raises BadInput."""
    try:
        value = float(example.label)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise BadInput(f"{example.where}: the label {str(example.label)[:60]!r} is not a number of float32")
    return value


def correlations(examples: Sequence[Example], predicted: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation of predicted numbers with the labels."""
    label_N, predicted_N = np.array([number_of(example) for example in examples]), np.array(predicted)
    return {"pearson": metrics.pearson(label_N, predicted_N), "spearman": metrics.spearman(label_N, predicted_N)}
