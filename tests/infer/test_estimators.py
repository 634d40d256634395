"""The estimators of `compare`: which are distributions, by all texts of a tiny vocabulary, and what
they ask.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import tiny
from special_ids import CLS, EOD, MASK, SEP
from test_score import T, log_prob_at, scorer

from xlnet_jax.infer.estimators import estimate, text_tokens_at_once, unknown_places
from xlnet_jax.infer.options import Score

V = 10
"""With all special pieces, since a masked text has some."""


def configured(objective, memory_len=0):
    base = tiny.config()
    return base.changed(
        model={"vocab_size": V, "memory_len": memory_len},
        data={"objective": objective, "segment_len": T},
    )


@pytest.mark.parametrize("objective", ["clm", "mlm", pytest.param("mdm", marks=pytest.mark.slow)])
def test_likelihoods_are_distributions_and_the_bound_is_their_mean_over_orders(objective, x64):
    """All texts of three tokens, in float64."""
    made, config = scorer(V, objective, batch_size=1000, memory_len=0), configured(objective)
    texts_NT = np.array(list(itertools.product(range(V), repeat=3)), np.int32)
    left, pseudo, bound = (
        estimate(made, config, measure, texts_NT)
        for measure in ("left_to_right", "pseudo", "bound")
    )
    assert abs(np.exp(-left.nats_N).sum() - 1) < 1e-12
    assert left.calls == len(texts_NT) * (1 if objective == "clm" else 3)
    if objective == "clm":
        assert pseudo is None and estimate(made, config, "half", texts_NT) is None
    else:
        assert pseudo.calls == 3 * len(texts_NT)
        assert abs(np.exp(-pseudo.nats_N).sum() - 1) > 1e-3, "no distribution"
    assert (bound is not None) == (objective == "mdm")
    if bound:
        pairs = [(text, np.zeros(3, bool)) for text in texts_NT]
        joint_ZN = [
            [each.joint_K[0] for each in made.log_prob(pairs, Score(order=order))]
            for order in itertools.permutations(range(3))
        ]
        noise_N = -bound.nats_N - np.mean(joint_ZN, axis=0)
        assert abs(noise_N.mean()) < 4 * noise_N.std() / np.sqrt(len(noise_N)) < 0.04
        assert bound.calls == 64 * 1000


@pytest.mark.parametrize("objective", ["mlm", "mdm"])
def test_a_masked_model_sees_what_is_earlier_in_the_order_and_masks(objective, x64):
    """Call by call, in the layout of training: a masked XLNet has SEP and CLS of another segment at
    its end.
    """
    made, order = scorer(V, objective, memory_len=0), [3, 0, 2]
    text, known = np.array([9, 0, 9, 1], np.int32), np.array([False, True, False, False])
    end = [SEP, CLS] if objective == "mlm" else []
    rows = [
        [*(MASK if at in order[turn:] else text[at] for at in range(4)), *end] for turn in range(3)
    ]
    kinds = np.array([[0] * 4 + [0, 2][: len(end)]] * 3)
    asked = np.array(rows), 0 * kinds, kinds, np.array(order)[:, None]
    log_p_BPV = log_prob_at(made.model, made.params, *asked)
    (found,) = made.log_prob([(text, known)], Score(order=order))
    place_U = np.argsort(order)
    expected_U = np.asarray(log_p_BPV)[range(3), 0, text[order]][place_U]
    np.testing.assert_allclose(found.log_prob_KU, [expected_U], rtol=1e-12)


def test_a_document_has_the_likelihood_of_its_text_and_from_left_to_right_of_its_end(x64):
    """`clm` gives probabilities to the empty text, to each text of one or two tokens with its end,
    and to the first three tokens of longer texts. They sum to 1.
    """
    config = configured("clm").changed(data={"documents": "whole", "segment_len": T})
    joined = scorer(V, "clm", batch_size=1000, memory_len=0)
    whole = dataclasses.replace(joined, frame=([EOD], []))
    words = [word for word in range(V) if word != EOD]
    texts_NT = np.array(
        [*itertools.product(words, [-1]), *itertools.product(words, repeat=2)], np.int32
    )
    longer_NT = np.array(list(itertools.product(words, repeat=3)), np.int32)
    found = estimate(whole, config, "left_to_right", texts_NT)
    begun = estimate(joined, configured("clm"), "left_to_right", longer_NT)
    empty = estimate(joined, configured("clm"), "left_to_right", np.array([[EOD]], np.int32))
    total = sum(np.exp(-each.nats_N).sum() for each in (found, begun, empty))
    assert abs(total - 1) < 1e-12
    assert found.calls == len(texts_NT)


def test_documents_of_other_lengths_do_not_change_one(x64):
    config = configured("mdm").changed(data={"documents": "whole"})
    made = dataclasses.replace(scorer(V, "mdm", 4, memory_len=0), frame=([], []))
    texts = [[1, 2, 3, 4, 9], [5], [8, 0, 0]]
    tokens_NT = np.array([text + [-1] * (6 - len(text)) for text in texts], np.int32)
    for measure in ("left_to_right", "pseudo"):
        found = estimate(made, config, measure, tokens_NT)
        each = [estimate(made, config, measure, np.array([text], np.int32)) for text in texts]
        np.testing.assert_allclose(found.nats_N, [one.nats_N[0] for one in each], rtol=1e-12)
        assert found.calls == 9 and found.flops == sum(one.flops for one in each)


def test_half_is_asked_in_random_orders_and_a_model_without_memory_reads_each_segment_for_itself(
    x64,
):
    """Windows of two segments: with a memory the second knows of the first."""
    tokens_NT = np.random.default_rng(0).integers(0, V, (3, 2 * T)).astype(np.int32)
    for memory_len in (T, 0):
        made, config = scorer(V, "plm", memory_len=memory_len), configured("plm", memory_len)
        found = estimate(made, config, "half", tokens_NT, orders=2)
        asked = unknown_places("half", tokens_NT)
        assert (asked.sum(axis=1) == T).all()
        cuts = [slice(0, 2 * T)] if memory_len else [slice(0, T), slice(T, 2 * T)]
        parts = [
            (row[cut], ~unknown_T[cut])
            for row, unknown_T in zip(tokens_NT, asked, strict=True)
            for cut in cuts
        ]
        each = [one.joint_K.mean() for one in made.log_prob(parts, Score(orders=2))]
        np.testing.assert_allclose(found.nats_N, -np.reshape(each, (3, -1)).sum(axis=1), rtol=1e-12)
        assert found.calls == 3 * 2 * 2 and found.flops > 0
    for objective, tokens in (("clm", T), ("plm", T), ("mdm", T), ("mlm", T - 2)):
        assert text_tokens_at_once(configured(objective)) == tokens
