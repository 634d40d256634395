"""Estimates the likelihood of windows of held-out text, and of parts of windows, for every
objective.

    left_to_right   -log p(x_1 ... x_N) by the chain rule from left to right
    half            -log p(x_S | x_C) for a random half S of the window, by the chain rule; the mean
                    over random orders
    pseudo          -sum_i log p(x_i | all but x_i); the terms have no joint distribution
    bound           the training loss of masked diffusion (`mdm`), from `DRAWS` sets of masks
                    (`Scorer.elbo`); without the noise of the draws it is at least -log p of the
                    mixture of all orders of a window

A left-to-right model (`clm`) has the first measure only, in one call of the network for each
window. A permutation model (`plm`) needs one call per order for the first two. A masked model
(`mlm`, `mdm`) needs a call for each token, in which all tokens later in the order are masked. Calls
are counted. For each order the likelihoods of the first two measures sum to 1 over all texts. The
mean of -log p over orders is an upper bound on -log p of the mixture of these orders.

With whole documents each document is a window. A window is read without a memory of earlier text.
A window longer than a segment is read in segments with the memory carried; a model without memory
reads each segment alone and sees less.
"""

from __future__ import annotations

import functools
import time
from typing import NamedTuple

import numpy as np

from xlnet_jax.config import Config
from xlnet_jax.data.batches.frames import pieces_around
from xlnet_jax.data.batches.stream import uniforms
from xlnet_jax.infer.options import Score
from xlnet_jax.infer.orders import Text
from xlnet_jax.infer.score import Scorer
from xlnet_jax.messages import progress_bar
from xlnet_jax.model.flops import forward_flops

MEASURES = ("left_to_right", "half", "pseudo", "bound")
DRAWS = 64
"""Sets of masks for each text."""
SEED = 0
"""Seed of unknown places, orders and masks. It is not the seed of a run, so that all models answer
the same questions.
"""


class Estimate(NamedTuple):
    """One measure of N windows."""

    nats_N: np.ndarray
    """-log p of the unknown tokens, the mean over orders."""
    calls: int
    """Rows that the network has read, without padding."""
    flops: int
    """Forward FLOPs of these rows for the tokens of text; see `model.flops`."""
    seconds: float
    """Wall-clock time with compilation."""


def known_places(tokens_NT: np.ndarray, target_share: float) -> np.ndarray:
    """Returns which tokens of N texts are known, bool [N, T]: a fixed share of each text, at random
    places. The padding (-1) behind a text is known.
    """
    (N, T), text_NT = tokens_NT.shape, tokens_NT >= 0
    draws_NT = np.where(text_NT, uniforms(SEED, "joint", 0, np.arange(N), T), 1)
    unknown_N1 = np.round(target_share * text_NT.sum(axis=1, keepdims=True))
    return np.argsort(np.argsort(draws_NT, axis=1), axis=1) >= np.maximum(1, unknown_N1)


def text_tokens_at_once(config: Config) -> int:
    """Returns the number of tokens of text per segment, without the special pieces around it."""
    return config.data.segment_len - pieces_around(config)


def unknown_places(measure: str, tokens_NT: np.ndarray) -> np.ndarray:
    """Returns which tokens of N texts a measure predicts, bool [N, T]; see `known_places`."""
    return ~known_places(tokens_NT, 0.5 if measure == "half" else 1.0)


def estimate(
    scorer: Scorer, config: Config, measure: str, tokens_NT: np.ndarray, orders: int = 1
) -> Estimate | None:
    """Estimates a measure of N windows of text.

    Args:
      scorer, config: one model and its configuration.
      tokens_NT: the windows, or whole documents with -1 behind each.
      orders: number of random orders of `half`.

    Returns None if the model lacks the measure: a left-to-right model sees only earlier tokens.
    Raises BadInput for parameters that are not finite.
    """
    if measure not in config.objective.measures:
        return None
    bound = measure == "bound"
    K = orders if measure == "half" else 1
    asked = Score(orders=K, order="random" if measure == "half" else "left", draws=DRAWS, seed=SEED)
    window_X, texts = _questions(config, measure, tokens_NT)
    began = time.perf_counter()
    with progress_bar(measure, len(texts) * (DRAWS if bound else K)) as bar:
        advance = functools.partial(bar.advance, bar.task_ids[0])
        found = (scorer.elbo if bound else scorer.log_prob)(texts, asked, advance)
    nats_X = [-one[1].sum(axis=1).mean() for one in found]  # terms [K, U]
    seconds = time.perf_counter() - began
    nats_N = np.bincount(window_X, nats_X, len(tokens_NT))
    calls = flops = 0
    for ids_N, known_N in texts:
        U, rounds = int((~known_N).sum()), -(-len(ids_N) // scorer.segment_len)
        rows, targets = (U, 1) if config.objective.masks else (rounds, -(-U // rounds))
        if bound:
            rows, targets = DRAWS, (U + 1) // 2  # the mean of uniform sizes
        rows *= K
        calls += rows
        read = min(len(ids_N), scorer.segment_len)
        flops += rows * _flops(config, read, targets, rounds > 1)
    return Estimate(nats_N, calls, flops, seconds)


def _questions(config: Config, measure: str, tokens_NT: np.ndarray) -> tuple[list[int], list[Text]]:
    """Returns the texts to score and the number of the window of each."""
    window_X, texts, T = [], [], tokens_NT.shape[1]
    reach = T if config.model.memory_len else text_tokens_at_once(config)
    for number, unknown_T in enumerate(unknown_places(measure, tokens_NT)):
        for start in range(0, T, reach):
            cut = slice(start, start + reach)
            together = np.flatnonzero(unknown_T[cut])
            for at_U in (
                together[:, None] if measure == "pseudo" else [together] * bool(len(together))
            ):
                ids_N = tokens_NT[number, cut]
                ids_N = ids_N[ids_N >= 0]
                known_N = np.ones(len(ids_N), bool)
                known_N[at_U] = False
                texts.append((ids_N, known_N))
                window_X.append(number)
    return window_X, texts


@functools.cache
def _flops(config: Config, tokens: int, targets: int, memory: bool) -> int:
    """Returns the forward FLOPs of a row."""
    data = {"segment_len": tokens, "num_predict": targets, "multi_token_prediction": 1}
    model = {"memory_len": config.model.memory_len * memory, "layer_losses": False}
    return sum(forward_flops(config.changed(data=data, model=model)).values())
