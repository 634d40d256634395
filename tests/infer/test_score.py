"""Likelihoods in any order: proper distributions, and the chain rule worked by hand from single
forwards.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import tiny
from special_ids import CLS, EOD, SEP

from xlnet_jax.batch import NEVER, forward_text
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.options import Score
from xlnet_jax.infer.orders import any_order, checked_texts
from xlnet_jax.infer.score import Likelihood, Scorer
from xlnet_jax.model.transformer import empty_memory

T = 8


def scorer(vocab=5, objective="plm", batch_size=625, **model):
    """Of random parameters, large enough that every token counts; in float64."""
    sizes = {
        "d_model": 8,
        "d_ff": 8,
        "head_dim": 4,
        "memory_len": 6,
        "compute_dtype": "float64",
        **model,
    }
    base = tiny.config()  # such a vocabulary and segment are no configuration for training
    config = base.changed(
        model={"vocab_size": vocab, **sizes},
        data={"objective": objective, "segment_len": T, "reuse_len": T},
    )
    made = any_order(config)
    one = np.zeros((1, 1), np.int32)
    params = jax.eval_shape(lambda: made.init(jax.random.key(0), forward_text(one, one, one, one)))
    random = np.random.default_rng(0)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.5 * random.standard_normal(x.value.shape),
        params,
        is_leaf=lambda x: hasattr(x, "value"),
    )
    return Scorer(made, params, XLNET, T, batch_size)


def log_prob(made, tokens, known, **asked):
    return made.log_prob(checked_texts(made.model, T, tokens, known), Score(**asked))


@functools.partial(jax.jit, static_argnums=0)
def log_prob_at(model, params, tokens_BN, rank_BN, kind_BN, position_BP):
    """log p over the vocabulary at some positions of texts, from the model itself, [B, P, V]."""
    batch = forward_text(tokens_BN, rank_BN, kind_BN, position_BP)
    memory = empty_memory(model.transformer.config, len(tokens_BN), 0)
    out = model.transformer.apply({"params": params}, batch, memory)
    return jax.nn.log_softmax(model.logits(params, out.target_vectors_BPD))


@pytest.mark.parametrize(
    "before", [0, pytest.param(T, marks=pytest.mark.slow)], ids=["one segment", "with memory"]
)
def test_all_completions_sum_to_one_for_every_order(before, x64):
    made = scorer()
    random = np.random.default_rng(1)
    text_N = random.integers(0, 5, before + 7)
    unknown = [before + place for place in (0, 2, 3, 6)]
    known = np.isin(np.arange(len(text_N)), unknown, invert=True)
    texts = np.repeat(text_N[None], 625, axis=0)
    texts[:, unknown] = list(itertools.product(range(5), repeat=4))
    joints = []
    for order in itertools.permutations(unknown):
        found = log_prob(made, texts, [known] * 625, order=order)
        joints.append([each.joint_K[0] for each in found])
        assert abs(np.exp(joints[-1]).sum() - 1) < 1e-12
    assert np.std(joints, axis=0).max() > 0.01, (
        "orders of an untrained model differ, or the order was not used"
    )


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch, memory):
    """The memory after a segment of one text, and the log-probabilities at its first target,
    [V].
    """
    out = model.transformer.apply({"params": params}, batch, memory)
    return out.memory, jax.nn.log_softmax(model.logits(params, out.target_vectors_BPD)[0, 0])


def forward(made):
    """One segment of one text, padded to T: the memory after it, and the log-probabilities at one
    position, [V].
    """

    def padded(tokens, rank, target, memory, continues):
        fed_2T = np.array([[0] * T, [NEVER] * T], np.int32)
        fed_2T[:, : len(tokens)] = tokens, rank
        positions = np.array([[target]], np.int32)
        batch = forward_text(
            fed_2T[:1], fed_2T[1:], np.zeros((1, T), np.int32), positions, continues=continues
        )
        return run(made.model, made.params, batch, memory)

    return padded


def predicted(made, ids, order, turn, position):
    """log p of every token at a position, [V], when the first `turn` unknown positions of the order
    are known, and it and the others are not there at all.
    """
    run, ids = forward(made), np.asarray(ids)
    memory = empty_memory(made.model.transformer.config, 1)
    for start in range(0, position + 1, T):
        tokens = ids[start : start + T].copy()
        rank = np.where(np.isin(tokens, (SEP, CLS)), 0, -1)
        for place, at in enumerate(order):
            if start <= at < start + T:
                rank[at - start] = 1 + place if place < turn or at == position else NEVER
                tokens[at - start] *= place < turn
        # The query needs a place in the order; it does not see its own content, which is token 0
        # here.
        memory, log_prob_V = run(tokens, rank, max(position - start, 0) % T, memory, start > 0)
    return log_prob_V


def by_hand(made, ids, order):
    """The chain rule: one forward for each unknown token."""
    terms = {at: predicted(made, ids, order, turn, at)[ids[at]] for turn, at in enumerate(order)}
    return np.array([terms[position] for position in sorted(order)])


@pytest.mark.parametrize(
    "before", [pytest.param(0, marks=pytest.mark.slow), T], ids=["one segment", "with memory"]
)
def test_equals_the_chain_rule_by_hand(before, x64):
    """Also texts of other lengths beside it in the batch. Caught: a wrong order, a padded position
    that is seen.
    """
    made = scorer(vocab=30, batch_size=4)
    random = np.random.default_rng(2)
    texts = [random.integers(0, 30, length).tolist() for length in (before + 7, 3, 1, before + 5)]
    known = [random.random(len(text)) < 0.5 for text in texts]
    for mask in known:
        mask[-1] = False
    for likelihood, mask in zip(log_prob(made, texts, known, orders=2), known, strict=True):
        assert likelihood.log_prob_KU.shape == (2, (~mask).sum())
    drawn = log_prob(made, texts[:1] * 2, known[:1] * 2, orders=2)
    assert len({joint for likelihood in drawn for joint in likelihood.joint_K}) == 4, (
        "each text and turn has its own"
    )
    left = log_prob(made, texts, known)
    for likelihood, text, mask in zip(left, texts, known, strict=True):
        assert likelihood.position_U.tolist() == np.flatnonzero(~mask).tolist()
        np.testing.assert_allclose(
            likelihood.log_prob_KU[0], by_hand(made, text, likelihood.position_U), atol=1e-12
        )
    order = sorted(np.flatnonzero(~known[0]).tolist(), key=lambda at: (at // T, -at))
    (given,) = log_prob(made, texts[:1], known[:1], order=order)
    np.testing.assert_allclose(given.log_prob_KU[0], by_hand(made, texts[0], order), atol=1e-12)


def test_the_likelihood_of_several_orders_is_their_mean_probability():
    both = Likelihood(np.array([0, 3]), np.log([[0.5, 0.4], [0.5, 0.8]]))
    assert np.exp(both.joint_K) == pytest.approx([0.2, 0.4])
    assert np.exp(both.log_mean_exp) == pytest.approx(0.3)


def test_left_to_right_model_scores_what_follows_a_prefix(x64):
    """Two segments; a text of which nothing is known follows `<eod>`."""
    made = scorer(vocab=30, objective="clm")
    ids = np.random.default_rng(3).integers(9, 30, T + 4).tolist()
    (whole,) = log_prob(made, [ids], [[False] * len(ids)])
    (rest,) = log_prob(made, [[EOD, *ids]], [[True] + [False] * len(ids)])
    np.testing.assert_allclose(whole.log_prob_KU, rest.log_prob_KU, atol=1e-12)
    chain, read, run = [], [EOD, *ids], forward(made)
    for end in range(1, len(read)):
        memory = empty_memory(made.model.transformer.config, 1)
        for start in range(0, end, T):
            part = read[start : min(start + T, end)]
            memory, log_prob_V = run(part, range(len(part)), len(part) - 1, memory, start > 0)
        chain.append(log_prob_V[read[end]])
    np.testing.assert_allclose(whole.log_prob_KU[0], chain, atol=1e-12)


IDS, NONE = [1, 2, 3], [False] * 3


@pytest.mark.parametrize(
    ("tokens", "known", "asked", "message"),
    [
        ([IDS], [[True] * 3], {}, "no position is unknown"),
        ([IDS], [[True]], {}, "3 tokens, but `known` has 1"),
        ([[1, 30, 2]], [NONE], {}, "id 30 is outside of the vocabulary of 30"),
        ([[2**32 + 1, 2, 3]], [NONE], {}, "id 4294967297 is outside"),
        ([[1.5, 2, 3]], [NONE], {}, "text 1: give ids as a list of whole numbers"),
        ([[[1, 2, 3]]], [NONE], {}, "text 1: give ids as a list of whole numbers"),
        ([IDS], [[1, 0, 0]], {}, "text 1: give `known` as a list of booleans"),
        ([IDS, IDS], [NONE], {}, "2 texts, but `known` is for 1"),
        ([IDS], [NONE], {"order": [0, 1]}, "no permutation of the unknown positions"),
        (
            [IDS],
            [NONE],
            {"order": [0.0, 1.0, 2.0]},
            "give its name, or a list of the unknown positions",
        ),
        (
            [IDS],
            [NONE],
            {"order": "left", "orders": 2},
            "several orders are random ones; leave out one",
        ),
        ([[1] * 10], [[False] * 10], {"order": [9, *range(9)]}, "returns to a segment"),
        ([[1] * 10], [[False] * 10], {"model": {"memory_len": 0}}, "model.memory_len=0"),
        (
            [IDS],
            [[True, False, True]],
            {"model": {"objective": "clm"}},
            "position 1 is unknown, and position 2 is",
        ),
        ([IDS], [NONE], {"params": float("nan")}, "text 1: the likelihood is not finite"),
    ],
)
def test_bad_input_is_one_line(tokens, known, asked, message, x64):
    made = scorer(vocab=30, **asked.pop("model", {}))
    scale = asked.pop("params", 1)
    made = dataclasses.replace(made, params=jax.tree.map(lambda x: x * scale, made.params))
    with pytest.raises(BadInput, match=message) as raised:
        log_prob(made, tokens, known, **asked)
    assert "\n" not in str(raised.value)
