"""A label for every word, such as a named-entity tag (BIO, BIOES) or a part of speech.

The label of a word is predicted at its first piece; other pieces have no label. A sentence that is
longer than the segment is cut between words into several rows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.config import ModelConfig
from xlnet_jax.data import layouts
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import metrics, readers
from xlnet_jax.finetune.heads import Linear, Summary, cross_entropy, high
from xlnet_jax.finetune.task import Example, Hidden, Labels, Outputs, Row, Scores, Task
from xlnet_jax.storage.files import Json


class TokenHead(nn.Module):
    """`XLNetForTokenClassification` of transformers: logits of every position."""

    config: ModelConfig
    features: int

    @nn.compact
    def logits(self, hidden: Hidden) -> jax.Array:
        """Returns the logits, [B, T, features], at least float32."""
        h_BTD = hidden.h_BCTD[:, 0]
        if self.config.member.parts.summary == "head":
            h_BTD = Summary(self.config, name="summary")(h_BTD, hidden.rows_B)
        return Linear(self.config, self.features, name="logits")(high(h_BTD))

    def losses(self, hidden: Hidden, labels: Labels) -> jax.Array:
        """Returns loss_B: the mean -log p(label) over the words of each row. The array
        `labels["label"]`, [B, T], is -1 where no word starts.
        """
        is_word_BT, logits_BTO = labels["label"] >= 0, self.logits(hidden)
        logits_NO = logits_BTO.reshape(-1, self.features)
        nll_BT = cross_entropy(logits_NO, labels["label"].reshape(-1)).reshape(is_word_BT.shape)
        nll_BT = jnp.where(is_word_BT, nll_BT, 0)
        return nll_BT.sum(axis=1) / jnp.maximum(is_word_BT.sum(axis=1), 1)

    def predictions(self, hidden: Hidden) -> Labels:
        """Returns the best label of every position."""
        return {"label": self.logits(hidden).argmax(axis=-1).astype(jnp.int32)}


class TokenClassification(Task):
    """Predicts one of `finetune.labels` for every word."""

    read = staticmethod(readers.token_classification)
    options = frozenset({"labels"})
    texts = (1, math.inf)
    any_length = False

    def __post_init__(self) -> None:
        """Raises BadInput if `finetune.metric` is not a score of the task."""
        if self.config.finetune.metric == "f1" and self.no_entities:
            raise BadInput(f"finetune.metric=f1: {self.no_entities}; use accuracy")
        super().__post_init__()

    @property
    def metrics(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("accuracy",) if self.no_entities else ("f1", "accuracy")

    @functools.cached_property
    def no_entities(self) -> str:
        """A message if the labels follow no tagging scheme, which F1 needs; else empty."""
        if metrics.scheme(self.labels):
            return ""
        return f"{metrics.NO_SCHEME}, and the labels are {', '.join(self.labels):.80}"

    def encode(self, number: int, example: Example) -> list[Row]:
        """Returns the fewest rows that hold all words. Raises BadInput for an unknown label."""
        T, layout = self.config.data.segment_len, self.layout
        normal = [self.tokenizer.normalized(self.tokenizer.space + word) for word in example.texts]
        tokens_N, count_W = self.tokenizer.encode_normalized(normal)
        words = np.split(tokens_N, np.cumsum(count_W)[:-1])
        # A word that is empty after normalisation, such as a single accent, needs a piece for its
        # label.
        words = [
            word if len(word) else np.array([self.tokenizer.special.unk], np.int32)
            for word in words
        ]
        labels = [0] * len(words)
        if example.label is not None:
            labels = [self.label_number(name, example) for name in example.label]
        rows = []
        while words:
            pieces = np.cumsum([len(word) for word in words])
            count = max(1, int(np.searchsorted(pieces, T - layout.extra(1), "right")))
            tokens, segments = layouts.sentences(layout, T, np.concatenate(words[:count]))
            starts = np.array([0, *pieces[: count - 1]]) + layout.origin(tokens) + layout.first
            label_T = np.full(T, -1, np.int32)
            label_T[starts] = labels[:count]
            rows.append(Row((tokens,), (segments,), {"label": label_T}, number, starts))
            words, labels = words[count:], labels[count:]
        return rows

    def head(self, config: ModelConfig) -> TokenHead:
        """See `TokenHead`."""
        return TokenHead(config, len(self.labels))

    def outputs(
        self, predictions: Labels, rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[Json]:
        """Returns `labels` of all words; `Row.more` has the positions of their first pieces."""
        outputs: list[Json] = [{"labels": []} for _ in examples]
        for row, label_T in zip(rows, predictions["label"], strict=True):
            outputs[row.example]["labels"] += [self.labels[label] for label in label_T[row.more]]
        return outputs

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the share of right words, and, with a tagging scheme, the F1 of entities."""
        true = [list(map(str, example.label)) for example in examples]
        predicted = [output["labels"] for output in outputs]
        words = [np.array([*itertools.chain(*side)]) for side in (true, predicted)]
        scores = {"accuracy": metrics.accuracy(*words)}
        if not self.no_entities:
            scores["f1"] = metrics.entity_f1(true, predicted, self.labels)
        return scores
