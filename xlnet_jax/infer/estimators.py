"""One estimator for models of every objective: the likelihood of windows of held-out text, and of
parts of them.

    left_to_right   -log p(x_1 ... x_N) by the chain rule from left to right, nothing known
    half            -log p(x_S | x_C), S a random half of the window, by the chain rule in random
                    orders; their mean
    pseudo          -sum_i log p(x_i | all but x_i): its terms are of no joint distribution
    bound           masked diffusion (`mdm`) alone: what it is trained by, from `DRAWS` sets of
                    masks (`Scorer.elbo`); no less than -log p of the mixture of all orders of a
                    window, but for the noise of the draws

A left-to-right model (`clm`) has the first alone, in one call of the network a window; a
permutation model (`plm`) has each order of the first two in one call. A masked one (`mlm`, `mdm`)
needs a call for each token, in which all that is later in the order is masked. Calls are counted.
For each order both likelihoods are distributions: over all texts they sum to 1. The mean of -log p
over orders is an upper bound on -log of the mixture of these orders.

A window is read without a memory from before it. One longer than a segment is read in segments,
with the memory carried; a model without memory reads each segment for itself, and so knows less.
"""

from __future__ import annotations

import functools
import time
from typing import NamedTuple

import numpy as np

from xlnet_jax.config import Config
from xlnet_jax.data.batches.stream import uniforms
from xlnet_jax.infer.options import Score
from xlnet_jax.infer.orders import Text
from xlnet_jax.infer.score import Scorer
from xlnet_jax.messages import progress_bar
from xlnet_jax.model.flops import forward_flops

MEASURES = ("left_to_right", "half", "pseudo", "bound")
DRAWS = 64
"""Sets of masks of each text."""
SEED = 0
"""Of places, orders and masks. Not that of a run: all models get the same questions."""


class Estimate(NamedTuple):
    """Of N windows."""

    nats_N: np.ndarray
    """-log p of what is unknown, the mean over orders."""
    calls: int
    """Rows that the network has read, padding aside."""
    flops: int
    """Of these, see `model.flops`."""
    seconds: float
    """With compilation."""


def known_places(shape: tuple[int, int], target_share: float) -> np.ndarray:
    """Which tokens of N windows of T are given, bool [N, T]: of each the same number, at random
    places.
    """
    N, T = shape
    draws_NT = uniforms(SEED, "joint", 0, np.arange(N), T)
    return np.argsort(np.argsort(draws_NT, axis=1), axis=1) >= max(1, round(target_share * T))


def reads(config: Config) -> int:
    """Tokens of text that a model reads at a time, between its CLS and SEP if it has them."""
    return (
        config.data.segment_len
        - 2 * config.objective.framed[config.model.member.positions_at_input]
    )


def unknown(measure: str, shape: tuple[int, int]) -> np.ndarray:
    """What a measure of N windows of T is about, bool [N, T]."""
    return ~known_places(shape, 0.5) if measure == "half" else np.ones(shape, bool)


def estimate(
    scorer: Scorer, config: Config, measure: str, tokens_NT: np.ndarray, orders: int = 1
) -> Estimate | None:
    """A measure of N windows of text.

    Args:
      scorer, config: of one model.
      orders: random ones of `half`.

    Returns None where the model has no such likelihood: one from left to right knows only what is
    before. Raises BadInput for parameters that are not finite.
    """
    if measure not in config.objective.measures:
        return None
    bound = measure == "bound"
    K = orders if measure == "half" else 1
    asked = Score(orders=K, order="random" if measure == "half" else "left", draws=DRAWS, seed=SEED)
    window_X, texts = _questions(config, measure, tokens_NT)
    began = time.perf_counter()
    with progress_bar(measure, len(texts) * (DRAWS if bound else K)) as bar:
        done = functools.partial(bar.advance, bar.task_ids[0])
        found = (scorer.elbo if bound else scorer.log_prob)(texts, asked, done)
    nats_X = [-term_KU.sum(axis=1).mean() for _, term_KU in found]
    seconds = time.perf_counter() - began
    nats_N = np.bincount(window_X, nats_X, len(tokens_NT))
    calls = flops = 0
    for ids_N, known_N in texts:
        U, rounds = int((~known_N).sum()), -(-len(ids_N) // scorer.segment_len)
        of_text, targets = (U, 1) if config.objective.masks else (rounds, -(-U // rounds))
        if bound:
            of_text, targets = DRAWS, (U + 1) // 2  # the mean of sizes that are uniform
        calls += K * of_text
        flops += (
            K * of_text * _flops(config, min(len(ids_N), scorer.segment_len), targets, rounds > 1)
        )
    return Estimate(nats_N, calls, flops, seconds)


def _questions(config: Config, measure: str, tokens_NT: np.ndarray) -> tuple[list[int], list[Text]]:
    """What is asked in one piece: of each its window, its ids and which of them are known."""
    window_X, texts, T = list[int](), list[Text](), tokens_NT.shape[1]
    reach = T if config.model.memory_len else reads(config)
    for number, unknown_T in enumerate(unknown(measure, tokens_NT.shape)):
        for start in range(0, T, reach):
            cut = slice(start, start + reach)
            together = np.flatnonzero(unknown_T[cut])
            for at_U in (
                together[:, None] if measure == "pseudo" else [together] * bool(len(together))
            ):
                known_N = np.ones(len(unknown_T[cut]), bool)
                known_N[at_U] = False
                texts.append((tokens_NT[number, cut], known_N))
                window_X.append(number)
    return window_X, texts


@functools.cache
def _flops(config: Config, tokens: int, targets: int, memory: bool) -> int:
    """Forward FLOPs of a row that is read."""
    data = {"segment_len": tokens, "num_predict": targets, "multi_token_prediction": 1}
    model = {"memory_len": config.model.memory_len * memory, "layer_losses": False}
    return sum(forward_flops(config.changed(data=data, model=model)).values())
