"""The choice of the next token from its logits: greedy, temperature, top-k, top-p.

In this order: logits are divided by the temperature; the k most probable tokens stay; of these, renormalised, the
fewest most probable whose probabilities sum to at least p. Equally probable tokens rank by their id.
"""

from __future__ import annotations

import dataclasses
import numbers

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.errors import BadInput, check_whole


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Only `filtered` is fixed when a program is compiled."""

    temperature: float = 1.0
    """0 = the most probable token."""
    top_k: int = 0
    """0 = all tokens."""
    top_p: float = 1.0
    seed: int = 0
    """Key of the draws, with the number of the prompt and that of the token."""

    def check(self, tokens: int) -> None:
        """Raises BadInput for a value that no distribution has, or if no token is asked for."""
        check_whole(tokens=tokens, top_k=self.top_k, seed=self.seed)
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p)):
            if not isinstance(value, numbers.Real):
                raise BadInput(f"{name}={value!r} must be a number")
        if tokens < 1:
            raise BadInput(f"tokens={tokens} must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise BadInput(f"temperature={self.temperature} must be 0 (the most probable token) or a positive number")
        if not 0 <= self.top_k < 2**31:
            raise BadInput(f"top_k={self.top_k} must be 0 (all tokens) or a number of tokens")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p={self.top_p} must be above 0 and at most 1 (all tokens)")
        if not 0 <= self.seed < 2**31:
            raise BadInput(f"seed={self.seed} must be from 0 to {2**31 - 1}")

    def arrays(self) -> Sampling:
        """The same as arrays of fixed types, so that no value compiles another program."""
        return Sampling(np.float32(self.temperature), np.int32(self.top_k), np.float32(self.top_p), np.int32(self.seed))  # type: ignore[arg-type]

    @property
    def filtered(self) -> bool:
        """Whether tokens are left out: only then are they sorted."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)


PLAIN = Sampling()
"""From the model's own distribution."""


def filtered(logits_BV: jax.Array, sampling: Sampling) -> tuple[jax.Array, jax.Array]:
    """The tokens by falling probability, [B, V], and their logits, -inf for those that are left out."""
    token_BV = jnp.argsort(logits_BV, axis=1, descending=True, stable=True)
    logits_BV = jnp.take_along_axis(logits_BV, token_BV, axis=1) / sampling.temperature
    place_1V = jnp.arange(logits_BV.shape[1])[None]
    logits_BV = jnp.where((place_1V < sampling.top_k) | (sampling.top_k == 0), logits_BV, -jnp.inf)
    p_BV = jax.nn.softmax(logits_BV)
    before_BV = jnp.cumsum(p_BV, axis=1) - p_BV
    # The first always stays; with top_p=1 a rounded sum must not leave the last ones out.
    stays_BV = (before_BV < sampling.top_p) | (place_1V == 0) | (sampling.top_p >= 1)
    return token_BV, jnp.where(stays_BV, logits_BV, -jnp.inf)


def sample(logits_BV: jax.Array, sampling: Sampling, number_B: jax.Array, count_B: jax.Array, sort: bool) -> jax.Array:
    """One token for each row, [B].

    Args:
      number_B, count_B: of the prompt and of the token that is drawn; the draw depends on them and on the seed alone.
      sort: `Sampling.filtered`.
    """
    key_B, draw = keys(sampling, number_B, count_B), jax.vmap(jax.random.categorical)
    if sort:
        token_BV, kept_BV = filtered(logits_BV, sampling)
        return jnp.take_along_axis(token_BV, draw(key_B, kept_BV)[:, None], axis=1)[:, 0].astype(jnp.int32)
    # To draw costs a random number for each token of the vocabulary.
    return jax.lax.cond(
        sampling.temperature == 0,
        lambda: jnp.argmax(logits_BV, axis=1).astype(jnp.int32),
        lambda: draw(key_B, logits_BV / sampling.temperature).astype(jnp.int32),
    )


def keys(sampling: Sampling, number_B: jax.Array, count_B: jax.Array) -> jax.Array:
    """Of every prompt its own key, and of that one for every token, [B]."""
    key_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(sampling.seed), number_B)
    return jax.vmap(jax.random.fold_in)(key_B, count_B)


def log_distribution(logits_BV: jax.Array, sampling: Sampling, sort: bool) -> jax.Array:
    """Logarithm of the distribution that `sample` draws from, [B, V]; -inf for tokens that are never drawn."""
    if sort:
        token_BV, kept_BV = filtered(logits_BV, sampling)
        return jnp.take_along_axis(jax.nn.log_softmax(kept_BV), jnp.argsort(token_BV, axis=1), axis=1)
    greedy = sampling.temperature == 0
    best_BV = jnp.arange(logits_BV.shape[1])[None] == jnp.argmax(logits_BV, axis=1)[:, None]
    all_BV = jax.nn.log_softmax(logits_BV / jnp.where(greedy, 1, sampling.temperature))
    return jnp.where(greedy, jnp.where(best_BV, 0, -jnp.inf), all_BV)
