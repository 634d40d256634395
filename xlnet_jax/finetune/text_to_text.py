"""Text to text: translation, summaries, answers. The source sees itself, the target the source and
its own past.

    tokens     x_1 .. x_m  SEP  y_1 .. y_n  END         rank  0 .. 0  0  1 .. n  n + 1
    loss       mean of -log p(y_i | x, y_<i), END included; the vector of the token before predicts
               the next

So one stack is both encoder and decoder, a prefix language model (Dong et al. 2019, UniLM, arXiv
1905.03197; Raffel et al. 2020, arXiv 1910.10683, section 3.2.1). All is segment A, padding is on
the right, and END is the end of a document, or SEP where the vocabulary has none.

A batch holds texts of similar length: row b of `train.batch_size` has 2^k of them with T / 2^k
tokens each, so that all batches have `train.batch_size` times T tokens. Which length a step has is
a function of the step.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import NEVER, Batch, forward_text
from xlnet_jax.data.batches.cycle import ONE, Cycle, from_weights
from xlnet_jax.data.batches.stream import Plan, ShuffledBlocks, Stream, Windows, current
from xlnet_jax.data.layouts import Layout
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import readers, unlabelled
from xlnet_jax.finetune.task import Example, Labels, Row, Task, TaskBatch
from xlnet_jax.messages import how_to_install
from xlnet_jax.model.heads import weighed
from xlnet_jax.storage.files import Json
from xlnet_jax.train.loss import LanguageModel, RowLosses

SHORTEST = 16
"""Tokens of the shortest texts that have batches of their own."""


class TextToText(Task):
    """A text from a text. In place of a head it has that of the language model."""

    read = staticmethod(readers.source_and_target)
    options = frozenset({"max_answer", "beam", "length_penalty"})
    texts, several_lengths = (1, 1), True
    ranking = ("exact_match", "bleu", "chrf")
    no_label = staticmethod(unlabelled.null)

    def __post_init__(self) -> None:
        """Raises BadInput for a score that needs what is not installed."""
        super().__post_init__()
        if self.metric != "exact_match" and not importlib.util.find_spec("sacrebleu"):
            raise BadInput(
                f"finetune.metric={self.metric} needs sacrebleu: {how_to_install('text')}"
            )

    @property
    def layout(self) -> Layout:
        """Of texts without CLS, with padding on the right."""
        return Layout(self.tokenizer.special, self.config.model.member._replace(cls="none"))

    @property
    def separator(self) -> int:
        """The piece between source and target."""
        special = self.tokenizer.special
        return special.eod if special.sep is None else special.sep

    @property
    def end(self) -> int:
        """The piece that ends a target."""
        special = self.tokenizer.special
        return special.sep if special.eod is None else special.eod

    def encode(self, number: int, example: Example) -> list[Row]:
        """One row. A source that leaves too little room for the longest target loses pieces at its
        end.
        """
        most = self.config.finetune.max_answer
        source_N = self.tokenizer.encode(example.texts[0])[: self.length - most - 2]
        target_N = np.zeros(0, np.int32)
        if example.label is not None:
            target_N = np.append(self.tokenizer.encode(example.label), self.end)
        if not len(source_N) or len(target_N) == 1:  # END alone
            what = "target" if len(source_N) else "source"
            raise BadInput(
                f"{example.where}: the {what} is empty after normalisation; "
                "correct the row or remove it"
            )
        if len(target_N) > most + 1:
            raise BadInput(
                f"{example.where}: the target has {len(target_N) - 1} pieces, more than "
                f"finetune.max_answer={most}; raise it, or shorten the target"
            )
        tokens_N = np.concatenate([source_N, [self.separator], target_N]).astype(np.int32)
        labels = {
            "source": np.array([len(source_N) + 1], np.int32),
            "length": np.array([len(tokens_N)], np.int32),
        }
        return [Row((tokens_N,), (np.zeros_like(tokens_N),), labels, number)]

    def lost(self, rows: Sequence[Row], examples: Sequence[Example]) -> list[tuple[str, str]]:
        """The targets of labelled examples that their pieces do not give back, and what these
        give.
        """
        decoded = (
            self.tokenizer.decode(row.tokens[0][row.labels["source"][0] : -1]).strip()
            for row in rows
        )
        pairs = zip((example.label.strip() for example in examples), decoded, strict=True)
        return [(target, other) for target, other in pairs if target != other]

    def stream(self, rows: Sequence[Row]) -> Stream:
        """Batches of rows of similar length; see `Buckets`."""
        T, seed = self.config.data.segment_len, self.config.seeds.data
        halvings_N = np.array(
            [(T // max(len(row.tokens[0]), SHORTEST)).bit_length() - 1 for row in rows]
        )
        lengths = []
        for k in np.unique(halvings_N).tolist():
            numbers_N = np.flatnonzero(halvings_N == k)
            lengths.append(Length(k, ShuffledBlocks(len(numbers_N), 1, 1, seed), numbers_N))
        steps = from_weights([each.blocks.tokens / 2**each.k for each in lengths])
        corpora = (ShuffledBlocks(len(rows), 1, 1, seed),)
        return Buckets(corpora, bidirectional=False, steps=steps, lengths=tuple(lengths))

    def output(self, prediction: Labels) -> Json:
        """`target`: the text, and `log_prob`: nats, of its pieces and END."""
        pieces = [
            piece for piece in prediction["tokens"].tolist() if piece >= 0 and piece != self.end
        ]
        return {"target": self.tokenizer.decode(pieces), "log_prob": float(prediction["log_prob"])}

    def score(
        self, outputs: Sequence[Mapping[str, Any]], examples: Sequence[Example]
    ) -> dict[str, float]:
        """The share of targets that are equal but for white space around them; BLEU and chrF by
        sacrebleu, 0 to 100.
        """
        said = [output["target"].strip() for output in outputs]
        wanted = [example.label.strip() for example in examples]
        scores = {"exact_match": sum(a == b for a, b in zip(said, wanted, strict=True)) / len(said)}
        if importlib.util.find_spec("sacrebleu"):
            import sacrebleu  # type: ignore[import-not-found]

            scores["bleu"] = sacrebleu.corpus_bleu(said, [wanted]).score
            scores["chrf"] = sacrebleu.corpus_chrf(said, [wanted]).score
        return scores


class Length(NamedTuple):
    """The rows with at most T / 2^k tokens, and more than half of that."""

    k: int
    blocks: ShuffledBlocks
    numbers_N: np.ndarray


@dataclasses.dataclass(frozen=True)
class Buckets(Stream):
    """Rows by length: the i-th step of a length reads its rows number i * B * 2^k and on, shuffled
    in each epoch.

    `steps` deals the steps to the lengths, so that each has its share of the rows. The batch size
    may change: then B is that of each earlier step.
    """

    steps: Cycle = ONE
    lengths: tuple[Length, ...] = ()

    def locate(self, step: int, rows: np.ndarray, plan: Plan) -> Windows:
        """See `Stream`; `block_B` has the numbers of 2^k rows for each of `rows`."""
        which = int(self.steps.deal(np.array([step]))[0][0])
        k, blocks, numbers_N = self.lengths[which]
        first_B = (self._read(step, plan)[which] + rows) << k
        epoch_N, index_N, _ = blocks.locate((first_B[:, None] + np.arange(1 << k)).ravel())
        none_B, exists_B = np.zeros(len(rows), np.int64), rows < current(plan, step).batch_size
        return Windows(
            cursor_B=none_B,
            direction_B=none_B + 1,
            continues_B=none_B > 0,
            exists_B=exists_B,
            corpus_B=none_B,
            block_B=numbers_N[index_N],
            epoch_B=epoch_N,
            window=0,
        )

    def _read(self, step: int, plan: Plan) -> np.ndarray:
        """Of each length the rows of `train.batch_size` that were read before, int64."""
        read = np.zeros(len(self.lengths), np.int64)
        for entry, end in zip(plan, [*(entry.step for entry in plan[1:]), step], strict=True):
            if entry.step < step:
                read += entry.batch_size * (
                    self.steps.dealt(min(end, step)) - self.steps.dealt(entry.step)
                )
        return read

    def epochs(self, step: int, plan: Plan) -> list[float]:
        """See `Stream`; of all lengths together."""
        read = sum(
            int(count) << each.k
            for count, each in zip(self._read(step, plan), self.lengths, strict=True)
        )
        return [read / self.corpora[0].blocks]


@dataclasses.dataclass(frozen=True)
class TextToTextModel(LanguageModel):
    """A language model of `TaskBatch`es, in which sources see themselves, and which carries
    nothing.
    """

    def init(self, key: jax.Array, batch: Any) -> dict[str, Any]:
        """See `LanguageModel`."""
        return super().init(key, as_batch(batch))

    def divisors(self, batch: Any) -> dict[str, jax.Array]:
        """The number of predicted tokens."""
        return {"tokens": (_targets(batch) * batch.weight).sum()}

    def carried(self, rows: int) -> Any:
        """Nothing: examples do not follow each other."""
        return ()

    def row_losses(
        self,
        params: Any,
        batch: Any,
        memory: Any,
        dropout_key: jax.Array | None = None,
        rows_B: jax.Array | None = None,
    ) -> RowLosses:
        """The losses of a batch, or of some rows of it."""
        B, C = batch.tokens.shape[:2]
        rows_B = jnp.arange(B) if rows_B is None else rows_B
        rows_N = (rows_B[:, None] * C + jnp.arange(C)[None]).reshape(-1)
        losses = super().row_losses(params, as_batch(batch), None, dropout_key, rows_N)
        loss_B = losses.sums["tokens"][0].reshape(B, C).sum(axis=1)
        weight_B = batch.weight.astype(loss_B.dtype)
        sums = weighed(loss_B, weight_B), _targets(batch).astype(loss_B.dtype) * weight_B
        return RowLosses({"tokens": sums}, memory)

    def evaluate(self, params: Any, batch: TaskBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Nats per predicted token of each row, [B], and its `weight`, their number:
        `infer.text_to_text` writes the predictions.
        """
        loss_B, weight_B = self.row_losses(params, batch, ()).sums["tokens"]
        return loss_B / jnp.maximum(weight_B, 1), {"weight": weight_B}


def _targets(batch: TaskBatch) -> jax.Array:
    """Of each row the number of predicted tokens, those of targets and END."""
    return (batch.labels["length"] - batch.labels["source"]).sum(axis=-1)


def as_batch(batch: TaskBatch) -> Batch:
    """All texts of a batch as the transformer takes them, [B * C, T]; every place but the last
    predicts the next.
    """
    T = batch.tokens.shape[-1]
    tokens_NT = jnp.asarray(batch.tokens).reshape(-1, T)
    source_N1, length_N1 = (
        jnp.asarray(batch.labels[name]).reshape(-1, 1) for name in ("source", "length")
    )
    place_NT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), tokens_NT.shape)
    rank_NT = jnp.where(place_NT < length_N1, jnp.maximum(place_NT - source_N1 + 1, 0), NEVER)
    text = forward_text(
        tokens_NT, rank_NT, jnp.zeros_like(tokens_NT), place_NT, jnp.roll(tokens_NT, -1, axis=1)
    )
    predicts_NT = (place_NT >= source_N1 - 1) & (place_NT < length_N1 - 1)
    return dataclasses.replace(text, target_weights=predicts_NT.astype(jnp.float32))
