"""Multiple choice: one of C options answers a question about a context, as in RACE.

Every option is a sequence of its own, `context SEP question+option SEP CLS`, and the softmax is over the options'
logits.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import layouts, metrics
from xlnet_jax.finetune.heads import cross_entropy, summary_logits
from xlnet_jax.finetune.task import Example, Hidden, Labels, Row

LETTERS = string.ascii_uppercase


class ChoiceHead(nn.Module):
    """`XLNetForMultipleChoice` of transformers: one logit for each sequence."""

    config: ModelConfig

    @nn.compact
    def logits(self, hidden: Hidden, *, deterministic: bool) -> jax.Array:
        """[B, C], at least float32."""
        return summary_logits(self.config, 1, hidden, deterministic=deterministic)[:, :, 0]

    def losses(self, hidden: Hidden, labels: Labels, *, deterministic: bool) -> jax.Array:
        """-log p(right option), loss_B; labels: label [B]."""
        return cross_entropy(self.logits(hidden, deterministic=deterministic), labels["label"])

    def predictions(self, hidden: Hidden) -> dict[str, jax.Array]:
        """The probabilities of the options."""
        return {"probability": jax.nn.softmax(self.logits(hidden, deterministic=True))}


class Choice:
    """The task `choice`. Labels are letters from A, or numbers from 0."""

    def __init__(self, config: Config, tokenizer: Tokenizer):
        self.config, self.tokenizer = config, tokenizer
        self.metric = config.finetune.metric or "accuracy"

    def encode(self, number: int, example: Example) -> list[Row]:
        """One row of as many sequences as there are options."""
        context, question, *options = example.texts
        room = self.config.finetune.segments * self.config.data.segment_len
        read = layouts.pieces(self.tokenizer, context)
        asked = [layouts.pieces(self.tokenizer, layouts.question_with_option(question, each)) for each in options]
        sequences = [layouts.choice(room, read, each, self.config.finetune.max_question) for each in asked]
        label = 0 if example.label is None else _index(example, len(options))
        tokens, segments = zip(*sequences, strict=True)
        return [Row(tokens, segments, {"label": np.array(label, np.int32)}, number)]

    def head(self, config: ModelConfig) -> ChoiceHead:
        """See `ChoiceHead`."""
        return ChoiceHead(config)

    def outputs(
        self, predictions: Mapping[str, np.ndarray], rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """The letter of the best option, and the probabilities of all."""
        return [{"label": LETTERS[p_C.argmax()], "scores": p_C.tolist()} for p_C in predictions["probability"]]

    def score(self, outputs: Sequence[Mapping[str, Any]], examples: Sequence[Example]) -> dict[str, float]:
        """The share of right answers."""
        right = [_index(example, len(each["scores"])) for each, example in zip(outputs, examples, strict=True)]
        return {"accuracy": metrics.accuracy(np.array(right), np.array([LETTERS.index(x["label"]) for x in outputs]))}


def _index(example: Example, options: int) -> int:
    label = str(example.label).strip()
    index = int(label) if label.isdecimal() else LETTERS.find(label.upper()) if len(label) == 1 else -1
    if not 0 <= index < min(options, len(LETTERS)):
        raise BadInput(
            f"{example.where}: the label {label!r} names none of {options} options; use A to {LETTERS[options - 1]}, or "
            f"0 to {options - 1}"
        )
    return index
