"""Losses of single tokens, each predicted from the last position of a separate window.

Models without memory are evaluated by sliding one token at a time (Al-Rfou et al. 2018, arXiv
1808.04444), because the first positions of a segment have hardly any context. The window of
a token holds exactly the `context` tokens before it. The softmax computes one position per window.

Windows of growing length show how much context left-to-right models use: the relative effective
context length (Transformer-XL, section 4.3 and appendix C; Dai et al. 2019, arXiv 1901.02860).

    l_i(c, t)
        loss of model i on token t, given exactly the c tokens before
    b(c, t) = min_i l_i(c, t)
        the baseline: the best model with the short context
    f_i(c, c') = mean_{t in T} min(b(c, t), l_i(c', t))
        T: the share r of the tokens with the largest b(c, t)
    g_i(c, c') = 1 - exp(f_i(c, c') - f_i(c, c))
        the relative gain in perplexity of the longer context c'

The effective context length of model i is the first c whose gain is below 1 %. The paper lengthens
c by a constant; here every c' is 2c, so the result is a power of two.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.batch import forward_text
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.batches.stream import SinglePass
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import progress_bar, quantity
from xlnet_jax.run.progress import BUSY_SECONDS
from xlnet_jax.storage.files import Json
from xlnet_jax.train.evaluation import bits_of_text, rows_at_once, scores
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import Recipe

log = logging.getLogger("xlnet_jax")


def scorer(recipe: Recipe, mesh: Mesh) -> Callable[..., np.ndarray]:
    """Returns a function that computes -log p of the last token of each window given the tokens
    before it, in nats.

    The function takes parameters placed on the mesh, windows int32 [N, X] (equal in all processes),
    and the numbers or slice of the windows to score. It returns float32 for these windows, and
    compiles for every X. Requires `jax.set_mesh(mesh)`; the devices of the mesh share the windows.
    """
    size = rows_at_once(recipe.config, mesh)
    local = meshes.rows_here(size, mesh)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def run(params: Any, windows_1BX: jax.Array) -> jax.Array:
        with meshes.RULES.applied():
            return window_nll(recipe.model, params, windows_1BX[0], slots=1)[:, 0]

    def nll(params: Any, windows_NX: np.ndarray, which_N: Any = slice(None)) -> np.ndarray:
        which_N = np.arange(len(windows_NX))[which_N]
        count = len(which_N)
        parts = []
        logged = time.monotonic()
        with progress_bar("tokens", count) as bar:
            for first in range(0, count, size):
                # The last batch is filled up with its last window, which is cut off below.
                number_B = which_N[np.minimum(first + local, count - 1)]
                parts.append(
                    meshes.settled(
                        run(params, meshes.place(windows_NX[None, number_B], mesh, size))
                    )
                )
                jax.block_until_ready(parts[-2:-1])  # limits the batches in flight
                bar.update(bar.task_ids[0], completed=first)
                if bar.disable and time.monotonic() - logged >= BUSY_SECONDS:
                    log.info("evaluated %d of %s", first + size, quantity(count, "token"))
                    logged = time.monotonic()
        return np.concatenate(jax.device_get(parts))[:count]

    return nll


def window_nll(model: LanguageModel, params: Any, windows_BN: jax.Array, slots: int) -> jax.Array:
    """-log p of each of the last tokens of a window given all tokens before it, at least float32
    [B, slots].
    """
    B = windows_BN.shape[0]
    T = windows_BN.shape[1] - 1
    at_BT = np.tile(np.arange(T, dtype=np.int32), (B, 1))
    batch = forward_text(
        windows_BN[:, :T], at_BT, np.zeros_like(at_BT), at_BT[:, -slots:], windows_BN[:, -slots:]
    )
    out = model.run(params, batch)
    return model.nll(params, out.target_vectors_BPD, batch.target_tokens)


class SlidingLoss:
    """The held-out loss of a model with positions learned at every layer, with the longest context
    that it can use.

    Every token but the first is scored once; tokens of the first segment have less context than
    other tokens. Arguments and attributes are as in `evaluation.HeldoutLoss`.
    """

    def __init__(
        self,
        recipe: Recipe,
        mesh: Mesh,
        mixture: Mixture,
        train_counts_V: np.ndarray,
        blocks: int = 0,
    ) -> None:
        config = recipe.config
        model = recipe.model
        if config.model.member.parts.positions != "per_layer" or config.data.whole_documents:
            raise BadInput(
                f"model.architecture={config.model.architecture}, "
                f"data.documents={config.data.documents}: only models with positions learned at "
                "every layer (vanilla), trained on a stream (joined), slide one token at a time; "
                "leave --sliding out"
            )
        mixture.check(config)
        self._context = context = config.data.segment_len
        self._mixture = mixture
        self._train_counts_V = train_counts_V
        W = config.data.windows_per_block
        predicted = [corpus.tokens - 1 for corpus in mixture.corpora]
        rows_S3 = SinglePass.of_blocks(tuple(predicted), context, W, blocks * W).rows_S3
        rows = (rows_S3 * (1, context, context)).tolist()
        # The numbers of the scored tokens of every split, counted from its second token.
        self._scored_CN = [
            np.concatenate(
                [
                    np.arange(first, min(first + length, n))
                    for of, first, length in rows
                    if of == corpus
                ]
            )
            for corpus, n in enumerate(predicted)
        ]
        scored = sum(map(len, self._scored_CN))
        total = sum(predicted)
        self._share = scored / total
        self.scope = f"{scored:,} of {quantity(total, 'window')} of {quantity(context, 'token')}"
        self._last = scorer(recipe, mesh)

        @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
        def run_first(params: Any, window_X: jax.Array) -> jax.Array:
            with meshes.RULES.without(meshes.RULES.batch).applied():
                return window_nll(model, params, window_X[None], slots=context)[0]

        self._first = run_first

    def __call__(self, params: Any) -> Json:
        """`evaluation.scores` and `bits_of_text` without `loss_without_memory`, and `context`, the
        number of tokens before each scored token.
        """
        totals_C3 = np.zeros((len(self._scored_CN), 3))
        counts_V = np.zeros(len(self._train_counts_V), np.int64)
        for corpus, scored_N, totals_3 in zip(
            self._mixture.corpora, self._scored_CN, totals_C3, strict=True
        ):
            tokens_N = corpus.read(np.zeros(1, np.int64), corpus.tokens)[0][0]
            windows_NX = np.lib.stride_tricks.sliding_window_view(tokens_N, self._context + 1)
            of_first_X, others_N = np.split(scored_N, [np.searchsorted(scored_N, self._context)])
            losses = [jax.device_get(self._first(params, windows_NX[0]))[of_first_X]]
            if len(others_N):
                losses.append(self._last(params, windows_NX, others_N - self._context + 1))
            summed = np.concatenate(losses).astype(np.float64).sum()
            totals_3[:] = summed, np.nan, len(scored_N)
            counts_V += np.bincount(tokens_N[1:][scored_N], minlength=len(counts_V))
        scored = scores(totals_C3, self._mixture.names, counts_V, self._train_counts_V, self._share)
        del scored["loss_without_memory"]
        bits = bits_of_text(totals_C3[:, 0].sum(), counts_V, self._mixture.tokenizer)
        return scored | bits | {"context": self._context}


SHARES = (0.1, 0.5, 1.0)
"""The shares r of hardest tokens in the table of the paper; 1 = all tokens."""

LEAST_GAIN = 0.01
"""The gain below which the paper calls a longer context useless."""


def doubling(longest: int) -> list[int]:
    """1, 2, 4, ... up to `longest`."""
    return [2**k for k in range(longest.bit_length())]


def windows(
    heldout: Mixture, length: int, most: int, every: int = 1, whole: bool = False
) -> np.ndarray:
    """Up to `most` windows (0 = all) of each split, evenly spaced over the windows that start
    at multiples of `every`: int32 [N, length]. If `whole`, the windows are the documents of at most
    `length` tokens of text, with -1 behind each. Raises BadInput if a split has no window.
    """
    windows_of = []
    for corpus, name in zip(heldout.corpora, heldout.split_names(), strict=True):
        text_D = fits_D = np.arange(0)
        available = (corpus.tokens - length) // every + 1
        if whole:
            text_D = corpus.lengths - (corpus.tokenizer.special.eod is not None)
            fits_D = np.flatnonzero((text_D > 0) & (text_D <= length))
            available = len(fits_D)
        if available < 1:
            what = "document of at most" if whole else "window of"
            raise BadInput(
                f"{name} has {corpus.tokens:,} tokens, but no {what} {length:,}; "
                f"hold out more text{', or raise data.segment_len' * whole}"
            )
        count = min(available, most or available)
        number_N = np.arange(count) * available // count
        if whole:
            number_N = fits_D[number_N]
            first_D = np.cumsum(corpus.lengths, dtype=np.int64) - corpus.lengths
            tokens_NT, _ = corpus.read(first_D[number_N], length)
            tokens_NT[np.arange(length) >= text_D[number_N, None]] = -1
        else:
            tokens_NT, _ = corpus.read(number_N * every, length)
        windows_of.append(tokens_NT)
    return np.concatenate(windows_of)


def losses(
    recipe: Recipe, mesh: Mesh, params: Any, windows_NX: np.ndarray, lengths: Sequence[int]
) -> np.ndarray:
    """l(c, t) in nats for each context length c and the last token of each window, float64 [C,
    N].
    """
    score = scorer(recipe, mesh)
    losses_C = [score(params, windows_NX[:, -length - 1 :]) for length in lengths]
    return np.stack(losses_C).astype(np.float64)


def hardest_losses(loss_ICN: np.ndarray, share: float) -> np.ndarray:
    """f_i(c, c) and f_i(c, c') of each model, for all neighbouring lengths: [I, C - 1, 2]."""
    pairs = []
    for short_IN, long_IN in itertools.pairwise(loss_ICN.swapaxes(0, 1)):
        baseline_N = short_IN.min(axis=0)
        hardest = np.argsort(-baseline_N, kind="stable")[: max(1, round(share * len(baseline_N)))]
        longer_I = np.minimum(baseline_N, long_IN)[:, hardest].mean(axis=1)
        pairs.append(
            np.stack([np.full_like(longer_I, baseline_N[hardest].mean()), longer_I], axis=1)
        )
    return np.stack(pairs, axis=1)


def effective(gain_C: np.ndarray, lengths: Sequence[int]) -> int:
    """Returns the first length whose gain is below `LEAST_GAIN`. If all gains are larger, returns
    the last length, a lower bound.
    """
    small = np.flatnonzero(gain_C < LEAST_GAIN)
    return lengths[small[0]] if small.size else lengths[-1]


def effective_contexts(lengths: Sequence[int], loss_ICN: np.ndarray) -> list[Json]:
    """Returns for each model the mean `loss` by length, and for each share r three values: the
    `effective_context`; the `gain` of every doubling; and f_i(c, c) and f_i(c, c') of every
    doubling as `hardest_loss`.
    """
    models: list[Json] = [
        {"loss": loss_CN.mean(axis=1).tolist(), "share": {}} for loss_CN in loss_ICN
    ]
    for share in SHARES:
        for model, f_C2 in zip(models, hardest_losses(loss_ICN, share), strict=True):
            gain_C = 1 - np.exp(f_C2[:, 1] - f_C2[:, 0])
            model["share"][f"{share:g}"] = {
                "effective_context": effective(gain_C, lengths),
                "gain": gain_C.tolist(),
                "hardest_loss": f_C2.tolist(),
            }
    return models
