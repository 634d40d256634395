"""How far back left-to-right models look: the relative effective context length (Transformer-XL, section 4.3 and
appendix C; Dai et al. 2019, arXiv 1901.02860).

    l_i(c, t)                                              loss of model i on token t, given exactly the c tokens before
    b(c, t) = min_i l_i(c, t)                              the baseline: the best model with the short context
    f_i(c, c') = mean_{t in T} min(b(c, t), l_i(c', t))    T: the share r of the tokens with the largest b(c, t)
    g_i(c, c') = 1 - exp(f_i(c, c') - f_i(c, c))           the relative gain in perplexity of the longer context c'

The effective context length of model i is the first c whose gain is below 1 %. The paper lengthens c by a constant;
here every c' is 2c, so the result is a power of two.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.errors import BadInput
from xlnet_jax.train import sliding
from xlnet_jax.train.recipe import Recipe

SHARES = (0.1, 0.5, 1.0)
"""The r of the paper's table: the hardest tokens, and all."""

LEAST_GAIN = 0.01
"""The paper's threshold."""


def doubling(longest: int) -> list[int]:
    """1, 2, 4, ... up to `longest`."""
    return [2**k for k in range(longest.bit_length())]


def windows(heldout: Mixture, longest: int, targets: int) -> np.ndarray:
    """Evenly spaced target tokens of the splits, each after the `longest` tokens before it: int32 [N, longest + 1].

    Raises BadInput if a split has no such token.
    """
    windows_of, each = [], -(-targets // len(heldout.corpora))
    for corpus, name in zip(heldout.corpora, heldout.described(), strict=True):
        starts = corpus.tokens - longest
        if starts < 1:
            raise BadInput(f"{name} has {corpus.tokens:,} tokens, but a context of {longest:,} needs one more")
        windows_of.append(corpus.read(np.arange(min(each, starts)) * starts // min(each, starts), longest + 1)[0])
    return np.concatenate(windows_of)


def losses(recipe: Recipe, mesh: Mesh, params: Any, windows_NX: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """l(c, t) in nats for each context length c and the last token of each window, float64 [C, N]."""
    score = sliding.scorer(recipe, mesh)
    losses_C = [score(params, windows_NX[:, -length - 1 :]) for length in lengths]
    return np.stack(losses_C).astype(np.float64)


def hardest_losses(loss_ICN: np.ndarray, share: float) -> np.ndarray:
    """f_i(c, c) and f_i(c, c') for each model and each pair of neighbouring lengths, [I, C - 1, 2]."""
    pairs = []
    for short_IN, long_IN in itertools.pairwise(loss_ICN.swapaxes(0, 1)):
        baseline_N = short_IN.min(axis=0)
        hardest = np.argsort(-baseline_N, kind="stable")[: max(1, round(share * len(baseline_N)))]
        longer_I = np.minimum(baseline_N, long_IN)[:, hardest].mean(axis=1)
        pairs.append(np.stack([np.full_like(longer_I, baseline_N[hardest].mean()), longer_I], axis=1))
    return np.stack(pairs, axis=1)


def effective(gain_C: np.ndarray, lengths: Sequence[int]) -> int:
    """The first length whose gain is below `LEAST_GAIN`; the last one if there is none: it is a lower bound then."""
    small = np.flatnonzero(gain_C < LEAST_GAIN)
    return lengths[small[0]] if small.size else lengths[-1]


def described(lengths: Sequence[int], loss_ICN: np.ndarray) -> list[dict[str, Any]]:
    """Of each model the mean `loss` by length; and by share r, for every doubling, f_i(c, c) and f_i(c, c') as
    `hardest_loss` and the `gain`, and the `effective_context`."""
    models: list[dict[str, Any]] = [{"loss": loss_CN.mean(axis=1).tolist(), "share": {}} for loss_CN in loss_ICN]
    for share in SHARES:
        for model, f_C2 in zip(models, hardest_losses(loss_ICN, share), strict=True):
            gain_C = 1 - np.exp(f_C2[:, 1] - f_C2[:, 0])
            model["share"][f"{share:g}"] = {
                "effective_context": effective(gain_C, lengths),
                "gain": gain_C.tolist(),
                "hardest_loss": f_C2.tolist(),
            }
    return models
