"""Fills the gaps of texts in any order, and continues texts, whose gap is at the end.

`Decoder` reads a text as `infer.score` does: in segments of T = `data.segment_len` tokens from its
first token on, with the memory of training (Transformer-XL, section 3.2). It fills a segment
completely before the next segment, so the memory holds filled tokens. For a filled text in the same
order, `Scorer` computes the same likelihood without a cache.

A left-to-right model (`clm`) has a gap at the end only. The first token of a segment sees itself
and the M = `model.memory_len` tokens before it: with a short memory it sees fewer tokens than the
token before it, as in training. The prompts are aligned at their last segment, so that one call
reads the last segment of all prompts; its length is rounded up to a power of two or T. A text
without known tokens follows the end of a document (`<eod>`).
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
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import decode
from xlnet_jax.infer.batching import SHORTEST_SEGMENT, batches, bucket, padded, power_of_two
from xlnet_jax.infer.decode import DecodingState, Method
from xlnet_jax.infer.options import Decoding, Fill
from xlnet_jax.infer.orders import (
    Segment,
    Text,
    TextModel,
    places,
    segments,
    with_leading_eod,
    with_masks,
)
from xlnet_jax.infer.sampling import Sampling, most_probable

log = logging.getLogger("xlnet_jax")

FEWEST_GAPS = 8
"""Fewest slots of unknown tokens that are compiled."""

SHORTEST_PROMPT = 16
"""Tokens of the shortest prompt that is compiled, for a left-to-right model."""

Listener = Callable[[int, list[tuple[int, int]], bool], None]
"""Function that is called with the number of a text, the new pairs of position and token in the
order of filling, and whether the text has ended.
"""


class Filled(NamedTuple):
    """One text after its U unknown tokens were filled."""

    token_N: np.ndarray
    """int32: the whole text, up to a `stop`."""
    position_U: np.ndarray
    """int: the positions that were unknown, in the order in which they were filled."""
    log_prob_U: np.ndarray
    """Nats: log-probabilities of these tokens at temperature 1, without top_k and top_p, given all
    tokens known before. With one token per step their sum is log p(x_S | x_C) in this order.
    """
    calls: int
    """Forward passes that predicted a token of this text."""
    best: Sequence[Filled] = ()
    """With `Fill.top`: the text with each of the most probable tokens, the best first."""

    def with_best(self, token_K: np.ndarray, log_prob_K: np.ndarray) -> Filled:
        """Returns the text with `best`: each of these tokens replaces its only filled token."""
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
    """A model that fills the unknown tokens of texts."""

    prefix: bool = False
    """For a left-to-right model: whether known tokens see all known tokens
    (`finetune.text_to_text`).
    """
    given: bool = False
    """Whether the order is chosen (`order=confidence`), but not the tokens: they are those of the
    texts, whose likelihood is the result.
    """

    def __call__(
        self,
        texts: Sequence[Text],
        asked: Decoding,
        stop: int | None = None,
        listener: Listener | None = None,
    ) -> list[Filled]:
        """Fills the unknown tokens of every text.

        The result depends only on the text, its number and the seed; with equal shapes it is equal
        bit for bit.

        Args:
          texts: from `orders.checked_texts`; ids at unknown positions are ignored unless `given`.
          asked: the options. With `order=confidence` each step fills the position whose most
            probable token has the highest probability. Several `tokens_per_step` are drawn
            independently: fast, but not from the joint distribution of the model. `speculative`
            drafts and verifies several tokens: the exact distribution, with fewer calls.
          stop: the token that ends a text (order `left`); the result includes it.

        Raises BadInput as `orders.places`, and if the parameters are not finite.
        """
        causal, T = self.model.transformer.objective.causal, self.segment_len
        end = -1 if stop is None else stop
        if asked.tokens_per_step > 1:
            log.warning(
                "tokens_per_step=%d is inexact: the pieces of one call are drawn independently, so "
                "the result is no sample of the model and has no joint likelihood",
                asked.tokens_per_step,
            )
        order = "left" if asked.order == "confidence" else asked.order
        rows = []
        for number, (ids_N, known_N) in enumerate(texts):
            if causal:
                parts = _continued(self, ids_N, known_N)
            else:
                place_N = places(number + 1, known_N, order, (asked.seed, number + 1, 0), T)
                if self.model.transformer.objective.masks:
                    parts = [with_masks(self, ids_N, known_N)]
                else:
                    parts = segments(self, ids_N, known_N, place_N)
                parts = [_in_order(part, place_N) for part in parts]
            rows.append(_Row(number, ids_N.copy(), parts))
        # A left-to-right model keeps the order of the texts, in which a terminal shows them.
        B, groups = batches([0 if causal else len(row.token_N) for row in rows], self.batch_size)
        for numbers in groups:
            self._fill([rows[number] for number in numbers], B, asked, end, listener)
        return [row.result(end) for row in rows]

    def _start(
        self, rows: list[_Row], rounds: int, B: int, asked: Decoding
    ) -> tuple[Method, DecodingState]:
        """Returns the method and the state before the first round, in compiled sizes that hold all
        parts of the rows.
        """
        transformer, parts = self.model.transformer, [part for row in rows for part in row.parts]
        T, U, memory_len = self.segment_len, decode.CHUNK, transformer.config.memory_len
        if not transformer.objective.causal:
            if rounds == 1:  # a single segment has no memory
                longest = max(len(part.token_N) for part in parts)
                T, memory_len = min(T, bucket(longest, SHORTEST_SEGMENT)), 0
            U = min(T, bucket(max(len(part.position_U) for part in parts), FEWEST_GAPS))
        # A call cannot predict more tokens than there are slots.
        method = Method(
            min(asked.tokens_per_step, U),
            min(asked.speculative, U),
            asked.order == "confidence",
            asked.filtered,
        )
        number_B = np.zeros(B, np.int32)
        number_B[: len(rows)] = [row.number for row in rows]
        return method, decode.start(self.model, method, self.params, T, memory_len, U, number_B)

    def _fill(
        self, rows: list[_Row], B: int, asked: Decoding, stop: int, listener: Listener | None
    ) -> None:
        """Fills at most B texts together, part after part."""
        model, params = self.model, self.params
        # All rows read their last known tokens in the same round.
        reads = [sum(len(part.token_N) > 0 for part in row.parts) for row in rows]
        queues = [
            [None] * (max(reads) - each) + row.parts for each, row in zip(reads, rows, strict=True)
        ]
        rounds = list(itertools.zip_longest(*queues))
        method, state = self._start(rows, len(rounds), B, asked)
        sampling, T, U = Sampling.of(asked), state.cache.segment_len, state.turn_BU.shape[1]
        for turn, parts in enumerate(rounds):
            if all(row.ended for row in rows):
                break
            parts = [None if row.ended else part for row, part in zip(rows, parts, strict=True)]
            Q, longest = T, max(0 if part is None else len(part.token_N) for part in parts)
            if model.transformer.objective.causal:
                Q = min(T, power_of_two(longest, SHORTEST_PROMPT)) if longest else 0
            batch = padded(parts, B, Q, U, unused=T)
            if self.given:
                state = state._replace(given_BU=batch.target_tokens)
            state = decode.read_known(
                model,
                params,
                state,
                batch.tokens,
                batch.rank,
                batch.segments,
                batch.target_positions,
                turn > 0,
            )
            if isinstance(asked, Fill) and asked.top > 1:  # every text has one unknown token
                token_BK, log_prob_BK = jax.device_get(
                    most_probable(state.logits_BPV[:, 0], asked.top)
                )
                for row, part, *best in zip(rows, parts, token_BK, log_prob_BK, strict=False):
                    row.best = best if part is not None and len(part.position_U) else row.best
            done_BU, left, last = np.zeros((B, U), bool), True, turn == len(rounds) - 1
            while left:
                calls, end = np.int32(decode.CHUNK), np.int32(stop)
                results, state = decode.write_unknown(
                    model, method, params, state, sampling, calls, end, last
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
    """The parts of the text that are filled one after the other."""
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
        """Adds new tokens and tells the listener."""
        self.token_N[position_U] = token_U
        self.positions += position_U.tolist()
        self.log_probs += log_prob_U.tolist()
        if listener is not None and (len(token_U) or self.ended):
            listener(
                self.number,
                list(zip(position_U.tolist(), token_U.tolist(), strict=True)),
                self.ended,
            )

    def result(self, stop: int) -> Filled:
        """Returns the filled text. Raises BadInput if a likelihood is not finite."""
        if not np.isfinite(self.log_probs).all():
            raise BadInput(
                f"text {self.number + 1}: a likelihood is not finite; the parameters are damaged"
            )
        # Every text has an unknown position, so it has a last filled one.
        last = self.positions[-1]
        end = last + 1 if self.token_N[last] == stop else None
        filled = Filled(
            self.token_N[:end], np.array(self.positions, int), np.array(self.log_probs), self.calls
        )
        return filled.with_best(*self.best) if self.best else filled


def _in_order(part: Segment, place_N: np.ndarray) -> Segment:
    """Sorts the unknown positions by `place_N`. No token sees them unless they are read as MASK."""
    rank_N = np.where(part.rank_N > 0, NEVER, part.rank_N)
    order_U = np.argsort(place_N[part.text_U])
    return part._replace(
        rank_N=rank_N,
        position_U=part.position_U[order_U],
        target_U=part.target_U[order_U],
        text_U=part.text_U[order_U],
    )


def _continued(model: Decoder, ids_N: np.ndarray, known_N: np.ndarray) -> list[Segment]:
    """Returns the parts of a text with a gap at its end: a part for each segment of known tokens,
    the last also with the first `decode.CHUNK` unknown tokens; then a part that reads no token for
    each further `CHUNK`.
    """
    read_N, known_N = with_leading_eod(model, ids_N, known_N)
    length, N, segment_len = int(known_N.sum()), len(read_N), model.segment_len
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
            np.arange(len(token_N)) * (not model.prefix),
            at_U % segment_len,
            read_N[at_U],
            at_U - skipped,
        )
        for token_N, at_U in pairs
    ]
