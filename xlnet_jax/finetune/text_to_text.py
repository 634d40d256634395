"""Text to text: translation, summaries, answers. The source sees itself; the target sees the source
and its own past.

    tokens     x_1 .. x_m  SEP  y_1 .. y_n  END         rank  0 .. 0  0  1 .. n  n + 1
    loss       mean of -log p(y_i | x, y_<i), END included; the vector of each token predicts the
               next token

So one stack is both encoder and decoder, a prefix language model (Dong et al. 2019, UniLM, arXiv
1905.03197; Raffel et al. 2020, arXiv 1910.10683, section 3.2.1). All tokens are in segment A,
padding is on the right, and END is the end-of-document piece, or SEP in a vocabulary without that
piece.

A batch holds texts of similar length: each of its `train.batch_size` rows has 2^k texts of T / 2^k
tokens, so that all batches have `train.batch_size` times T tokens. The length is a function of the
step.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
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
from xlnet_jax.finetune.task import Example, Labels, Outputs, Row, Scores, Task, TaskBatch
from xlnet_jax.messages import how_to_install
from xlnet_jax.model.heads import weighed
from xlnet_jax.storage.files import Json
from xlnet_jax.train.loss import LanguageModel, RowLosses

SHORTEST = 16
"""Shortest length of the texts of a batch, in tokens."""


class TextToText(Task):
    """Predicts a target text for a source text. The head is the head of the language model."""

    read = staticmethod(readers.source_and_target)
    options = frozenset({"max_answer", "beam", "length_penalty"})
    texts, several_lengths = (1, 1), True
    ranking = ("exact_match", "bleu", "chrf")
    no_label = staticmethod(unlabelled.null)

    def __post_init__(self) -> None:
        """Raises BadInput for a metric whose library is not installed."""
        super().__post_init__()
        if self.metric != "exact_match" and not importlib.util.find_spec("sacrebleu"):
            raise BadInput(
                f"finetune.metric={self.metric} needs sacrebleu: {how_to_install('text')}"
            )

    @property
    def layout(self) -> Layout:
        """The layout of texts without CLS, with padding on the right."""
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
        """Returns one row. A long source is cut at its end, so that the longest target fits."""
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
        """Returns the targets of labelled examples that encoding and decoding change, each with the
        decoded text.
        """
        decoded = (
            self.tokenizer.decode(row.tokens[0][row.labels["source"][0] : -1]).strip()
            for row in rows
        )
        pairs = zip((example.label.strip() for example in examples), decoded, strict=True)
        return [(target, other) for target, other in pairs if target != other]

    def stream(self, rows: Sequence[Row]) -> Stream:
        """Returns a stream of batches of rows of similar length; see `Buckets`."""
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
        """Returns the text `target`, and the `log_prob` of its pieces and END, in nats."""
        pieces = [piece for piece in prediction["tokens"].tolist() if piece not in (-1, self.end)]
        return {"target": self.tokenizer.decode(pieces), "log_prob": float(prediction["log_prob"])}

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the share of targets that are equal up to white space around them, and, if
        sacrebleu is installed, BLEU and chrF, 0 to 100.
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
    """The rows with more than T / 2^(k+1) and at most T / 2^k tokens."""

    k: int
    blocks: ShuffledBlocks
    numbers_N: np.ndarray


@dataclasses.dataclass(frozen=True)
class Buckets(Stream):
    """A stream of rows by length. The i-th step of a length reads B * 2^k of its rows, from number
    i * B * 2^k of the shuffled epoch.

    `steps` assigns the steps to the lengths in proportion to their rows. If the batch size changes,
    each earlier step counts with its own B.
    """

    steps: Cycle = ONE
    lengths: tuple[Length, ...] = ()

    def locate(self, step: int, rows: np.ndarray, plan: Plan) -> Windows:
        """See `Stream`. `block_B` has the numbers of 2^k rows for each batch row in `rows`."""
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
        """Returns the number of batch rows of each length that earlier steps have read, int64."""
        read = np.zeros(len(self.lengths), np.int64)
        for entry, end in zip(plan, [*(entry.step for entry in plan[1:]), step], strict=True):
            if entry.step < step:
                read += entry.batch_size * (
                    self.steps.dealt(min(end, step)) - self.steps.dealt(entry.step)
                )
        return read

    def epochs(self, step: int, plan: Plan) -> list[float]:
        """See `Stream`. Returns the mean over all rows."""
        read = sum(
            int(count) << each.k
            for count, each in zip(self._read(step, plan), self.lengths, strict=True)
        )
        return [read / self.corpora[0].blocks]


@dataclasses.dataclass(frozen=True)
class TextToTextModel(LanguageModel):
    """A language model of `TaskBatch`es whose sources see themselves, without a memory."""

    def init(self, key: jax.Array, batch: Any) -> dict[str, Any]:
        """See `LanguageModel`."""
        return super().init(key, as_batch(batch))

    def divisors(self, batch: Any) -> dict[str, jax.Array]:
        """Returns the number of predicted tokens."""
        return {"tokens": (_targets(batch) * batch.weight).sum()}

    def carried(self, rows: int) -> Any:
        """Returns nothing, because examples do not follow each other."""
        return ()

    def row_losses(
        self,
        params: Any,
        batch: Any,
        memory: Any,
        dropout_key: jax.Array | None = None,
        rows_B: jax.Array | None = None,
    ) -> RowLosses:
        """Returns the losses of a batch; `rows_B` numbers its rows in the whole batch."""
        B, C = batch.tokens.shape[:2]
        rows_B = jnp.arange(B) if rows_B is None else rows_B
        rows_N = (rows_B[:, None] * C + jnp.arange(C)[None]).reshape(-1)
        losses = super().row_losses(params, as_batch(batch), None, dropout_key, rows_N)
        loss_B = losses.sums["tokens"][0].reshape(B, C).sum(axis=1)
        weight_B = batch.weight.astype(loss_B.dtype)
        sums = weighed(loss_B, weight_B), _targets(batch).astype(loss_B.dtype) * weight_B
        return RowLosses({"tokens": sums}, memory)

    def evaluate(self, params: Any, batch: TaskBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns the nats per predicted token of each row, [B], and `weight`, the number of these
        tokens. `infer.text_to_text` writes the targets.
        """
        loss_B, weight_B = self.row_losses(params, batch, ()).sums["tokens"]
        return loss_B / jnp.maximum(weight_B, 1), {"weight": weight_B}


def _targets(batch: TaskBatch) -> jax.Array:
    """Returns the number of predicted tokens of each row: targets and END."""
    return (batch.labels["length"] - batch.labels["source"]).sum(axis=-1)


def as_batch(batch: TaskBatch) -> Batch:
    """Returns all texts of a batch as input of the transformer, [B * C, T]. Every position but the
    last predicts the next token.
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
