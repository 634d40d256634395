"""Tasks that predict classes, a number or an option from the vector of CLS, as for GLUE and RACE.
They are the smallest complete `Task`s.

Classes are trained with the cross-entropy, numbers with the squared error. If a text may have any
number of classes, each class has a sigmoid and a cross-entropy. Every option of a multiple choice
is a separate sequence (`layouts.choice`), and the softmax is over the logits of the options.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence

import numpy as np
from scipy.special import expit, softmax

from xlnet_jax.config import ModelConfig
from xlnet_jax.data import layouts
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import metrics, readers, unlabelled
from xlnet_jax.finetune.heads import Classifier, binary_cross_entropy, cross_entropy, squared_error
from xlnet_jax.finetune.task import Example, Labels, Outputs, Scores, Task
from xlnet_jax.storage.files import Json

LETTERS = string.ascii_uppercase
_LARGEST = float(np.finfo(np.float32).max)


class Classification(Task):
    """Predicts one of the classes in `finetune.labels`."""

    read = staticmethod(readers.labelled)
    usual = staticmethod(readers.usual)
    options = frozenset({"labels", "segments"})
    summarised = True
    ranking = ("accuracy", "f1", "matthews")
    loss = staticmethod(cross_entropy)

    def target(self, example: Example) -> Labels:
        """See `Task`."""
        label = example.label
        return {"label": np.int32(0 if label is None else self.label_number(label, example))}

    def head(self, config: ModelConfig) -> Classifier:
        """See `Task`."""
        return Classifier(config, len(self.labels), self.loss, self.config.finetune.pooling)

    def output(self, prediction: Labels) -> Json:
        """Returns `label`, and `scores`: the probability of each class."""
        share_N = softmax(prediction["logits"][0].astype(np.float64))
        return {
            "label": self.labels[share_N.argmax()],
            "scores": dict(zip(self.labels, share_N.tolist(), strict=True)),
        }

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns accuracy, F1 and Matthews' correlation. With two classes F1 is the F1 of the
        second class; with more, the mean F1 of all classes.
        """
        label_N = np.array([self.labels.index(str(example.label)) for example in examples])
        predicted_N = np.array([self.labels.index(output["label"]) for output in outputs])
        f1 = metrics.f1 if len(self.labels) == 2 else metrics.macro_f1
        scores = {"accuracy": metrics.accuracy, "f1": f1, "matthews": metrics.matthews}
        return {name: score(label_N, predicted_N) for name, score in scores.items()}


class MultiLabelClassification(Classification):
    """Predicts any number of the classes in `finetune.labels`."""

    read = staticmethod(readers.multi_labelled)
    ranking = ("f1_micro", "f1_macro")
    loss = staticmethod(binary_cross_entropy)

    def target(self, example: Example) -> Labels:
        """Returns 1 for each class of the example, else 0."""
        label_C = np.zeros(len(self.labels), np.float32)
        label_C[[self.label_number(name, example) for name in example.label or ()]] = 1
        return {"label": label_C}

    def output(self, prediction: Labels) -> Json:
        """Returns `labels`, the classes with a probability above 0.5, and `scores`, the probability
        of each class.
        """
        share_C = expit(prediction["logits"][0].astype(np.float64))
        scores = dict(zip(self.labels, share_C.tolist(), strict=True))
        return {"labels": [name for name, share in scores.items() if share > 0.5], "scores": scores}

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the F1 over all labels together, and the mean F1 of the single labels."""
        label_NC = np.array([self.target(example)["label"] for example in examples], int)
        predicted_NC = np.array([[*output["scores"].values()] for output in outputs]) > 0.5
        return metrics.multi_label_f1(label_NC, predicted_NC)


class Regression(Task):
    """A number."""

    read = staticmethod(readers.labelled)
    usual = staticmethod(readers.usual)
    options = frozenset({"segments"})
    summarised = True
    ranking = ("pearson", "spearman")

    def target(self, example: Example) -> Labels:
        """See `Task`."""
        return {"label": np.float32(0 if example.label is None else number_of(example))}

    def head(self, config: ModelConfig) -> Classifier:
        """See `Task`."""
        return Classifier(config, 1, squared_error, self.config.finetune.pooling)

    def output(self, prediction: Labels) -> Json:
        """Returns `score`, the number."""
        return {"score": float(prediction["logits"][0, 0])}

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns Pearson's and Spearman's correlation."""
        return correlations(examples, [output["score"] for output in outputs])


class MultipleChoice(Task):
    """Predicts the right option for a question about a context. Labels are letters from A, or
    numbers from 0.
    """

    read = staticmethod(readers.multiple_choice)
    options = frozenset({"max_question", "segments"})
    no_label = staticmethod(lambda _: unlabelled.rule(("0", "1")))  # -1 = no label
    texts = (4, 2 + len(LETTERS))
    summarised = True
    ranking = ("accuracy",)

    @classmethod
    def labels_of(cls, examples: Sequence[Example]) -> set[str]:
        """See `Task`. Raises BadInput for labels that count the options from 1, as in ARC."""
        labels = {str(example.label).strip().upper() for example in examples}
        if any(map(str.isdecimal, labels)) and not labels & {"0", *LETTERS}:
            raise BadInput(
                f"{examples[0].where}: numbers of options count from 0, and no label is 0 or a "
                "letter; subtract 1 if yours count from 1, or use A to Z"
            )
        return set()

    def sequences(self, example: Example) -> list[layouts.Sequence]:
        """Returns a sequence for each option."""
        context, question, *options = example.texts
        context_N, most = self.tokenizer.encode(context), self.config.finetune.max_question
        # An option fills the blank of the question, or follows the question.
        parts = re.split("_+", question)
        asked = [each.join(parts) if len(parts) > 1 else f"{question} {each}" for each in options]
        return [
            layouts.choice(self.layout, self.length, context_N, self.tokenizer.encode(each), most)
            for each in asked
        ]

    def target(self, example: Example) -> Labels:
        """See `Task`."""
        return {"label": np.int32(0 if example.label is None else _option(example))}

    def head(self, config: ModelConfig) -> Classifier:
        """Returns a head with one logit for each sequence."""
        return Classifier(config, 1, cross_entropy, self.config.finetune.pooling)

    def gold(self, example: Example) -> str:
        """See `Task`."""
        return LETTERS[_option(example)]

    def output(self, prediction: Labels) -> Json:
        """Returns `label`, the letter of the best option, and `scores`, the probability of each
        option.
        """
        share_C = softmax(prediction["logits"][:, 0].astype(np.float64))
        return {"label": LETTERS[share_C.argmax()], "scores": share_C.tolist()}

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the share of right answers."""
        right = np.array([self.gold(example) for example in examples])
        chosen = np.array([output["label"] for output in outputs])
        return {"accuracy": metrics.accuracy(right, chosen)}


def _option(example: Example) -> int:
    """Returns the number of the right option. Raises BadInput for a label that names no option."""
    label, options = str(example.label).strip(), len(example.texts) - 2
    index = int(label) if label.isdecimal() else -1
    if len(label) == 1 and index < 0:
        index = LETTERS.find(label.upper())
    if not 0 <= index < min(options, len(LETTERS)):
        raise BadInput(
            f"{example.where}: the label {label!r} is not one of {options} options; use A to "
            f"{LETTERS[options - 1]}, or 0 to {options - 1}"
        )
    return index


def number_of(example: Example) -> float:
    """Returns the label as a number. Raises BadInput for a label that is not a finite float32."""
    try:
        value = float(example.label)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise BadInput(
            f"{example.where}: the label {str(example.label)[:60]!r} is not a finite float32 number"
        )
    return value


def correlations(examples: Sequence[Example], predicted: Sequence[float]) -> dict[str, float]:
    """Returns Pearson's and Spearman's correlation of predicted numbers with the labels."""
    label_N, predicted_N = np.array([*map(number_of, examples)]), np.array(predicted)
    return {
        "pearson": metrics.pearson(label_N, predicted_N),
        "spearman": metrics.spearman(label_N, predicted_N),
    }
