"""Answers that are spans of a paragraph: SQuAD 1.1 and 2.0.

    p(start) = softmax_l( W h_l )
    p(end | start) = softmax_l( W1 LN(tanh(W0 [h_l ; h_start])) )
    no answer: logit W3 Drop(tanh(W2 [sum_l p(start = l) h_l ; h_CLS]))
    loss = (CE(start) + CE(end)) / 2 + BCE(no answer) / 2

over the positions l of the paragraph and CLS. This is XLNet's head. All other members have one
dense layer that predicts start and end independently. Its softmax covers all positions, also
padding, as in Google's code and in transformers. The score of an answer is the sum of both logits;
`no_answer` is the sum of both logits of CLS minus the score of the best answer.

    [start_l, end_l] = W h_l          loss = (CE(start) + CE(end)) / 2

In training the end is conditioned on the true start. In prediction the end is conditioned on each
of the `finetune.beam` best starts. The `finetune.beam` best ends of each start are ranked by
log p(start) + log p(end | start), or by the sum of logits. A long paragraph is read in overlapping
windows. In a window without the answer, start and end are CLS. If several windows contain a start,
only the window with the most context around it counts. (`XLNetForQuestionAnswering` of transformers
conditions "no answer" on the true start in training, and adds probabilities, not their logarithms.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.config import ModelConfig
from xlnet_jax.data import layouts, offsets
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import metrics, readers
from xlnet_jax.finetune.heads import Linear, Summary, cross_entropy, high
from xlnet_jax.finetune.task import Example, Hidden, Labels, Outputs, Row, Scores, Task
from xlnet_jax.model.layers import HEAD_DEPTH, Dropout, layer_norm, parameter, product
from xlnet_jax.storage.files import Json

FAR = -1e30
"""Logit of a position that cannot start or end an answer."""


class StartLogits(nn.Module):
    """Logits of all positions as the start."""

    config: ModelConfig

    @nn.compact
    def __call__(self, h_BTD: jax.Array) -> jax.Array:
        """Returns the logits, [B, T]."""
        return Linear(self.config, 1, name="dense")(high(h_BTD))[..., 0]


class EndLogits(nn.Module):
    """Logits of all positions as the end, given each of K starts."""

    config: ModelConfig

    @nn.compact
    def __call__(self, h_BTD: jax.Array, start_BKD: jax.Array) -> jax.Array:
        """Returns the logits, [B, K, T], for the vectors of K starts."""
        x_BKTD = jnp.tanh(Joined(self.config, name="dense_0")(h_BTD, start_BKD))
        B, K, T, D = x_BKTD.shape
        x_BND = layer_norm("norm", self.config, HEAD_DEPTH)(x_BKTD).reshape(B, K * T, D)
        return Linear(self.config, 1, name="dense_1")(high(x_BND)).reshape(B, K, T)


class Joined(nn.Module):
    """W [h_t ; start_k] + b for all t and k, computed as W_h h_t + W_s start_k + b, without storing
    the concatenated vectors.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, h_BTD: jax.Array, start_BKD: jax.Array) -> jax.Array:
        """Returns [B, K, T, D]. The parameters are the same as in a `Linear` from 2 D to D."""
        D = h_BTD.shape[-1]
        kernel = parameter(self, "kernel", (2 * D, D), ("embed", None), "kernel", HEAD_DEPTH)
        bias_D = parameter(
            self, "bias", (D,), (None,), "vector", HEAD_DEPTH, nn.initializers.zeros, decays=False
        )
        of_h_BTD, of_start_BKD = (
            product("bqd,dc->bqc", x, part)
            for x, part in ((h_BTD, kernel[:D]), (start_BKD, kernel[D:]))
        )
        return (
            of_h_BTD[:, None]
            + of_start_BKD[:, :, None]
            + bias_D[None, None, None].astype(h_BTD.dtype)
        )


class AnswerClass(nn.Module):
    """The logit that there is no answer."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: Hidden, start_BT: jax.Array) -> jax.Array:
        """Returns the logit [B], from the vector of CLS and the mean of all vectors, weighted by
        the softmax of `start_BT`.
        """
        h_BTD = hidden.h_BCTD[:, 0]
        start_BD = jnp.einsum("bt,btd->bd", jax.nn.softmax(start_BT).astype(h_BTD.dtype), h_BTD)
        x_B1E = jnp.concatenate([start_BD, hidden.cls_BCD[:, 0]], axis=-1)[:, None]
        x_B1D = jnp.tanh(Linear(self.config, self.config.d_model, name="dense_0")(x_B1E))
        x_B1D = Dropout(self.config.dropout)(x_B1D, hidden.rows_B)
        return Linear(self.config, 1, use_bias=False, name="dense_1")(high(x_B1D))[:, 0, 0]


class AnswerHead(nn.Module):
    """XLNet's head: the start, the end given a start, and whether an answer exists."""

    config: ModelConfig
    beam: int

    def setup(self) -> None:
        """Declares the layers under the names of the original's checkpoints and of transformers."""
        self.start_logits = StartLogits(self.config)
        self.end_logits = EndLogits(self.config)
        self.answer_class = AnswerClass(self.config)

    def losses(self, hidden: Hidden, labels: Labels) -> jax.Array:
        """Returns loss_B as in the module's docstring. Labels, each [B]: start and end (positions),
        impossible (0 or 1).
        """
        h_BTD, allowed_BT = hidden.h_BCTD[:, 0], _allowed(hidden)
        start_BT = jnp.where(allowed_BT, self.start_logits(h_BTD), FAR)
        end_BT = self.end_logits(h_BTD, _vectors(h_BTD, labels["start"][:, None]))[:, 0]
        end_BT = jnp.where(allowed_BT, end_BT, FAR)
        logit_B = self.answer_class(hidden, start_BT)
        # log(1 + exp(x)) - x y, without overflow.
        no_answer_B = jax.nn.softplus(logit_B) - logit_B * labels["impossible"].astype(
            logit_B.dtype
        )
        return _span_losses(start_BT, end_BT, labels) + 0.5 * no_answer_B

    def predictions(self, hidden: Hidden) -> Labels:
        """Returns the K best starts [B, K] and the K best ends of each start [B, K, K] with their
        log probabilities, and `no_answer` [B].
        """
        h_BTD, allowed_BT = hidden.h_BCTD[:, 0], _allowed(hidden)
        K, T = min(self.beam, h_BTD.shape[1]), h_BTD.shape[1]
        logits_BT = jnp.where(allowed_BT, self.start_logits(h_BTD), FAR)
        start_score_BK, start_BK = jax.lax.top_k(jax.nn.log_softmax(logits_BT), K)
        end_BKT = self.end_logits(h_BTD, _vectors(h_BTD, start_BK))
        end_BKT = jax.nn.log_softmax(jnp.where(allowed_BT[:, None], end_BKT, FAR))
        end_score_BKK, end_BKK = jax.lax.top_k(end_BKT, K)
        # Positions count from the end, so that padding on the left does not change them.
        return {
            "start": start_BK - T,
            "start_score": start_score_BK,
            "end": end_BKK - T,
            "end_score": end_score_BKK,
            "no_answer": self.answer_class(hidden, logits_BT),
        }


class SpanHead(nn.Module):
    """`BertForQuestionAnswering` of transformers: start and end from one dense layer."""

    config: ModelConfig
    beam: int
    longest: int
    """Pieces of the longest answer."""

    def setup(self) -> None:
        """Declares logits/{kernel,bias}, for the start and the end, and the summary, if any."""
        self.summary = Summary(self.config) if self.config.member.parts.summary == "head" else None
        self.logits = Linear(self.config, 2)

    def scores(self, hidden: Hidden) -> tuple[jax.Array, jax.Array]:
        """Returns the logits of starts and ends, each [B, T]."""
        h_BTD = hidden.h_BCTD[:, 0]
        if self.summary:
            h_BTD = self.summary(h_BTD, hidden.rows_B)
        start_end_BT2 = self.logits(high(h_BTD))
        return start_end_BT2[..., 0], start_end_BT2[..., 1]

    def losses(self, hidden: Hidden, labels: Labels) -> jax.Array:
        """Returns loss_B. Labels, each [B]: start and end (positions)."""
        return _span_losses(*self.scores(hidden), labels)

    def predictions(self, hidden: Hidden) -> Labels:
        """Returns predictions as `AnswerHead` does, with logits in place of log probabilities, for
        spans of at most `longest` pieces. `no_answer` is the sum of both logits of CLS.
        """
        (start_BT, end_BT), allowed_BT = self.scores(hidden), _paragraph(hidden)
        K, T = min(self.beam, start_BT.shape[1]), start_BT.shape[1]
        start_score_BK, start_BK = jax.lax.top_k(jnp.where(allowed_BT, start_BT, FAR), K)
        length_BKT = jnp.arange(T)[None, None] - start_BK[:, :, None] + 1
        good_BKT = allowed_BT[:, None] & (length_BKT >= 1) & (length_BKT <= self.longest)
        end_score_BKK, end_BKK = jax.lax.top_k(jnp.where(good_BKT, end_BT[:, None], FAR), K)
        return {
            "start": start_BK,
            "start_score": start_score_BK,
            "end": end_BKK,
            "end_score": end_score_BKK,
            "no_answer": start_BT[:, 0] + end_BT[:, 0],
        }


def _paragraph(hidden: Hidden) -> jax.Array:
    """Returns which positions are in the paragraph, bool [B, T]. The SEP after the paragraph has
    the same segment kind, and is left out.
    """
    kind = layouts.A if hidden.cls == "last" else layouts.B
    is_it_BT = hidden.real_BCT[:, 0] & (hidden.segments_BCT[:, 0] == kind)
    before_it_BT = jnp.pad(is_it_BT[:, 1:], ((0, 0), (0, 1)))
    return is_it_BT & before_it_BT


def _allowed(hidden: Hidden) -> jax.Array:
    """Returns which positions are in the paragraph or are XLNet's CLS, bool [B, T]."""
    T = hidden.real_BCT.shape[2]
    return _paragraph(hidden) | (jnp.arange(T) == T - 1)[None]


def _span_losses(start_BT: jax.Array, end_BT: jax.Array, labels: Labels) -> jax.Array:
    """Returns (CE(start) + CE(end)) / 2, [B]."""
    return 0.5 * (cross_entropy(start_BT, labels["start"]) + cross_entropy(end_BT, labels["end"]))


def _vectors(h_BTD: jax.Array, position_BK: jax.Array) -> jax.Array:
    return jnp.take_along_axis(h_BTD, position_BK[:, :, None], axis=1)


class ContextWindow(NamedTuple):
    """The N pieces of the paragraph in one window."""

    first: int
    """Position of the first piece; with padding on the left it is negative and counts from the end
    of the segment.
    """
    start_N: np.ndarray
    """Index in the context of the first character of each piece."""
    end_N: np.ndarray
    """Index after the last character of each piece."""
    best_N: np.ndarray
    """bool: no other window has more context around the piece."""


class QuestionAnswering(Task):
    """Predicts the part of a paragraph that answers a question about it, or no answer."""

    read = staticmethod(readers.question_answering)
    options = frozenset({"stride", "max_question", "max_answer", "beam"})
    texts = (2, 2)
    any_length = False
    ranking = ("best_f1", "best_exact", "f1", "exact")

    @functools.cached_property
    def _paragraph(self) -> Callable[[str], offsets.Pieces]:
        """`offsets.encode` with a cache, because several examples have the same paragraph."""
        return functools.lru_cache(1 << 15)(functools.partial(offsets.encode, self.tokenizer))

    def encode(self, number: int, example: Example) -> list[Row]:
        """Returns one row for each window. Of several answers, training uses the first."""
        (context, question), settings = example.texts, self.config.finetune
        paragraph, asked = self._paragraph(context), self.tokenizer.encode(question)
        if not len(paragraph.tokens_N):
            raise BadInput(
                f"{example.where}: the context is empty after normalisation; remove the question"
            )
        first = last = -1  # first and last piece of the answer
        if example.label:
            start, text = example.label[0]
            first, last = paragraph.covering(start, start + len(text))
        T, is_labelled, rows = self.config.data.segment_len, example.label is not None, []
        none = T - 1 if is_labelled and not self.layout.first else 0
        for window in layouts.windows(
            self.layout, T, paragraph.tokens_N, asked, settings.stride, settings.max_question
        ):
            part = slice(window.start, window.start + len(window.best_N))
            holds = part.start <= first and last < part.stop
            start, end = (
                (window.first + piece - window.start) % T if holds else none
                for piece in (first, last)
            )
            target = {"start": start, "end": end, "impossible": is_labelled and not holds}
            labels = {name: np.int32(x) for name, x in target.items()}
            passage = ContextWindow(
                window.first, paragraph.start_N[part], paragraph.end_N[part], window.best_N
            )
            tokens, segments = window.sequence
            rows.append(Row((tokens,), (segments,), labels, number, passage))
        return rows

    def head(self, config: ModelConfig) -> AnswerHead | SpanHead:
        """Returns the head of the member; see the module's docstring."""
        settings = self.config.finetune
        if config.member.bounded:
            return SpanHead(config, settings.beam, settings.max_answer)
        return AnswerHead(config, settings.beam)

    def outputs(
        self, predictions: Labels, rows: Sequence[Row], examples: Sequence[Example]
    ) -> list[Json]:
        """Returns the best `answer`, or "", the index of its first character (`start`), its
        `score`, and `no_answer`. A higher `no_answer` means that no answer is more likely.

        `no_answer` is the lowest value of all windows, because a single window with the answer is
        enough.
        """
        answers: list[Json] = [
            {"answer": "", "start": 0, "score": -np.inf, "no_answer": np.inf} for _ in examples
        ]
        for b, row in enumerate(rows):
            best = answers[row.example]
            best["no_answer"] = min(best["no_answer"], float(predictions["no_answer"][b]))
            score, start, end = max(
                self._candidates(predictions, b, row.more), default=(-np.inf, 0, 0)
            )
            if score > best["score"]:
                text = examples[row.example].texts[0][start:end]
                start += len(text) - len(text.lstrip())
                best.update(answer=text.strip(), start=start, score=score)
        for each in answers:
            if not each["answer"]:
                each["score"] = None  # JSON has no infinity
            elif self.config.model.member.bounded:
                each["no_answer"] -= each["score"]
        return answers

    def _candidates(
        self, predictions: Labels, b: int, part: ContextWindow
    ) -> list[tuple[float, int, int]]:
        """Returns (score, index of the first character, index after the last) of the spans in the
        beam of a row.
        """
        start_K, end_KK = predictions["start"][b] - part.first, predictions["end"][b] - part.first
        score_KK = predictions["start_score"][b][:, None] + predictions["end_score"][b]
        count = len(part.best_N)
        inside_K = (start_K >= 0) & (start_K < count)
        inside_K[inside_K] = part.best_N[start_K[inside_K]]
        length_KK = end_KK - start_K[:, None] + 1
        good_KK = (
            (length_KK >= 1) & (length_KK <= self.config.finetune.max_answer) & (end_KK < count)
        )
        return [
            (float(score_KK[k, e]), int(part.start_N[start_K[k]]), int(part.end_N[end_KK[k, e]]))
            for k, e in np.argwhere(good_KK & inside_K[:, None])
        ]

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the official scores; see `metrics.squad`."""
        true = [[text for _, text in example.label] for example in examples]
        return metrics.squad(
            true, [each["answer"] for each in outputs], [each["no_answer"] for each in outputs]
        )
