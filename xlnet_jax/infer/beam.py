"""Beam search for the target y of n pieces with the highest score log p(y | x) / ((5 + n) /
6)^alpha.

    live       the W best prefixes of n pieces without END; each step keeps the best W of their
               W * V continuations
    finished   the best target so far: a prefix that ends with END or has the longest length U

The length penalty is from Wu et al. 2016 (arXiv 1609.08144, equation 14); Vaswani et al. 2017
(section 6.1) use W = 4 and alpha = 0.6. END counts as a piece. As a prefix grows, its
log-probability falls, and the divisor rises to at most ((5 + U) / 6)^alpha. So no continuation
scores above log p / ((5 + U) / 6)^alpha, and the search ends when no live prefix can beat the
finished target. With W >= V^(U - 1) the search is exhaustive.

Letters: B texts, W prefixes of each, N = B * W rows, U pieces of the longest target.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.infer.batching import program, read_by_host
from xlnet_jax.infer.decode import forward
from xlnet_jax.model.cache import Cache, empty_cache
from xlnet_jax.train.loss import LanguageModel


class Beam(NamedTuple):
    """The sizes of a search. Each beam is compiled separately."""

    width: int
    """W: prefixes of each text, at most V."""
    longest: int
    """U: pieces of the longest target."""
    end: int
    """The piece END."""
    segment_len: int
    """Slots of the cache: a source and `longest` pieces fit."""


class _State(NamedTuple):
    cache: Cache
    logits_BWV: jax.Array
    live_BW: jax.Array
    """log p of each prefix; -inf for an unused place."""
    token_BWU: jax.Array
    best_B: jax.Array
    """Score of the finished target; -inf before the first."""
    best_log_prob_B: jax.Array
    best_token_BU: jax.Array
    """Pieces of the finished target; -1 after its end."""
    pieces: jax.Array
    """Number n of pieces of the prefixes."""


@program(static_argnums=(0, 1))
def search(
    model: LanguageModel,
    beam: Beam,
    params: Any,
    tokens_BQ: jax.Array,
    length_B: jax.Array,
    alpha: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Searches for the best target of each source.

    Args:
      tokens_BQ, length_B: sources with the separator at their end, padded on the right, and their
        lengths.
      alpha: power of the length penalty, at least 0.

    Returns:
      Arrays that every process can read: tokens_BU with -1 after the end, log p [B], number of
      calls.
    """
    (B, Q), W, U = tokens_BQ.shape, beam.width, beam.longest
    cache = empty_cache(model.transformer.config, params, B, beam.segment_len, 0)
    rank_BQ = jnp.where(jnp.arange(Q)[None] < length_B[:, None], 0, NEVER)
    logits_B1V, cache = forward(model, params, cache, tokens_BQ, rank_BQ, (length_B - 1)[:, None])
    state = _State(
        _rows(cache, jnp.repeat(jnp.arange(B), W)),
        jnp.repeat(logits_B1V, W, axis=1),
        # All W prefixes are empty, so only the first is used.
        jnp.broadcast_to(
            jnp.where(jnp.arange(W) == 0, 0, -jnp.inf).astype(logits_B1V.dtype), (B, W)
        ),
        jnp.full((B, W, U), -1, jnp.int32),
        *(jnp.full(B, -jnp.inf, logits_B1V.dtype) for _ in range(2)),
        best_token_BU=jnp.full((B, U), -1, jnp.int32),
        pieces=jnp.zeros((), jnp.int32),
    )

    def more(state: _State) -> jax.Array:
        bound_B = state.live_BW.max(axis=1) / _penalty(U, alpha)
        return (state.pieces < U) & (bound_B > state.best_B).any()

    def body(state: _State) -> _State:
        state, token_BW = _extended(state, beam.end, alpha)
        position_N1 = jnp.repeat(length_B, W)[:, None] + state.pieces - 1
        logits_N1V, cache = forward(
            model,
            params,
            state.cache,
            token_BW.reshape(-1, 1),
            position_N1,
            jnp.zeros((B * W, 1), jnp.int32),
            place_BT=position_N1,
        )
        return state._replace(cache=cache, logits_BWV=logits_N1V.reshape(state.logits_BWV.shape))

    state = jax.lax.while_loop(more, body, state)
    return read_by_host((state.best_token_BU, state.best_log_prob_B, state.pieces))


def _penalty(n: Any, alpha: Any) -> Any:
    return ((5 + n) / 6) ** alpha


def _extended(state: _State, end: int, alpha: Any) -> tuple[_State, jax.Array]:
    """Extends every prefix by one piece. Returns the state and the new pieces [B, W]. The cache has
    the rows of the new prefixes, but not yet the new pieces.
    """
    (B, W, V), U = state.logits_BWV.shape, state.token_BWU.shape[2]
    n = state.pieces + 1
    log_prob_BWV = state.live_BW[:, :, None] + jax.nn.log_softmax(state.logits_BWV)
    # Without END each prefix has V - 1 continuations, so W of them stay live.
    is_end_V = jnp.arange(V) == end
    ends_BWV = jnp.where(is_end_V | (n == U), log_prob_BWV, -jnp.inf)
    log_prob_B, at_B = (x[:, 0] for x in jax.lax.top_k(ends_BWV.reshape(B, -1), 1))
    score_B = log_prob_B / _penalty(n, alpha)
    better_B = score_B > state.best_B
    best_BU = jnp.take_along_axis(state.token_BWU, (at_B // V)[:, None, None], axis=1)[:, 0]
    best_BU = jnp.where(jnp.arange(U)[None] == state.pieces, (at_B % V)[:, None], best_BU)
    live_BW, at_BW = jax.lax.top_k(jnp.where(is_end_V, -jnp.inf, log_prob_BWV).reshape(B, -1), W)
    parent_BW, token_BW = at_BW // V, (at_BW % V).astype(jnp.int32)
    token_BWU = jnp.take_along_axis(state.token_BWU, parent_BW[:, :, None], axis=1)
    state = state._replace(
        cache=_rows(state.cache, (jnp.arange(B)[:, None] * W + parent_BW).reshape(-1)),
        live_BW=live_BW,
        token_BWU=jnp.where(jnp.arange(U) == state.pieces, token_BW[:, :, None], token_BWU),
        best_B=jnp.where(better_B, score_B, state.best_B),
        best_log_prob_B=jnp.where(better_B, log_prob_B, state.best_log_prob_B),
        best_token_BU=jnp.where(better_B[:, None], best_BU, state.best_token_BU),
        pieces=n,
    )
    return state, token_BW


def _rows(cache: Cache, row_N: jax.Array) -> Cache:
    """Returns the cache with these rows, which may repeat."""
    kept = cache.layers
    layers = kept._replace(k_BHKE=kept.k_BHKE[:, row_N], v_BHKE=kept.v_BHKE[:, row_N])
    return dataclasses.replace(cache, layers=layers, rank_BK=cache.rank_BK[row_N])
