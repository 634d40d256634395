"""The estimators of `compare`: which are distributions, by all texts of a tiny vocabulary, and what
they ask.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
import tiny
from special_ids import CLS, MASK, SEP
from test_score import T, scorer

from xlnet_jax.batch import forward_text
from xlnet_jax.infer.estimators import estimate, known_places, text_tokens_at_once, unknown_places
from xlnet_jax.infer.options import Score
from xlnet_jax.model.transformer import empty_memory

V = 10
"""With all special pieces, since a masked text has some."""
SLOW = pytest.mark.slow


def configured(objective, memory_len=0):
    base = tiny.config()
    return base.changed(
        model={"vocab_size": V, "memory_len": memory_len},
        data={"objective": objective, "segment_len": T},
    )


@pytest.mark.parametrize(
    "objective", ["clm", pytest.param("plm", marks=SLOW), "mlm", pytest.param("mdm", marks=SLOW)]
)
def test_likelihoods_are_distributions_and_bounds_are_on_the_right_side(objective, x64):
    """All texts of three tokens, in float64."""
    made, config = scorer(V, objective, batch_size=1000, memory_len=0), configured(objective)
    texts_NT = np.array(list(itertools.product(range(V), repeat=3)), np.int32)
    left = estimate(made, config, "left_to_right", texts_NT)
    assert abs(np.exp(-left.nats_N).sum() - 1) < 1e-12
    assert left.calls == len(texts_NT) * (3 if objective in ("mlm", "mdm") else 1)
    if objective == "clm":
        assert (
            estimate(made, config, "half", texts_NT)
            is estimate(made, config, "pseudo", texts_NT)
            is None
        )
        return
    orders, pairs = (
        list(itertools.permutations(range(3))),
        [(text, np.zeros(3, bool)) for text in texts_NT],
    )
    joint_NZ = np.stack(
        [
            [each.joint_K[0] for each in made.log_prob(pairs, Score(order=order))]
            for order in orders
        ],
        axis=1,
    )
    np.testing.assert_allclose(np.exp(joint_NZ).sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(-left.nats_N, joint_NZ[:, 0], rtol=1e-12)
    mixture_N = np.log(np.exp(joint_NZ).mean(axis=1))
    assert (joint_NZ.mean(axis=1) <= mixture_N + 1e-12).all() and (
        mixture_N - joint_NZ.mean(axis=1)
    ).max() > 0.01
    bound = estimate(made, config, "bound", texts_NT)
    assert (bound is not None) == (objective == "mdm")
    if bound:
        noise_N = -bound.nats_N - joint_NZ.mean(axis=1)
        assert (
            abs(noise_N.mean()) < 4 * noise_N.std() / np.sqrt(len(noise_N)) < 0.04
            and bound.calls == 64 * 1000
        )
    pseudo = estimate(made, config, "pseudo", texts_NT)
    assert pseudo.calls == 3 * len(texts_NT) and abs(np.exp(-pseudo.nats_N).sum() - 1) > 1e-3, (
        "no distribution"
    )


@functools.partial(jax.jit, static_argnums=0)
def at_places(model, params, tokens_BN, kinds_BN, position_BP):
    """log p at some positions of texts that see all of themselves, [B, P, V]."""
    batch = forward_text(tokens_BN, np.zeros(tokens_BN.shape, np.int32), kinds_BN, position_BP)
    memory = empty_memory(model.transformer.config, len(tokens_BN), 0)
    out = model.transformer.apply({"params": params}, batch, memory)
    return jax.nn.log_softmax(model.logits(params, out.target_vectors_BPD))


@pytest.mark.parametrize("objective", ["mlm", "mdm"])
def test_a_masked_model_sees_what_is_earlier_in_the_order_and_masks(objective, x64):
    """Call by call, in the layout of training: a masked XLNet has SEP and CLS of another segment at
    its end.
    """
    made, text, order = (
        scorer(V, objective, memory_len=0),
        np.array([9, 0, 9, 1], np.int32),
        (3, 0, 2),
    )
    known = np.array([False, True, False, False])
    end = [SEP, CLS] if objective == "mlm" else []
    rows = [
        [*(MASK if at in order[turn:] else text[at] for at in range(4)), *end] for turn in range(3)
    ]
    kinds = np.array([[0] * 4 + [0, 2][: len(end)]] * 3)
    log_p_BPV = at_places(made.model, made.params, np.array(rows), kinds, np.array(order)[:, None])
    (found,) = made.log_prob([(text, known)], Score(order=order))
    by_position = {at: float(log_p_BPV[turn, 0, text[at]]) for turn, at in enumerate(order)}
    np.testing.assert_allclose(
        found.log_prob_KU, [[by_position[at] for at in (0, 2, 3)]], rtol=1e-12
    )


def test_half_is_asked_in_random_orders_and_a_model_without_memory_reads_each_segment_for_itself(
    x64,
):
    """Windows of two segments: with a memory the second knows of the first."""
    tokens_NT = np.random.default_rng(0).integers(0, V, (3, 2 * T)).astype(np.int32)
    for memory_len in (T, 0):
        made, config = scorer(V, "plm", memory_len=memory_len), configured("plm", memory_len)
        found = estimate(made, config, "half", tokens_NT, orders=2)
        asked = ~known_places(tokens_NT.shape, 0.5)
        assert (asked == unknown_places("half", tokens_NT.shape)).all() and (
            asked.sum(axis=1) == T
        ).all()
        cuts = [slice(0, 2 * T)] if memory_len else [slice(0, T), slice(T, 2 * T)]
        parts = [
            (row[cut], ~unknown_T[cut])
            for row, unknown_T in zip(tokens_NT, asked, strict=True)
            for cut in cuts
        ]
        each = [one.joint_K.mean() for one in made.log_prob(parts, Score(orders=2))]
        np.testing.assert_allclose(found.nats_N, -np.reshape(each, (3, -1)).sum(axis=1), rtol=1e-12)
        assert found.calls == 3 * 2 * 2 and found.flops > 0
    assert [
        text_tokens_at_once(configured(objective)) for objective in ("clm", "plm", "mdm", "mlm")
    ] == [
        T,
        T,
        T,
        T - 2,
    ]
