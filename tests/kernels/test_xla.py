"""Every implementation of attention against the formula, written out with loops; masks,
distances.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from attention_cases import BIASES, draw

from xlnet_jax import config as configs
from xlnet_jax.batch import NEVER
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.model.attention import IMPLEMENTATIONS

H, E = 2, 3


def slowly(a):
    """(output, probabilities) by the formula, one pair of positions after the other."""
    (B, Q), K = a.limit_BQ.shape, a.rank_BK.shape[1]
    odd, even, direction_B = a.position
    T = even.shape[1] + 1 - K
    u, v, w = (a.biases[name] for name in BIASES)
    out, probability = np.zeros((B, Q, H, E)), np.zeros((B, H, Q, K))
    for b, h, i in np.ndindex(B, H, Q):
        q, weight = a.q_BQHE[b, i, h], np.zeros(K)
        at = i if a.query_position_BQ is None else a.query_position_BQ[b, i]
        for j in range(K):
            distance, rank, table = K - T + at - j, a.rank_BK[b, j], b % len(odd)
            row = K - 1 - distance
            r = even[table, row, h] + direction_B[b] * odd[table, row, h]
            s = a.segment_2HE[int(a.segment_BQ[b, i] != a.segment_BK[b, j]), h]
            score = ((q + u[h]) @ a.k_BKHE[b, j, h] + (q + v[h]) @ r + (q + w[h]) @ s) / np.sqrt(E)
            far = a.max_distance is not None and distance > a.max_distance
            weight[j] = 0 if far or rank == NEVER or rank >= a.limit_BQ[b, i] else np.exp(score)
        probability[b, h, i] = weight / (weight.sum() or 1)
        out[b, i, h] = probability[b, h, i] @ a.v_BKHE[b, :, h]
    return out, probability


COMPILED = {name: jax.jit(IMPLEMENTATIONS[name]) for name in tiny.ATTENTION}
CASES = [
    dict(T=5, M=4),
    dict(T=5, M=0),
    dict(T=4, M=6, tables=2),
    dict(T=5, M=4, chosen=3),
    dict(T=4, M=2, chosen=6, tables=2),
    dict(T=1, M=0),
    dict(T=1, M=3, tables=2),
    dict(T=1, M=1, chosen=1),
]


def test_the_configuration_offers_what_there_is():
    choices = configs.fields()["model.attention"].metadata["choices"]
    assert choices == tuple(IMPLEMENTATIONS) == ("auto", *tiny.ATTENTION, "fused")


@pytest.mark.parametrize("name", tiny.ATTENTION)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_formula(case, name, x64):
    arguments = draw(**case)
    out, probability = COMPILED[name](arguments)
    expected = slowly(arguments)
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(probability, expected[1], rtol=0, atol=1e-12)
    assert np.any(expected[1]), "nothing is seen"


@pytest.mark.parametrize("name", tiny.ATTENTION)
@pytest.mark.parametrize("chosen", [None, 4])
@pytest.mark.parametrize("max_distance", [0, 4, 7])
def test_keys_of_rank_never_or_too_far_are_hidden_whatever_the_limit(
    max_distance, chosen, name, x64
):
    """Distances count in reading order, which is the arrays' in both directions; keys ahead are
    never too far.
    """
    arguments = draw(T=6, M=4, chosen=chosen)
    no_limit = np.full_like(arguments.limit_BQ, NEVER + 1)
    arguments = replace(arguments, limit_BQ=no_limit, max_distance=max_distance)
    out, probability = COMPILED[name](arguments)
    expected = slowly(arguments)
    np.testing.assert_allclose(probability, expected[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=1e-12)
    assert 0 < np.mean(arguments.rank_BK == NEVER) < 0.5


@pytest.mark.parametrize("name", tiny.ATTENTION)
@pytest.mark.parametrize("chosen", [None, 3])
def test_dropout_is_on_the_weights_of_the_values_and_keyed_by_the_position(chosen, name, x64):
    dropout = AttentionDropout(jnp.uint32(5), 0.5, 1)
    arguments = replace(draw(T=5, M=4, chosen=chosen), rows_B=np.array([6, 2]), dropout=dropout)
    out, probability = COMPILED[name](arguments)
    np.testing.assert_allclose(probability, slowly(arguments)[1], rtol=0, atol=1e-12)
    positions = jnp.asarray(arguments.position_BQ), jnp.arange(probability.shape[-1])[None]
    dropped = dropout(probability, jnp.array([[6], [2]]), *positions)
    assert 0.2 < np.mean(np.asarray(dropped)[np.asarray(probability) > 0] == 0) < 0.8
    np.testing.assert_allclose(
        out, np.einsum("bhqk,bkhe->bqhe", dropped, arguments.v_BKHE), rtol=0, atol=1e-12
    )
