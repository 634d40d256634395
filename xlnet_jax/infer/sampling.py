"""The choice of the next token from its logits: greedy, temperature, top-k, top-p.

The steps in this order: divide the logits by the temperature; keep the k most probable tokens and
renormalise; keep the fewest most probable tokens whose probabilities sum to at least p. Equally
probable tokens rank by their id.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.infer.batching import program, read_by_host
from xlnet_jax.infer.options import Decoding


class Sampling(NamedTuple):
    """The sampling options of `Decoding`, as numbers of fixed types, so that a new value does not
    compile a new program.
    """

    temperature: np.float32
    top_k: np.int32
    top_p: np.float32
    seed: np.int32
    """Key of the draws, with the number of the text and the number of the token."""

    @classmethod
    def of(cls, asked: Decoding) -> Sampling:
        """Returns the sampling options of `asked`."""
        return cls(
            np.float32(asked.temperature),
            np.int32(asked.top_k),
            np.float32(asked.top_p),
            np.int32(asked.seed),
        )


def filtered(logits_BV: jax.Array, sampling: Sampling) -> tuple[jax.Array, jax.Array]:
    """Returns the tokens by falling probability, [B, V], and their logits, -inf for tokens that
    top_k or top_p excludes.
    """
    token_BV = jnp.argsort(logits_BV, axis=1, descending=True, stable=True)
    logits_BV = jnp.take_along_axis(logits_BV, token_BV, axis=1) / sampling.temperature
    place_1V = jnp.arange(logits_BV.shape[1])[None]
    logits_BV = jnp.where((place_1V < sampling.top_k) | (sampling.top_k == 0), logits_BV, -jnp.inf)
    p_BV = jax.nn.softmax(logits_BV)
    before_BV = jnp.cumsum(p_BV, axis=1) - p_BV
    # The first token always stays; with top_p=1 a rounded sum must not exclude the last tokens.
    stays_BV = (before_BV < sampling.top_p) | (place_1V == 0) | (sampling.top_p >= 1)
    return token_BV, jnp.where(stays_BV, logits_BV, -jnp.inf)


def sample(
    logits_BV: jax.Array, sampling: Sampling, number_B: jax.Array, count_B: jax.Array, sort: bool
) -> jax.Array:
    """Draws one token for each row, [B].

    Args:
      number_B, count_B: the number of the text, and of the token in it. A draw depends only on
        these numbers, the logits and the seed.
      sort: see `Decoding.filtered`.
    """
    key_B, draw = keys(sampling, number_B, count_B), jax.vmap(jax.random.categorical)
    if sort:
        token_BV, kept_BV = filtered(logits_BV, sampling)
        return jnp.take_along_axis(token_BV, draw(key_B, kept_BV)[:, None], axis=1)[:, 0].astype(
            jnp.int32
        )
    # A draw needs a random number for each token of the vocabulary; greedy choice needs none.
    return jax.lax.cond(
        sampling.temperature == 0,
        lambda: jnp.argmax(logits_BV, axis=1).astype(jnp.int32),
        lambda: draw(key_B, logits_BV / sampling.temperature).astype(jnp.int32),
    )


@program(static_argnums=1)
def most_probable(logits_BV: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Returns the `count` most probable tokens of each row, the best first, and their
    log-probabilities, nats: [B, K] both.
    """
    log_prob_BK, token_BK = jax.lax.top_k(jax.nn.log_softmax(logits_BV), count)
    return read_by_host((token_BK, log_prob_BK))


def keys(sampling: Sampling, number_B: jax.Array, count_B: jax.Array) -> jax.Array:
    """Returns a key for each token of each text, [B]."""
    key_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(sampling.seed), number_B)
    return jax.vmap(jax.random.fold_in)(key_B, count_B)


def log_distribution(logits_BV: jax.Array, sampling: Sampling, sort: bool) -> jax.Array:
    """Returns the logarithm of the distribution that `sample` draws from, [B, V]; -inf for tokens
    that are never drawn.
    """
    if sort:
        token_BV, kept_BV = filtered(logits_BV, sampling)
        return jnp.take_along_axis(
            jax.nn.log_softmax(kept_BV), jnp.argsort(token_BV, axis=1), axis=1
        )
    greedy = sampling.temperature == 0
    best_BV = jnp.arange(logits_BV.shape[1])[None] == jnp.argmax(logits_BV, axis=1)[:, None]
    all_BV = jax.nn.log_softmax(logits_BV / jnp.where(greedy, 1, sampling.temperature))
    return jnp.where(greedy, jnp.where(best_BV, 0, -jnp.inf), all_BV)
