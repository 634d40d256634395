"""Fills the gaps of texts, in any order: infilling, and generation, whose gap is at the end.

A text is read as by `infer.score`: in segments of T = `data.segment_len` tokens, all of a segment before the next one.
What is filled in a segment becomes memory for the next. So the likelihood that is found here is the one that `Scorer`
finds for the whole text in the same order.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from xlnet_jax.batch import NEVER
from xlnet_jax.config import Config
from xlnet_jax.data.tokenizer import PAD
from xlnet_jax.errors import BadInput, check_whole
from xlnet_jax.infer import decode
from xlnet_jax.infer.decode import Method
from xlnet_jax.infer.generate import rows_at_a_time
from xlnet_jax.infer.orders import SHORTEST_SEGMENT, Order, Segment, any_order, checked, listed, places, segments
from xlnet_jax.infer.sampling import PLAIN, Sampling
from xlnet_jax.train.loss import LanguageModel

log = logging.getLogger("xlnet_jax")

FEWEST_GAPS = 8
"""Slots of unknown tokens that are compiled at least."""

Listener = Callable[[int, list[tuple[int, int]], bool], None]
"""Called with the number of a text, the positions and tokens that were filled since the last call, in their order, and
whether it has ended."""


class Filled(NamedTuple):
    """One text after its U unknown tokens were filled."""

    token_N: np.ndarray
    """int32: the whole text; after a `stop` it ends."""
    position_U: np.ndarray
    """int: the unknown positions, in the order in which they were filled."""
    log_prob_U: np.ndarray
    """Nats, in that order: of the model (temperature 1, nothing left out) given what was known then. Without
    `tokens_per_step`    the sum is log p(x_S | x_C) in this order."""
    calls: int
    """Forward passes that predicted something of this text."""


@dataclasses.dataclass(frozen=True)
class Filler:
    """A model that fills the gaps of texts. Programs are shared by all fillers of an equal model.

    Attributes:
      model: of `fillable`.
      params: on the devices that compute.
      segment_len: T.
      batch_size: texts at a time; it does not change the draws.
    """

    model: LanguageModel
    params: Any
    segment_len: int
    batch_size: int = 16

    def __call__(
        self,
        tokens: Sequence[Sequence[int]],
        known: Sequence[Sequence[bool]],
        sampling: Sampling = PLAIN,
        order: Order = "left",
        tokens_per_step: int = 1,
        speculative: int = 0,
        stop: int | None = None,
        listener: Listener | None = None,
    ) -> list[Filled]:
        """Fills the unknown tokens of every text.

        What a text becomes depends on itself, its number and the seed alone; with equal shapes bit for bit.

        Args:
          tokens: ids of each text; at unknown positions any.
          known: of each text, whether its tokens are given.
          order: of all texts; `confidence`: at each step the position whose most probable token is the most probable.
          tokens_per_step: more than one are drawn independently: fast, and not the model's joint distribution.
          speculative: so many tokens are drafted at a time and then verified: the distribution is that of one token at
            a time, with fewer calls; 0: none.
          stop: the token that ends a text (order `left`); it is the last one of the result.

        Raises BadInput; see `orders.checked`, `orders.places` and `Sampling.check`; for a combination that cannot be;
        or if the parameters are not finite.
        """
        sampling.check(1)
        order = listed(order)
        if self.batch_size < 1:
            raise BadInput(f"batch_size={self.batch_size} must be at least 1")
        check(order, tokens_per_step, speculative, stop)
        if tokens_per_step > 1:
            log.warning("tokens_per_step=%d is inexact: the pieces of one call do not know of each other, so the "
                        "result is no draw of the model, and has no joint likelihood", tokens_per_step)  # fmt: skip
        method = Method(tokens_per_step, speculative, order == "confidence", sampling.filtered)
        rows = []
        for number, (ids_N, known_N) in enumerate(checked(self.model, self.segment_len, tokens, known), 1):
            given = "left" if method.by_confidence else order
            place_N = places(number, known_N, given, (sampling.seed, number, 0), self.segment_len)
            rows.append(segments(ids_N, known_N, place_N, self.segment_len))
        found: list[Any] = [None] * len(rows)
        by_size = sorted(range(len(rows)), key=lambda row: sum(len(segment.token_N) for segment in rows[row]))
        B = rows_at_a_time(self.batch_size, len(rows))
        for first in range(0, len(rows), B):
            chosen = by_size[first : first + B]
            filled = _Rows(self, method, sampling, stop, [rows[row] for row in chosen], chosen, B, listener).run()
            for row, one in zip(chosen, filled, strict=True):
                if not np.isfinite(one.log_prob_U).all():
                    raise BadInput(f"text {row + 1}: a likelihood is not finite; the parameters are damaged")
                found[row] = one
        return found


class _Rows:
    """At most B texts at a time, segment after segment."""

    def __init__(
        self, filler: Filler, method: Method, sampling: Sampling, stop: int | None, rows: list[list[Segment]],
        numbers: list[int], B: int, listener: Listener | None,
    ) -> None:  # fmt: skip
        self._filler, self._sampling, self._stop, self._rows, self._numbers = filler, sampling, stop, rows, numbers
        self._rounds, self._B, self._listener = max(map(len, rows)), B, listener
        every = [segment for row in rows for segment in row]
        T, slots = filler.segment_len, max(len(segment.place_U) for segment in every)
        self._memory_len = filler.model.transformer.config.memory_len
        if self._rounds == 1:
            # One segment has no memory.
            T, self._memory_len = min(T, bucket(max(len(segment.token_N) for segment in every), SHORTEST_SEGMENT)), 0
        self._T, self._U = T, min(T, bucket(slots, FEWEST_GAPS))
        # A call does not predict more tokens than there are slots.
        self._method = dataclasses.replace(
            method, tokens_per_step=min(method.tokens_per_step, self._U), speculative=min(method.speculative, self._U)
        )
        self._tokens = [[segment.token_N.copy() for segment in row] for row in rows]
        self._positions: list[list[int]] = [[] for _ in rows]
        self._log_probs: list[list[float]] = [[] for _ in rows]
        self._calls_B = np.zeros(B, int)
        self._ended = [False] * len(rows)

    def run(self) -> list[Filled]:
        model, params = self._filler.model, self._filler.params
        numbers_B = np.array([*self._numbers, *[0] * (self._B - len(self._rows))], np.int32)
        state = decode.start(model, self._method, params, self._T, self._memory_len, self._U, numbers_B)
        write = functools.partial(decode.write, model, self._method, params)
        for turn in range(self._rounds):
            if all(self._ended):
                break
            tokens_BT, rank_BT, position_BU = self._padded(turn)
            state = decode.read(model, params, state, tokens_BT, rank_BT, position_BU, turn > 0)
            done_BU = np.zeros(position_BU.shape, bool)
            while True:
                results, state = write(
                    state, self._sampling.arrays(), np.int32(decode.CHUNK), self._stop, turn == self._rounds - 1
                )
                size_B, token_BU, log_prob_BU, turn_BU, self._calls_B = jax.device_get(results)
                left_BU = (turn_BU < 0) & (np.arange(self._U) < size_B[:, None])
                for b in range(len(self._rows)):
                    self._hear(turn, b, position_BU[b], token_BU[b], log_prob_BU[b], turn_BU[b], done_BU[b],
                               not left_BU[b].any())  # fmt: skip
                done_BU = turn_BU >= 0
                if not left_BU.any():
                    break
        return [self._result(b) for b in range(len(self._rows))]

    def _padded(self, turn: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One segment of every text: the tokens and the ranks of what is known, and where the rest is, in its order."""
        tokens_BT = np.full((self._B, self._T), PAD, np.int32)
        rank_BT, position_BU = np.full_like(tokens_BT, NEVER), np.full((self._B, self._U), self._T, np.int32)
        for b, row in enumerate(self._rows):
            if turn < len(row) and not self._ended[b]:
                segment = row[turn]
                rank_N = segment.rank_N.copy()
                rank_N[segment.place_U] = NEVER
                tokens_BT[b, : len(rank_N)], rank_BT[b, : len(rank_N)] = segment.token_N, rank_N
                position_BU[b, : len(segment.place_U)] = segment.place_U[np.argsort(segment.rank_N[segment.place_U])]
        return tokens_BT, rank_BT, position_BU

    def _hear(
        self, turn: int, b: int, position_U: np.ndarray, token_U: np.ndarray, log_prob_U: np.ndarray,
        turn_U: np.ndarray, done_U: np.ndarray, complete: bool,
    ) -> None:  # fmt: skip
        """Takes what is new in one text."""
        if self._ended[b] or turn >= len(self._rows[b]):
            return
        new_U = np.flatnonzero((turn_U >= 0) & ~done_U)
        new_U = new_U[np.argsort(turn_U[new_U], kind="stable")]
        start = turn * self._filler.segment_len
        self._tokens[b][turn][position_U[new_U]] = token_U[new_U]
        self._positions[b] += (start + position_U[new_U]).tolist()
        self._log_probs[b] += log_prob_U[new_U].tolist()
        stopped = self._stop is not None and self._stop in token_U[new_U]
        self._ended[b] = complete and (stopped or turn == len(self._rows[b]) - 1)
        if self._listener is not None and (len(new_U) or self._ended[b]):
            pairs = zip(self._positions[b][-len(new_U) :] if len(new_U) else [], token_U[new_U].tolist(), strict=True)
            self._listener(self._numbers[b], list(pairs), self._ended[b])

    def _result(self, b: int) -> Filled:
        token_N = np.concatenate(self._tokens[b])
        position_U = np.array(self._positions[b], int)
        if len(position_U) and self._stop is not None and token_N[position_U[-1]] == self._stop:
            token_N = token_N[: position_U[-1] + 1]
        return Filled(token_N, position_U, np.array(self._log_probs[b]), int(self._calls_B[b]))


def check(order: Order, tokens_per_step: int, speculative: int, stop: int | None = None) -> None:
    """Raises BadInput for a combination that cannot be; see `Filler`."""
    check_whole(tokens_per_step=tokens_per_step, speculative=speculative)
    if tokens_per_step < 1:
        raise BadInput(f"tokens_per_step={tokens_per_step} must be at least 1: tokens drawn at a time")
    if speculative < 0 or speculative == 1:
        raise BadInput(f"speculative={speculative} must be 0 (no drafts) or at least 2: tokens drafted at a time")
    if tokens_per_step > 1 and speculative:
        raise BadInput(f"tokens_per_step={tokens_per_step} with speculative={speculative}: tokens drawn together are "
                       "not verified; use one of the two")  # fmt: skip
    if speculative and order == "confidence":
        raise BadInput("order=confidence with speculative: a draft needs its order beforehand; use another order")
    if stop is not None and order != "left":
        raise BadInput(f"order={order} with a stop token: what is after it would be known before; use order=left")


def bucket(number: int, least: int) -> int:
    """A size that is compiled: a power of two, or one and a half times one."""
    power = max(least, 1 << (max(number, 1) - 1).bit_length())
    return power * 3 // 4 if number <= power * 3 // 4 and power > least else power


def fillable(config: Config, path: str) -> LanguageModel:
    """The model of a configuration that fills gaps. Raises BadInput if it does not."""
    if config.data.objective == "mlm":
        raise BadInput(f"{path} was trained with data.objective=mlm, which predicts each unknown token by itself: use "
                       "`xlnet_jax.load(...).logits`, which gives those of every `[MASK]`, or train one with "
                       "data.objective=plm")  # fmt: skip
    if config.data.objective == "clm":
        raise BadInput(f"{path} is left-to-right (data.objective=clm) and cannot fill a gap: use `generate`, or train "
                       "one with data.objective=plm")  # fmt: skip
    model = any_order(config, path)
    if config.compat.on("zero_memory"):
        raise BadInput(f"{path}: no filling with zero_memory in compat.switches: the cache has no empty slots to see")
    return model
