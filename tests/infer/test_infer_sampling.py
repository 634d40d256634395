"""The distribution that tokens are drawn from, on vocabularies small enough to know it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.infer.options import Decoding
from xlnet_jax.infer.sampling import Sampling, filtered, log_distribution, sample

P = np.array([0.08, 0.4, 0.02, 0.25, 0.15, 0.1])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, P),
        ({"top_k": 2}, [0, 0.4, 0, 0.25, 0, 0]),
        # 0.4 + 0.25 < 0.7 <= 0.4 + 0.25 + 0.15
        ({"top_p": 0.7}, [0, 0.4, 0, 0.25, 0.15, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0, 0, 0]),
        # Of the three that stay, 0.5, 0.3125 and 0.1875.
        ({"top_k": 3, "top_p": 0.8}, [0, 0.4, 0, 0.25, 0, 0]),
        ({"temperature": 0.5}, P**2),
        # After the temperature the first has 0.59 of the mass.
        ({"temperature": 0.5, "top_p": 0.58}, [0, 1, 0, 0, 0, 0]),
    ],
)
def test_masses(asked, expected, x64):
    asked = Decoding(**{"temperature": 1.0, **asked})
    sampling = Sampling.of(asked)
    token_BV, logits_BV = filtered(jnp.log(P)[None], sampling)
    p_V = np.zeros(len(P))
    p_V[np.asarray(token_BV[0])] = jax.nn.softmax(logits_BV)[0]
    np.testing.assert_allclose(p_V, np.array(expected) / np.sum(expected), rtol=0, atol=1e-14)
    # What drafts and the chain are compared by, with and without the sort where nothing is left
    # out.
    for sort in {True, asked.filtered}:
        log_p_V = log_distribution(jnp.log(P)[None], sampling, sort)[0]
        np.testing.assert_allclose(np.exp(log_p_V), p_V, rtol=0, atol=1e-14)


def test_greedy_has_one_token_and_equal_tokens_rank_by_id():
    greedy = log_distribution(jnp.log(P)[None], Sampling.of(Decoding()), sort=False)[0]
    assert np.exp(greedy).tolist() == [0, 1, 0, 0, 0, 0]
    token_BV, logits_BV = filtered(
        jnp.zeros((1, 5)), Sampling.of(Decoding(temperature=1.0, top_k=2))
    )
    assert token_BV[0].tolist() == [0, 1, 2, 3, 4]
    assert np.isfinite(logits_BV[0]).tolist() == [True] * 2 + [False] * 3


def test_draws_have_the_distribution():
    """Chi-square of 20,000 draws: over prompts, and over the tokens of one prompt. Catches: keys
    that repeat.
    """
    n, sampling = 20_000, Sampling.of(Decoding(temperature=1.0, top_k=4, seed=5))
    kept = P >= 0.1
    expected_V = n * P[kept] / P[kept].sum()
    logits_BV = jnp.broadcast_to(jnp.log(P)[None], (n, len(P)))
    zero_B, each_B = jnp.zeros(n, jnp.int32), jnp.arange(n)
    draw = jax.jit(lambda number_B, count_B: sample(logits_BV, sampling, number_B, count_B, True))
    for number_B, count_B in ((each_B, zero_B), (zero_B, each_B)):
        count_V = np.bincount(np.asarray(draw(number_B, count_B)), minlength=len(P))
        assert count_V[kept].sum() == n
        # 99.9 % of such sums are below 16.3 with 3 degrees of freedom.
        assert np.sum((count_V[kept] - expected_V) ** 2 / expected_V) < 16.3
