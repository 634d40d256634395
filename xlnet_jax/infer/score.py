"""The exact log-likelihood of unknown tokens given known ones, for any split of a text and any
order.

A permutation language model (`plm`) computes p(x_S | x_C) for every set C of known positions and
every set S of unknown positions:

    log p(x_S | x_C) = sum_t log p(x_{z_t} | x_C, x_{z_<t})        for any order z of S

One forward pass computes all terms: known positions have rank -1, unknown positions have their
place in the order, and the query stream predicts each token from tokens of lower rank. For every
order the probabilities of all completions sum to 1. A trained model gives different values for
different orders, so mean and spread over orders are useful. A left-to-right model (`clm`) has one
order: the known tokens are a prefix, and the content stream predicts the next token.

A text longer than a segment is read in segments of T = `data.segment_len` tokens with the memory
carried, as in training. The order then goes through the segments one after the other. An
unknown position sees the known positions of its own segment and of earlier segments, but not of
later segments.

Masked diffusion (`mdm`) predicts masked tokens from all others, with one pass for each set of
masks. If n of U unknown tokens are masked, with n uniform from 1 to U and the set uniform,

    elbo = E[ U / n sum_masked log p(x_i | x_C, unmasked tokens) ]
         = E_z[ log p(x_S | x_C) in the order z ]

is the mean of the chain rule over all orders, a lower bound on log E_z[p(x_S | x_C)], which is the
log of a distribution (`Scorer.elbo`). The chain rule in one order needs a pass for each token, in
which all tokens later in the order are masked; `Scorer.log_prob` computes it for models of `mdm`
and `mlm`.

With `order=confidence` the model chooses the order: each step takes the unknown position whose most
probable token has the highest probability, the leftmost of equals. The next position is a function
of what is known, so the chain rule holds, and the probabilities of all completions sum to 1 (arXiv
2603.01367). It is the likelihood of a text under the decoder of `fill` with this order, also for
`mlm`. It needs a call for each token, and predicts all unknown positions in each call.

If no token of a text is known: in `plm` the query of the first token to predict sees no key, so its
attention is exactly 0, and the model predicts from the position's vector alone; in `clm` that token
follows the end of a document (`<eod>`).
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
from xlnet_jax.infer.decoder import Decoder
from xlnet_jax.infer.options import Decoding, Score
from xlnet_jax.infer.orders import (
    Segment,
    Text,
    TextModel,
    places,
    segments,
    with_leading_eod,
    with_masks,
)
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import LanguageModel

FEWEST_TARGETS = 8
"""Number of targets of the smallest compiled program; larger sizes are powers of two."""

Counter = Callable[[int], None]
"""Function that is called with the number of texts times orders of each computed batch."""


class Likelihood(NamedTuple):
    """The likelihood of the U unknown tokens of one text under K orders."""

    position_U: np.ndarray
    """int: positions of the unknown tokens in the text, ascending."""
    log_prob_KU: np.ndarray
    """log p of each token under each order, nats."""
    place_U: np.ndarray | None = None
    """int, with `order=confidence`: the place of each token in the order, from 1."""

    @property
    def joint_K(self) -> np.ndarray:
        """log p(x_S | x_C) under each order, nats."""
        return self.log_prob_KU.sum(axis=1)

    @property
    def log_mean_exp(self) -> float:
        """Logarithm of the mean probability over the orders, nats: the likelihood under an order
        that is drawn uniformly from them.
        """
        return float(np.logaddexp.reduce(self.joint_K) - np.log(len(self.joint_K)))


class Effect(NamedTuple):
    """The likelihoods of the changed tokens of a mutant, and of the tokens of the wild type at the
    same positions, given all other tokens, under the same K orders.
    """

    mutant: Likelihood
    wild: Likelihood

    @property
    def log_ratio(self) -> float:
        """log p(mutant | rest) - log p(wild type | rest), nats; p is the mean over the orders."""
        return self.mutant.log_mean_exp - self.wild.log_mean_exp

    @property
    def standard_error(self) -> float:
        """The standard error of `log_ratio` over independent orders, to first order. NaN for a
        single order.
        """
        mutant_K, wild_K = (np.exp(one.joint_K - one.log_mean_exp) for one in self)
        return _standard_error(mutant_K - wild_K)


class Bound(NamedTuple):
    """A bound on the likelihood of the U unknown tokens of one text, from K sets of masks."""

    position_U: np.ndarray
    """int: positions of the unknown tokens in the text, ascending."""
    term_KU: np.ndarray
    """(U / n) log p of each of the n masked tokens of a set, 0 for the other tokens; nats."""

    @property
    def elbo(self) -> float:
        """An unbiased estimate of a lower bound on log p(x_S | x_C), nats."""
        return float(self.term_KU.sum(axis=1).mean())

    @property
    def standard_error(self) -> float:
        """The standard error of `elbo` for independent sets; the even spread of their sizes makes
        the real error smaller. NaN for a single set.
        """
        return _standard_error(self.term_KU.sum(axis=1))


class Pseudo(NamedTuple):
    """The pseudo-likelihood of the U scored tokens of one text, by a masked model (`mlm`).

    It is sum_i log p(x_i | all but x_i), with a pass for each token, in which position i is MASK.
    The sum is not a likelihood, because its terms have no joint distribution (Salazar et al. 2020,
    arXiv:1910.14659).
    """

    position_U: np.ndarray
    """int: positions of the tokens in the text, ascending."""
    log_prob_U: np.ndarray
    """log p of each token given all others, nats."""

    @property
    def pseudo_log_prob(self) -> float:
        """The sum over the tokens, nats."""
        return float(self.log_prob_U.sum())


def _standard_error(x_K: np.ndarray) -> float:
    return float(x_K.std(ddof=1) / np.sqrt(len(x_K))) if len(x_K) > 1 else np.nan


class Scorer(TextModel):
    """A model that scores texts."""

    def log_prob(
        self, texts: Sequence[Text], asked: Score, listener: Counter | None = None
    ) -> list[Likelihood]:
        """Returns the log-likelihood of the unknown tokens of each text given the known ones.

        Args:
          texts: from `orders.checked_texts`. A left-to-right model of whole documents also scores
            the `<eod>` behind each text.
          asked: the options. A list of positions orders the unknown positions of every text,
            segment after segment. K random orders depend on the seed and the numbers of text and
            order.

        Raises BadInput as `orders.places`, and for parameters that are not finite.
        """
        if asked.order == "confidence":
            return self._by_confidence(texts, listener)
        K, T, seed = asked.orders, self.segment_len, asked.seed
        objective = self.model.transformer.objective
        read = _by_masks if objective.masks else _from_left if objective.causal else _in_order
        if objective.causal and self.frame:
            texts = [
                (np.append(ids_N, np.int32(self.special.eod)), np.append(known_N, False))
                for ids_N, known_N in texts
            ]
        rows_of_texts = []
        for number, (ids_N, known_N) in enumerate(texts, 1):
            orders = (
                places(number, known_N, asked.order, (seed, number, turn), T) for turn in range(K)
            )
            rows_of_texts.append(
                [row for place_N in orders for row in read(self, ids_N, known_N, place_N)]
            )
        log_probs = self._log_probs(rows_of_texts, listener)
        return [
            Likelihood(np.flatnonzero(~known_N), log_prob_X.reshape(K, -1))
            for (_, known_N), log_prob_X in zip(texts, log_probs, strict=True)
        ]

    def _by_confidence(self, texts: Sequence[Text], listener: Counter | None) -> list[Likelihood]:
        """Returns the likelihoods under the decoder that chooses the order."""
        decode, results = Decoder(**vars(self), given=True), []
        heard = listener and (lambda number, pairs, ended: listener(ended))
        for filled in decode(texts, Decoding(order="confidence"), listener=heard):
            turn_U = np.argsort(filled.position_U)
            log_prob_1U = filled.log_prob_U[None, turn_U]
            results.append(Likelihood(filled.position_U[turn_U], log_prob_1U, 1 + turn_U))
        return results

    def elbo(
        self, texts: Sequence[Text], asked: Score, listener: Counter | None = None
    ) -> list[Bound]:
        """Returns the bound of masked diffusion, with a pass for each of the K = `asked.draws` sets
        of masks; arguments and errors as in `log_prob`.

        The sizes of the K sets are spread evenly from 1 to U after a random start. If K is a
        multiple of U, every size occurs equally often.
        """
        masks = [
            _masks(~known_N, asked.draws, (asked.seed, number))
            for number, (_, known_N) in enumerate(texts, 1)
        ]
        rows_of_texts = [
            [[with_masks(self, ids_N, ~mask_N)] for mask_N in mask_KN]
            for (ids_N, _), mask_KN in zip(texts, masks, strict=True)
        ]
        log_probs, results = self._log_probs(rows_of_texts, listener), []
        for (_, known_N), mask_KN, log_prob_X in zip(texts, masks, log_probs, strict=True):
            term_KN = np.zeros(mask_KN.shape)
            term_KN[mask_KN] = log_prob_X
            term_KN *= (~known_N).sum() / mask_KN.sum(axis=1, keepdims=True)
            results.append(Bound(np.flatnonzero(~known_N), term_KN[:, ~known_N]))
        return results

    def _log_probs(
        self, rows_of_texts: list[list[list[Segment]]], listener: Counter | None
    ) -> list[np.ndarray]:
        """Returns log p of the targets of all rows of each text. Raises BadInput if a value is not
        finite.
        """
        rows, found = [row for of_text in rows_of_texts for row in of_text], {}
        B, groups = batches(
            [sum(len(segment.token_N) for segment in row) for row in rows], self.batch_size
        )
        for numbers in groups:
            found |= zip(numbers, self._batch([rows[row] for row in numbers], B), strict=True)
            if listener is not None:
                listener(len(numbers))
        left, results = iter(range(len(rows))), []
        for number, of_text in enumerate(rows_of_texts, 1):
            results.append(np.concatenate([found[next(left)] for _ in of_text]))
            if not np.isfinite(results[-1]).all():
                raise BadInput(
                    f"text {number}: the likelihood is not finite; the parameters are damaged"
                )
        return results

    def _batch(self, rows: list[list[Segment]], B: int) -> list[np.ndarray]:
        """Returns log p of the targets of at most B rows, which are read together."""
        rounds, T = max(map(len, rows)), self.segment_len
        read = max(len(segment.token_N) for row in rows for segment in row)
        predicted = max(len(segment.position_U) for row in rows for segment in row)
        if rounds == 1:
            T = min(T, power_of_two(read, SHORTEST_SEGMENT))
        P = min(T, power_of_two(predicted, FEWEST_TARGETS))
        # A single segment has no memory.
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
    """Returns one row for all unknown positions: the query of each position sees the known tokens
    and the unknown tokens before it in the order.
    """
    return [segments(scorer, ids_N, known_N, place_N)]


def _from_left(
    scorer: Scorer, ids_N: np.ndarray, known_N: np.ndarray, place_N: np.ndarray
) -> list[list[Segment]]:
    """Returns one row for all unknown positions, in segments where each token predicts the next."""
    T = scorer.segment_len
    ids_N, known_N = with_leading_eod(scorer, ids_N, known_N)
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
    """Returns one row for each unknown position, ascending: MASK at this and at all later positions
    of the order.
    """
    rows = []
    for at in np.flatnonzero(~known_N):
        whole = with_masks(scorer, ids_N, known_N | (place_N < place_N[at]))
        position_U, target_U, text_U = (each_U[whole.text_U == at] for each_U in whole[2:5])
        rows.append([whole._replace(position_U=position_U, target_U=target_U, text_U=text_U)])
    return rows


def _masks(unknown_N: np.ndarray, draws: int, key: tuple[int, int]) -> np.ndarray:
    """Draws the masked positions of each set, bool [K, N]; see `Scorer.elbo`."""
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
    """Returns log p of targets, [B, P] in at least float32, and the memory for the next segment."""
    out = model.run(params, batch, memory)
    log_prob_BP = -model.nll(params, out.target_vectors_BPD, jnp.asarray(batch.target_tokens))
    return read_by_host(log_prob_BP), out.memory
