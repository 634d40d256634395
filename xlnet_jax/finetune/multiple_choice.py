"""Multiple choice: one of C options answers a question about a context, as in RACE.

Every option is a sequence of its own, `context SEP question+option SEP CLS`, and the softmax is over the options'
logits.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlnet_jax.config import ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import layouts, metrics, readers
from xlnet_jax.finetune.heads import CLASSIFIER, Classifier, cross_entropy, probabilities
from xlnet_jax.finetune.task import Example, Export, Row, Task

LETTERS = string.ascii_uppercase


class MultipleChoice(Task):
    """Labels are letters from A, or numbers from 0."""

    read = staticmethod(readers.multiple_choice)
    options = frozenset({"max_question", "segments"})
    export = Export("XLNetForMultipleChoice", CLASSIFIER)
    texts = (4, 2 + len(LETTERS))
    ranking = ("accuracy",)

    def encode(self, number: int, example: Example) -> list[Row]:
        """One row of as many sequences as there are options."""
        context, question, *options = example.texts
        context_N, most = self.tokenizer.encode(context), self.config.finetune.max_question
        asked = [self.tokenizer.encode(layouts.question_with_option(question, each)) for each in options]
        sequences = [layouts.choice(self.tokenizer.special, self.length, context_N, each, most) for each in asked]
        label = 0 if example.label is None else _index(example, len(options))
        tokens, segments = zip(*sequences, strict=True)
        return [Row(tokens, segments, {"label": np.array(label, np.int32)}, number)]

    def head(self, config: ModelConfig) -> Classifier:
        """`XLNetForMultipleChoice` of transformers: one logit for each sequence."""
        return Classifier(config, 1, cross_entropy)

    def outputs(
        self, predictions: Mapping[str, np.ndarray], rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """`label`: the letter of the best option, and `scores`: the probabilities of all."""
        del rows, examples
        share_BC = probabilities(predictions["logits"][:, :, 0])
        return [{"label": LETTERS[p_C.argmax()], "scores": p_C.tolist()} for p_C in share_BC]

    def score(self, outputs: Sequence[Mapping[str, Any]], examples: Sequence[Example]) -> dict[str, float]:
        """The share of right answers."""
        right = [_index(example, len(each["scores"])) for each, example in zip(outputs, examples, strict=True)]
        return {"accuracy": metrics.accuracy(np.array(right), np.array([LETTERS.index(x["label"]) for x in outputs]))}


def _index(example: Example, options: int) -> int:
    label = str(example.label).strip()
    index = int(label) if label.isdecimal() else LETTERS.find(label.upper()) if len(label) == 1 else -1
    if not 0 <= index < min(options, len(LETTERS)):
        letters, numbers = f"A to {LETTERS[options - 1]}", f"0 to {options - 1}"
        raise BadInput(
            f"{example.where}: the label {label!r} is none of {options} options; use {letters}, or {numbers}"
        )
    return index
