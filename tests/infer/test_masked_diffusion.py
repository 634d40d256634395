"""Masked diffusion: its bound by enumeration, and texts that are filled by reading them whole in
each call.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from special_ids import MASK
from test_score import T, log_prob_at, scorer

from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.infer.decoder import Decoder
from xlnet_jax.infer.options import Decoding, Score
from xlnet_jax.infer.orders import checked_texts


def forward(made, tokens_BN):
    """log p of every token at every position of texts that see all of themselves, [B, N, V]."""
    at_BN = np.broadcast_to(np.arange(tokens_BN.shape[1]), tokens_BN.shape)
    return np.asarray(log_prob_at(made.model, made.params, tokens_BN, 0 * at_BN, 0 * at_BN, at_BN))


def test_the_bound_is_the_mean_over_all_orders_of_the_chain_rule(x64):
    """All texts of three unknown tokens around a known one, of a vocabulary of five that has MASK,
    and all of their sets of masks. Faults that it finds: a wrong weight, size or set, and a bound
    on the wrong side.
    """
    V, mask, unknown = 5, 4, [0, 1, 3]
    made = dataclasses.replace(scorer(V, "mdm", memory_len=0), special=XLNET._replace(mask=mask))
    texts = np.insert(list(itertools.product(range(V), repeat=3)), 2, 1, axis=1)
    table = forward(made, texts).reshape(V, V, V, 4, V)

    def log_prob(text, masked, at):
        row = [mask if position in masked else text[position] for position in unknown]
        return table[(*row, at, text[at])]

    def chain(text, order):
        return sum(log_prob(text, order[turn:], at) for turn, at in enumerate(order))

    def term(text, masked):
        return 3 / len(masked) * sum(log_prob(text, masked, at) for at in masked)

    chains_XZ = np.array(
        [[chain(text, order) for order in itertools.permutations(unknown)] for text in texts]
    )
    np.testing.assert_allclose(np.exp(chains_XZ).sum(axis=0), 1, rtol=1e-12)
    elbo_X = np.zeros(len(texts))
    for n in (1, 2, 3):
        sets = list(itertools.combinations(unknown, n))
        elbo_X += [np.mean([term(text, masked) for masked in sets]) / 3 for text in texts]
    np.testing.assert_allclose(elbo_X, chains_XZ.mean(axis=1), rtol=1e-12)
    mixture_X = np.log(np.exp(chains_XZ).mean(axis=1))
    assert (elbo_X <= mixture_X + 1e-12).all()
    assert (mixture_X - elbo_X).max() > 0.01, "orders are alike, and nothing was shown"

    known = np.isin(np.arange(4), unknown, invert=True)
    draws = 3 * 100
    bounds = made.elbo(checked_texts(made.model, T, texts[:2], [known] * 2), Score(draws=draws))
    for text, bound, exact in zip(texts, bounds, elbo_X, strict=False):
        assert bound.position_U.tolist() == unknown
        drawn = [
            [at for at, term in zip(unknown, term_U, strict=True) if term]
            for term_U in bound.term_KU
        ]
        by_hand_K = [term(text, masked) for masked in drawn]
        np.testing.assert_allclose(bound.term_KU.sum(axis=1), by_hand_K, rtol=1e-12)
        assert np.bincount([len(masked) for masked in drawn]).tolist() == [0, 100, 100, 100]
        assert abs(bound.elbo - exact) < 4 * bound.standard_error
        assert min(sum(masked == [at] for masked in drawn) for at in unknown) > 15, (
            "a place is never masked alone"
        )
    assert not np.array_equal(bounds[0].term_KU != 0, bounds[1].term_KU != 0), (
        "each text has its own draws"
    )


@pytest.mark.parametrize(
    ("order", "together"), [("confidence", 2), pytest.param("reversed", 1, marks=pytest.mark.slow)]
)
def test_filling_reads_the_whole_text_in_each_call(order, together, x64):
    """Texts of several lengths in one batch, against one forward of each for every call."""
    made = scorer(30, "mdm", memory_len=0)
    random = np.random.default_rng(3)
    ids = [random.integers(9, 30, length) for length in (T, 5, 1)]
    known = [random.random(len(text)) < 0.3 for text in ids]
    for mask in known:
        mask[-1] = False
    decode = Decoder(made.model, made.params, XLNET, T, 4)
    found = decode(
        checked_texts(made.model, T, ids, known), Decoding(order=order, tokens_per_step=together)
    )
    for text_N, known_N, one in zip(ids, known, found, strict=True):
        text_N, left = np.where(known_N, text_N, MASK), np.flatnonzero(~known_N)
        chosen = {}
        calls = math.ceil(len(left) / together)
        for _ in range(calls):
            log_p_NV = forward(made, text_N[None])[0]
            best = (
                left[np.argsort(-log_p_NV[left].max(axis=1))]
                if order == "confidence"
                else left[::-1]
            )
            for at in sorted(best[:together]):
                text_N[at], chosen[at] = log_p_NV[at].argmax(), log_p_NV[at].max()
            left = np.setdiff1d(left, best[:together])
        assert one.token_N.tolist() == text_N.tolist() and one.calls == calls
        assert one.position_U.tolist() == list(chosen)
        np.testing.assert_allclose(one.log_prob_U, list(chosen.values()), rtol=1e-12)
