"""The exact log-likelihood of unknown tokens given known ones, for any split of a text and any
order.

A permutation language model (`plm`) holds p(x_S | x_C) for every set of known positions C and
unknown positions S:

    log p(x_S | x_C) = sum_t log p(x_{z_t} | x_C, x_{z_<t})        for any order z of S

and one forward pass has all terms: known positions have rank -1, unknown ones their place in the
order, and the query stream predicts each from what has a lower rank. The sum over all completions
is 1 for every order, but a trained model is not perfect: its orders differ, and their mean and
spread are worth knowing. A left-to-right model (`clm`) has one order and knows a prefix; then the
content stream predicts the next token.

A text longer than a segment is read in segments of T = `data.segment_len` tokens with the memory
carried, as in training. Then all unknown positions of a segment come before those of the next, and
a known position is seen by the unknown ones of its own and of later segments: what is right of a
segment is not.

Masked diffusion (`mdm`) has p(x_i | what is not masked) for every set of masks, in one pass for
each set. For U unknown tokens, of which n are masked, n uniform from 1 to U and the set uniform,

    elbo = E[ U / n sum_masked log p(x_i | x_C, what is not masked) ]
         = E_z[ log p(x_S | x_C) in the order z ]

the mean over all orders of the chain rule, below log E_z[p(x_S | x_C)], which is a distribution
(`Scorer.elbo`). The chain rule itself, of one order, needs a pass for each token, in which all that
is later in the order is masked; `Scorer.log_prob` has it for these models, and for masked ones
(`mlm`).

A first token of which nothing is known: in `plm` it is a query that sees no key, so its attention
is exactly 0 and the model predicts from the position's vector alone. In `clm` it follows the end of
a document (`<eod>`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.compat import hooks
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.batching import (
    SHORTEST_SEGMENT,
    batches,
    padded,
    power_of_two,
    program,
    read_by_host,
)
from xlnet_jax.infer.options import Score
from xlnet_jax.infer.orders import Segment, Text, TextModel, following, places, segments, with_masks
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import LanguageModel

FEWEST_TARGETS = 8
"""Of the targets that are compiled; the next have twice as many."""


class Likelihood(NamedTuple):
    """Of the U unknown tokens of one text under K orders."""

    position_U: np.ndarray
    """int: where they are in the text, ascending."""
    log_prob_KU: np.ndarray
    """Nats."""

    @property
    def joint_K(self) -> np.ndarray:
        """log p(x_S | x_C) under each order, nats."""
        return self.log_prob_KU.sum(axis=1)

    @property
    def log_mean_exp(self) -> float:
        """Logarithm of the mean probability: the likelihood of the model that draws one of the
        orders.
        """
        return float(np.logaddexp.reduce(self.joint_K) - np.log(len(self.joint_K)))


class Bound(NamedTuple):
    """Of the U unknown tokens of one text, masked K times."""

    position_U: np.ndarray
    """int: where they are in the text, ascending."""
    term_KU: np.ndarray
    """U / n log p of each that was masked, with n - 1 others; 0 for one that was not. Nats."""

    @property
    def elbo(self) -> float:
        """An estimate, without bias, of a lower bound on log p(x_S | x_C), nats."""
        return float(self.term_KU.sum(axis=1).mean())

    @property
    def standard_error(self) -> float:
        """Of `elbo` if the K sets were independent; as their sizes are spread evenly it is less.
        NaN for one set.
        """
        K = len(self.term_KU)
        return float(self.term_KU.sum(axis=1).std(ddof=1) / np.sqrt(K)) if K > 1 else float("nan")


class Scorer(TextModel):
    """A model that scores texts."""

    def log_prob(
        self, texts: Sequence[Text], asked: Score, listener: Callable[[int], None] | None = None
    ) -> list[Likelihood]:
        """The log-likelihood of what is unknown in each text given what is known.

        Args:
          texts: of `orders.checked_texts`.
          asked: an order of positions is for texts with the same unknown ones, segment after
            segment; K orders are drawn by the seed, the number of the text and of the order.
          listener: called with the number of texts times orders that were computed together.

        Raises BadInput for an order that is no permutation of the unknown positions, or parameters
        that are not finite.
        """
        K, T, seed = asked.orders, self.segment_len, asked.seed
        objective = self.model.transformer.objective
        read = _by_masks if objective.masks else _from_left if objective.causal else _in_order
        every = []
        for number, (ids_N, known_N) in enumerate(texts, 1):
            orders = (
                places(number, known_N, asked.order, (seed, number, turn), T) for turn in range(K)
            )
            every.append([row for place_N in orders for row in read(self, ids_N, known_N, place_N)])
        found = zip(texts, self._of_texts(every, listener), strict=True)
        return [
            Likelihood(np.flatnonzero(~known_N), log_prob_X.reshape(K, -1))
            for (_, known_N), log_prob_X in found
        ]

    def elbo(
        self, texts: Sequence[Text], asked: Score, listener: Callable[[int], None] | None = None
    ) -> list[Bound]:
        """The bound of masked diffusion; arguments and errors as of `log_prob`, a pass for each of
        `asked.draws` sets.

        The sizes of a text's K sets are spread evenly from 1 to U, after a random start: if K is a
        multiple of U, each size is there equally often.
        """
        K = asked.draws
        every = [
            _masks(~known_N, K, (asked.seed, number))
            for number, (_, known_N) in enumerate(texts, 1)
        ]
        rows = [
            [[with_masks(self.model, ids_N, ~mask_N, self.special)] for mask_N in mask_KN]
            for (ids_N, _), mask_KN in zip(texts, every, strict=True)
        ]
        results = list[Bound]()
        for (_, known_N), mask_KN, log_prob_X in zip(
            texts, every, self._of_texts(rows, listener), strict=True
        ):
            term_KN = np.zeros(mask_KN.shape)
            term_KN[mask_KN] = log_prob_X
            term_KN *= (~known_N).sum() / mask_KN.sum(axis=1, keepdims=True)
            results.append(Bound(np.flatnonzero(~known_N), term_KN[:, ~known_N]))
        return results

    def _of_texts(
        self, of_texts: list[list[list[Segment]]], listener: Callable[[int], None] | None
    ) -> list[np.ndarray]:
        """Of each text log p of the targets of all its rows. Raises BadInput if one is not
        finite.
        """
        rows, found = [row for of_text in of_texts for row in of_text], dict[int, np.ndarray]()
        B, groups = batches(
            [sum(len(segment.token_N) for segment in row) for row in rows], self.batch_size
        )
        for numbers in groups:
            found |= zip(numbers, self._batch([rows[row] for row in numbers], B), strict=True)
            if listener is not None:
                listener(len(numbers))
        left, results = iter(range(len(rows))), list[np.ndarray]()
        for number, of_text in enumerate(of_texts, 1):
            results.append(np.concatenate([found[next(left)] for _ in of_text]))
            if not np.isfinite(results[-1]).all():
                raise BadInput(
                    f"text {number}: the likelihood is not finite; the parameters are damaged"
                )
        return results

    def _batch(self, rows: list[list[Segment]], B: int) -> list[np.ndarray]:
        rounds = max(map(len, rows))
        every = [segment for row in rows for segment in row]
        T = self.segment_len
        if rounds == 1:
            T = min(
                T, power_of_two(max(len(segment.token_N) for segment in every), SHORTEST_SEGMENT)
            )
        P = min(T, power_of_two(max(len(segment.position_U) for segment in every), FEWEST_TARGETS))
        # One segment has no memory.
        slots = None if rounds > 1 else hooks.empty_slots(self.model.transformer.compat)
        memory = empty_memory(self.model.transformer.config, B, slots)
        parts: list[list[np.ndarray]] = [[] for _ in rows]
        for turn in range(rounds):
            batch = padded(
                [row[turn] if turn < len(row) else None for row in rows], B, T, P, turn > 0
            )
            log_prob_BP, memory = _score(self.model, self.params, batch, memory)
            log_prob_BP = jax.device_get(log_prob_BP)
            for b, row in enumerate(rows):
                if turn < len(row):
                    parts[b].append(log_prob_BP[b, : len(row[turn].position_U)])
        return [np.concatenate(each) for each in parts]


def _in_order(
    scorer: Scorer, ids_N: np.ndarray, known_N: np.ndarray, place_N: np.ndarray
) -> list[list[Segment]]:
    """One row for all positions: a query of each reads what is known and what is before it in the
    order.
    """
    return [segments(ids_N, known_N, place_N, scorer.segment_len, scorer.special)]


def _from_left(
    scorer: Scorer, ids_N: np.ndarray, known_N: np.ndarray, place_N: np.ndarray
) -> list[list[Segment]]:
    """One row for all positions: the parts of a text in which its tokens are read and predict the
    next.
    """
    T = scorer.segment_len
    ids_N, known_N = following(ids_N, known_N, scorer.special)
    parts = []
    for start in range(0, len(ids_N) - 1, T):
        read_N = ids_N[:-1][start : start + T]
        position_U = np.flatnonzero(~known_N[start + 1 : start + 1 + len(read_N)])
        text_U = start + 1 + position_U
        parts.append(Segment(read_N, np.arange(len(read_N)), position_U, ids_N[text_U], text_U))
    return [parts]


def _by_masks(
    scorer: Scorer, ids_N: np.ndarray, known_N: np.ndarray, place_N: np.ndarray
) -> list[list[Segment]]:
    """Of each unknown position, ascending, a row: MASK there and wherever the order comes later."""
    rows = []
    for at in np.flatnonzero(~known_N):
        whole = with_masks(scorer.model, ids_N, known_N | (place_N < place_N[at]), scorer.special)
        one, of_one = whole.text_U == at, ("position_U", "target_U", "text_U")
        rows.append([whole._replace(**{name: getattr(whole, name)[one] for name in of_one})])
    return rows


def _masks(unknown_N: np.ndarray, draws: int, key: tuple[int, int]) -> np.ndarray:
    """Which positions are masked in each draw, bool [K, N]; see `Scorer.elbo`."""
    random, U = np.random.default_rng(key), int(unknown_N.sum())
    size_K1 = 1 + ((np.arange(draws)[:, None] + random.random()) / draws * U).astype(int)
    mask_KN = np.zeros((draws, len(unknown_N)), bool)
    mask_KN[:, unknown_N] = (
        np.argsort(np.argsort(random.random((draws, U)), axis=1), axis=1) < size_K1
    )
    return mask_KN


@program(static_argnums=0)
def _score(
    model: LanguageModel, params: Any, batch: Batch, memory: Memory
) -> tuple[jax.Array, Memory]:
    """log p of every target, [B, P] in at least float32, and the memory for the next segment."""
    out = model.run(params, batch, memory)
    log_prob_BP = -model.nll(params, out.target_vectors_BPD, jnp.asarray(batch.target_tokens))
    return read_by_host(log_prob_BP), out.memory
