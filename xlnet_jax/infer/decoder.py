"""Fills the gaps of texts, in any order, and continues texts, whose gap is at the end.

A text is read as by `infer.score`: from its first token on in segments of T = `data.segment_len`
tokens, all of a segment before the next one, with the memory of training (Transformer-XL, section
3.2). What is filled in a segment becomes memory for the next. So the likelihood that is found here
is the one that `Scorer` finds for the whole text in the same order, and equals that of the model
without a cache.

A left-to-right model (`clm`) has a gap at the end only. The first token of a segment sees the
M = `model.memory_len` tokens before it and itself: with a short memory it knows less than the one
before it, as in training. Prompts are read in as many rows as they need, rounded up to a power of
two or T, and right-aligned by whole segments, so that all end in one call. A text of which nothing
is known follows the end of a document (`<eod>`).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from xlnet_jax.batch import NEVER
from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import decode
from xlnet_jax.infer.batching import SHORTEST_SEGMENT, batches, bucket, padded, power_of_two
from xlnet_jax.infer.decode import Method
from xlnet_jax.infer.options import Decoding, Fill
from xlnet_jax.infer.orders import Segment, Text, TextModel, following, places, segments, with_masks
from xlnet_jax.infer.sampling import Sampling, most_probable

log = logging.getLogger("xlnet_jax")

FEWEST_GAPS = 8
"""Slots of unknown tokens that are compiled at least."""

SHORTEST_PROMPT = 16
"""Rows of the shortest last part of a prompt, of a left-to-right model."""

Listener = Callable[[int, list[tuple[int, int]], bool], None]
"""Called with the number of a text, the positions and tokens that were filled since the last call,
in their order, and whether it has ended.
"""


class Filled(NamedTuple):
    """One text after its U unknown tokens were filled."""

    token_N: np.ndarray
    """int32: the whole text; after a `stop` it ends."""
    position_U: np.ndarray
    """int: the unknown positions, in the order in which they were filled."""
    log_prob_U: np.ndarray
    """Nats, in that order: of the model (temperature 1, nothing left out) given what was known
    then. Without `tokens_per_step` the sum is log p(x_S | x_C) in this order.
    """
    calls: int
    """Forward passes that predicted something of this text."""
    best: Sequence[Filled] = ()
    """With `Fill.top`: the text with each of the most probable tokens, the best first."""

    def with_best(self, token_K: np.ndarray, log_prob_K: np.ndarray) -> Filled:
        """Also with `best`: these tokens in place of the only one that was unknown."""
        token_KN = np.tile(self.token_N, (len(token_K), 1))
        token_KN[:, self.position_U[0]] = token_K
        pairs = zip(token_KN, log_prob_K[:, None], strict=True)
        return self._replace(
            best=[
                self._replace(token_N=token_N, log_prob_U=log_prob_1)
                for token_N, log_prob_1 in pairs
            ]
        )


@dataclasses.dataclass(frozen=True)
class Decoder(TextModel):
    """A model that fills unknown tokens of texts."""

    prefix: bool = False
    """Whether what is known of a text sees all of it, also from left to right
    (`finetune.text_to_text`).
    """

    def __call__(
        self,
        texts: Sequence[Text],
        asked: Decoding,
        stop: int | None = None,
        listener: Listener | None = None,
    ) -> list[Filled]:
        """Fills the unknown tokens of every text.

        What a text becomes depends on itself, its number and the seed alone; with equal shapes bit
        for bit.

        Args:
          texts: of `orders.checked`; at unknown positions any ids.
          asked: `order` is that of all texts; with `confidence` at each step the position whose
            most probable token is the most probable. More than one of `tokens_per_step` are drawn
            independently: fast, and not the model's joint distribution. With `speculative` so many
            tokens are drafted at a time and then verified: the distribution is that of one token at
            a time, with fewer calls.
          stop: the token that ends a text (order `left`); it is the last one of the result.

        Raises BadInput; see `orders.places`; or if the parameters are not finite.
        """
        causal, T = self.model.transformer.objective.causal, self.segment_len
        if asked.tokens_per_step > 1:
            log.warning(
                "tokens_per_step=%d is inexact: the pieces of one call do not know of each other, "
                "so the result is no draw of the model, and has no joint likelihood",
                asked.tokens_per_step,
            )
        order = "left" if asked.order == "confidence" else asked.order
        rows = []
        for number, (ids_N, known_N) in enumerate(texts):
            if causal:
                parts = _continued(ids_N, known_N, T, self.special, self.prefix)
            else:
                place_N = places(number + 1, known_N, order, (asked.seed, number + 1, 0), T)
                if self.model.transformer.objective.masks:
                    parts = [with_masks(self.model, ids_N, known_N, self.special)]
                else:
                    parts = segments(ids_N, known_N, place_N, T, self.special)
                parts = [_in_order(part, place_N) for part in parts]
            rows.append(_Row(number, ids_N.copy(), parts))
        # Left to right in the order of the texts, which a terminal shows.
        B, groups = batches([0 if causal else len(row.token_N) for row in rows], self.batch_size)
        for numbers in groups:
            self._fill([rows[number] for number in numbers], B, asked, stop, listener)
        return [row.result(stop) for row in rows]

    def _fill(
        self, rows: list[_Row], B: int, asked: Decoding, stop: int | None, listener: Listener | None
    ) -> None:
        """At most B texts at a time, part after part."""
        model, params, causal = self.model, self.params, self.model.transformer.objective.causal
        # All end reading in the same round.
        reads = [sum(len(part.token_N) > 0 for part in row.parts) for row in rows]
        queues = [
            [None] * (max(reads) - each) + row.parts for each, row in zip(reads, rows, strict=True)
        ]
        rounds = list(itertools.zip_longest(*queues))
        every = [part for row in rows for part in row.parts]
        T, memory_len = self.segment_len, model.transformer.config.memory_len
        if len(rounds) == 1 and not causal:
            # One segment has no memory.
            T, memory_len = (
                min(T, bucket(max(len(part.token_N) for part in every), SHORTEST_SEGMENT)),
                0,
            )
        U = (
            decode.CHUNK
            if causal
            else min(T, bucket(max(len(part.position_U) for part in every), FEWEST_GAPS))
        )
        # A call does not predict more tokens than there are slots.
        method = Method(
            min(asked.tokens_per_step, U),
            min(asked.speculative, U),
            asked.order == "confidence",
            asked.filtered,
        )
        sampling, number_B = Sampling.of(asked), np.zeros(B, np.int32)
        ends_text = np.int32(-1 if stop is None else stop)
        number_B[: len(rows)] = [row.number for row in rows]
        state = decode.start(model, method, params, T, memory_len, U, number_B)
        for turn, parts in enumerate(rounds):
            if all(row.ended for row in rows):
                break
            parts = [None if row.ended else part for row, part in zip(rows, parts, strict=True)]
            Q, longest = T, max(0 if part is None else len(part.token_N) for part in parts)
            if causal:
                Q = min(T, power_of_two(longest, SHORTEST_PROMPT)) if longest else 0
            batch = padded(parts, B, Q, U, unused=T)
            state = decode.read(
                model, params, state, batch.tokens, batch.rank, batch.target_positions, turn > 0
            )
            if isinstance(asked, Fill) and asked.top > 1:  # of one unknown token
                token_BK, log_prob_BK = jax.device_get(
                    most_probable(state.logits_BPV[:, 0], asked.top)
                )
                for row, part, *best in zip(rows, parts, token_BK, log_prob_BK, strict=False):
                    row.best = best if part is not None and len(part.position_U) else row.best
            done_BU, left, last = np.zeros((B, U), bool), True, turn == len(rounds) - 1
            while left:
                results, state = decode.write(
                    model, method, params, state, sampling, np.int32(decode.CHUNK), ends_text, last
                )
                left_BU, token_BU, log_prob_BU, turn_BU, calls_B = jax.device_get(results)
                for b, (row, part) in enumerate(zip(rows, parts, strict=True)):
                    row.calls = int(calls_B[b])
                    if part is not None and not row.ended:
                        new_U = np.flatnonzero((turn_BU[b] >= 0) & ~done_BU[b])
                        new_U = new_U[np.argsort(turn_BU[b, new_U], kind="stable")]
                        row.ended = not left_BU[b].any() and (
                            stop in token_BU[b, new_U].tolist() or part is row.parts[-1]
                        )
                        row.take(
                            part.text_U[new_U], token_BU[b, new_U], log_prob_BU[b, new_U], listener
                        )
                done_BU, left = turn_BU >= 0, bool(left_BU.any())


@dataclasses.dataclass
class _Row:
    """A text while it is filled."""

    number: int
    token_N: np.ndarray
    parts: list[Segment]
    positions: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    calls: int = 0
    ended: bool = False
    best: Sequence[np.ndarray] = ()
    """Arguments of `Filled.with_best`."""

    def take(
        self,
        position_U: np.ndarray,
        token_U: np.ndarray,
        log_prob_U: np.ndarray,
        listener: Listener | None,
    ) -> None:
        """Takes what is new."""
        self.token_N[position_U] = token_U
        self.positions += position_U.tolist()
        self.log_probs += log_prob_U.tolist()
        if listener is not None and (len(token_U) or self.ended):
            listener(
                self.number,
                list(zip(position_U.tolist(), token_U.tolist(), strict=True)),
                self.ended,
            )

    def result(self, stop: int | None) -> Filled:
        """Raises BadInput if the parameters are not finite."""
        if not np.isfinite(self.log_probs).all():
            raise BadInput(
                f"text {self.number + 1}: a likelihood is not finite; the parameters are damaged"
            )
        end = (
            self.positions[-1] + 1
            if self.positions and self.token_N[self.positions[-1]] == stop
            else None
        )
        filled = Filled(
            self.token_N[:end], np.array(self.positions, int), np.array(self.log_probs), self.calls
        )
        return filled.with_best(*self.best) if self.best else filled


def _in_order(part: Segment, place_N: np.ndarray) -> Segment:
    """With what is unknown in its order, and not seen unless it is read as MASK."""
    rank_N, order_U = (
        np.where(part.rank_N > 0, NEVER, part.rank_N),
        np.argsort(place_N[part.text_U]),
    )
    return Segment(part.token_N, rank_N, *(each_U[order_U] for each_U in part[2:5]))


def _continued(
    ids_N: np.ndarray, known_N: np.ndarray, segment_len: int, special: SpecialIds, prefix: bool
) -> list[Segment]:
    """Of a gap at the end: a part for each segment of what is known, the last one with the first
    `decode.CHUNK` unknown tokens, and then one for each so many more, which read nothing.
    """
    read_N, known_N = following(ids_N, known_N, special)
    length, N = int(known_N.sum()), len(read_N)
    reads = np.split(read_N[:length], range(segment_len, length, segment_len))
    gaps = np.split(np.arange(length, N), range(decode.CHUNK, N - length, decode.CHUNK))
    none = np.zeros(0, int)
    pairs = zip(
        [*reads, *[none] * (len(gaps) - 1)], [*[none] * (len(reads) - 1), *gaps], strict=True
    )
    skipped = N - len(ids_N)
    return [
        Segment(
            token_N,
            np.arange(len(token_N)) * (not prefix),
            at_U % segment_len,
            read_N[at_U],
            at_U - skipped,
        )
        for token_N, at_U in pairs
    ]
