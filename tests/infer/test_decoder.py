"""Filling in any order and continuing: the cache changes nothing, nor does speculation change the
distribution.
"""

import dataclasses
import functools
import importlib
import itertools

import jax
import numpy as np
import pytest
import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from special_ids import CLS, SEP
from test_score import T, log_prob, predicted, scorer

from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import decode
from xlnet_jax.infer.batching import bucket
from xlnet_jax.infer.decoder import Decoder
from xlnet_jax.infer.options import Decoding
from xlnet_jax.infer.orders import checked_texts
from xlnet_jax.infer.score import _from_left

V, FIRST = 30, 9
made = functools.cache(functools.partial(scorer, vocab=V, batch_size=4))


def decoder(batch_size=4, **options):
    scores = made(**options)
    return Decoder(scores.model, scores.params, XLNET, T, batch_size)


def fill(model, tokens, known, stop=None, listener=None, temperature=1.0, **asked):
    longest = np.inf if model.model.transformer.objective.causal else model.segment_len
    texts = checked_texts(model.model, longest, tokens, known)
    return model(texts, Decoding(temperature=temperature, **asked), stop, listener)


def questions(seed, lengths=(T + 7, 3, 1, T + 5, 2 * T)):
    """Ids and what is known of texts of one to two segments; their last token is unknown."""
    random = np.random.default_rng(seed)
    ids = [random.integers(FIRST, V, length) for length in lengths]
    known = [random.random(len(text)) < 0.5 for text in ids]
    for mask in known:
        mask[-1] = False
    return ids, known


def without_cache(known_N, found, **model):
    """The log-likelihoods of what was filled, in its order, from one forward pass of the whole
    text.
    """
    (likelihood,) = log_prob(made(**model), [found.token_N], [known_N], order=found.position_U)
    return likelihood.log_prob_KU[0][np.searchsorted(likelihood.position_U, found.position_U)]


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.integers(0, 2**31 - 1),
    st.sampled_from(["left", "reversed", "random", "confidence"]),
    st.sampled_from([0, 4]),
)
def test_cached_equals_uncached(x64, seed, order, speculative):
    """Any order, gaps and lengths, with and without memory."""
    lengths = np.random.default_rng(seed).integers(1, 2 * T + 1, 4)
    lengths[0] = 2 * T  # so that few shapes are compiled
    ids, known = questions(seed, lengths)
    speculative = 0 if order == "confidence" else speculative
    found = fill(decoder(), ids, known, seed=seed, order=order, speculative=speculative)
    for text_N, known_N, one in zip(ids, known, found, strict=True):
        assert sorted(one.position_U.tolist()) == np.flatnonzero(~known_N).tolist()
        np.testing.assert_array_equal(one.token_N[known_N], text_N[known_N])
        np.testing.assert_allclose(one.log_prob_U, without_cache(known_N, one), atol=1e-12, rtol=0)
        # A segment that another one follows is read once more than it is asked, if its last draft
        # was not verified.
        assert 0 < one.calls <= len(one.position_U)


MODERN = {
    "architecture": "modern",
    "norm": "pre",
    "layers": 3,
    "window": 7,
    "global_every": 2,
    "theta": 60.0,
    "theta_local": 9.0,
}


def test_cached_equals_uncached_with_turned_keys(x64):
    """Rotary positions: a key that moves into the memory is turned by its new place."""
    ids, known = questions(3)
    model = {"memory_len": 5, **MODERN}
    found = fill(decoder(**model), ids, known, seed=1, order="random", speculative=4)
    for known_N, one in zip(known, found, strict=True):
        expected_U = without_cache(known_N, one, **model)
        np.testing.assert_allclose(one.log_prob_U, expected_U, atol=1e-12, rtol=0)
    other = made(**model | {"theta": 30.0, "theta_local": 5.0})
    other = dataclasses.replace(other, params=made(**model).params)
    (likelihood,) = log_prob(other, [one.token_N], [known_N], order=one.position_U)
    assert abs(likelihood.log_prob_KU[0].sum() - one.log_prob_U.sum()) > 1e-3, "no base matters"


LENGTHS = (0, 1, 3, T - 1, T, T + 1, 2 * T + 3)
"""Of prompts: nothing, one token, parts, a full segment, one more, several segments."""


def continuation(lengths=LENGTHS, tokens=3 * T, seed=1):
    random = np.random.default_rng(seed)
    ids = [
        np.append(random.integers(FIRST, V, length), np.zeros(tokens, int)) for length in lengths
    ]
    return ids, [np.arange(len(text)) < length for text, length in zip(ids, lengths, strict=True)]


@pytest.mark.parametrize(
    "model",
    [
        {"memory_len": 5},
        *(
            pytest.param(model, marks=pytest.mark.slow)
            for model in (
                {"memory_len": 5, **MODERN},
                {"memory_len": T + 3, "same_length": True, "norm": "pre", "scale_embedding": True},
                {"memory_len": T, "biases_per_layer": True, "cutoffs": "12,20", "div_val": 2},
                {"memory_len": 0},
                {"memory_len": 6, "same_length": True, "clamp_len": 3, "share_layers": True},
            )
        ),
    ],
    ids=str,
)
def test_a_left_to_right_model_continues_past_its_segment(model, x64):
    """Over three ends of segments, which the rows reach at different times."""
    scores = made(objective="clm", **model)
    ids, known = continuation()
    for text_N, known_N, one in zip(
        ids, known, fill(decoder(8, objective="clm", **model), ids, known), strict=True
    ):
        length = known_N.sum()
        np.testing.assert_array_equal(one.token_N[:length], text_N[:length])
        assert one.position_U.tolist() == list(range(length, len(text_N))) and one.calls == 3 * T
        (expected_U,) = scores._batch(
            _from_left(scores, one.token_N, known_N, np.arange(len(text_N))), 1
        )
        np.testing.assert_allclose(one.log_prob_U, expected_U, atol=1e-12, rtol=0)
    if model["memory_len"]:  # it matters, so the comparison means something
        alone_N = one.token_N[(len(text_N) - 1) // T * T :]
        (alone,) = log_prob(scores, [alone_N], [np.arange(len(alone_N)) < 1])
        assert abs(alone.log_prob_KU[0] - expected_U[1 - len(alone_N) :]).max() > 1e-5


def test_few_programs_for_prompts_of_any_length():
    """Three read, one of them nothing; one writes."""
    programs = (decode.read_known.__wrapped__, decode.write_unknown.__wrapped__)
    model = decoder(2, objective="clm", memory_len=3, compute_dtype="float32")
    model = dataclasses.replace(model, segment_len=20)
    before = [program._cache_size() for program in programs]
    for length in (1, 2, 15, 16, 17, 19, 20, 21, 40, 57, 90):
        texts = continuation([length] * (2 + length % 2), 17 + length % 19)
        fill(model, *texts, temperature=0 if length % 2 else 0.5, seed=length)
    after = [program._cache_size() for program in programs]
    assert np.subtract(after, before).tolist() == [3, 1]


@pytest.mark.parametrize("order", ["left", "confidence"])
def test_greedy_tokens_are_the_most_probable_of_single_forwards(order, x64):
    """By confidence, the position is also the surest of all that are unknown in its segment."""
    ids, known = questions(1, (T + 5,))
    # What is predicted sees them, and no context does.
    ids[0][[1, 3]], known[0][[1, 3]] = [SEP, CLS], True
    (found,) = fill(decoder(), ids, known, temperature=0, order=order)
    filled = found.position_U.tolist()
    for turn, place in enumerate(filled):
        rivals = (
            [at for at in filled[turn:] if at // T == place // T]
            if order == "confidence"
            else [place]
        )
        log_prob = {at: predicted(made(), found.token_N, filled, turn, at) for at in rivals}
        assert max(rivals, key=lambda at: log_prob[at].max()) == place
        assert log_prob[place].argmax() == found.token_N[place]
        assert abs(log_prob[place].max() - found.log_prob_U[turn]) < 1e-12


@pytest.mark.parametrize(
    "asked", [{"temperature": 0}, pytest.param({"top_k": 1}, marks=pytest.mark.slow)], ids=str
)
def test_greedy_speculation_equals_the_greedy_chain(asked, x64):
    """Token by token, with fewer calls. The most probable token is all that top_k=1 leaves, in
    drafts too.
    """
    ids, known = questions(5)
    chain = fill(decoder(), ids, known, temperature=0)
    drafted = fill(decoder(), ids, known, speculative=4, **asked)
    for one, other in zip(chain, drafted, strict=True):
        assert one.token_N.tolist() == other.token_N.tolist()
        np.testing.assert_allclose(one.log_prob_U, other.log_prob_U, atol=1e-12, rtol=0)
        assert other.calls <= one.calls == len(one.position_U)
    assert sum(one.calls for one in drafted) < sum(one.calls for one in chain)


def test_a_draft_that_stays_or_is_replaced_has_the_distribution_of_the_chain():
    """The rule by itself: q min(1, p / q), and what is left of p, add up to p."""
    random = np.random.default_rng(0)
    p_BV, q_BV = (random.dirichlet(np.ones(6), 5) for _ in range(2))
    q_BV[0] = p_BV[0]  # nothing is left
    log_p_BV, log_q_BV = np.log(p_BV), np.log(q_BV)
    for share in (0.999, 1.001):
        stays_BV = decode.accepts(log_p_BV, log_q_BV, share * np.minimum(1, p_BV / q_BV))
        assert (stays_BV == ((share < 1) | (p_BV > share * q_BV))).all()
    kept_BV = np.minimum(p_BV, q_BV)
    again_BV = jax.nn.softmax(decode.residual(log_p_BV, log_q_BV))
    np.testing.assert_allclose(
        kept_BV + (1 - kept_BV.sum(axis=1, keepdims=True)) * again_BV, p_BV, atol=1e-6
    )


def test_every_draw_has_a_key_of_its_own(x64):
    """From a model without an opinion, a token shows its key: those of every text, segment and
    place differ.
    """
    flat = dataclasses.replace(decoder(), params=jax.tree.map(np.zeros_like, made().params))
    ids, known = [np.zeros(2 * T, int)] * 4, [np.zeros(2 * T, bool)] * 4
    one_by_one, drafted = (fill(flat, ids, known, seed=3, speculative=number) for number in (0, 4))
    drawn = np.stack([one.token_N for one in one_by_one])
    # Nothing else decides: a draft is always right.
    np.testing.assert_array_equal(drawn, [one.token_N for one in drafted])
    segments = drawn.reshape(8, T)
    assert len(np.unique(segments, axis=0)) == 8 and all(
        len(set(tokens)) > T // 2 for tokens in segments.tolist()
    )


def test_a_draft_starts_with_the_distribution_of_the_chain(x64, monkeypatch):
    """Its first token always stays."""
    ids, known = questions(6, (T,))
    known = [np.arange(T) == 2]
    seen, checked, write = [], 0, decode.write_unknown

    def recorded(*arguments):
        results, state = write(*arguments)
        seen.append((int(state.count_B[0]), jax.nn.log_softmax(state.logits_BPV[0, 0])))
        return results, state

    monkeypatch.setattr(decode, "write_unknown", recorded)
    monkeypatch.setattr(decode, "CHUNK", 1)
    for seed in range(3):
        (found,) = fill(decoder(), ids, known, seed=seed, order="random", speculative=4)
        filled = found.position_U.tolist()
        for count, log_prob_V in seen[:-1]:  # after the last one nothing is drawn
            exact_V = predicted(made(), found.token_N, filled, count, filled[count])
            np.testing.assert_allclose(log_prob_V, exact_V, atol=1e-12, rtol=0)
        checked += len(seen) - 1
        seen.clear()
    assert checked >= 3


def test_tokens_drawn_in_parallel_do_not_know_of_each_other(x64, caplog):
    """Two at a time: the first of each pair as in the chain, the second as if the first were not
    there.
    """
    ids, known = questions(2, (T,))
    (found,) = fill(decoder(), ids, known, seed=3, order="random", tokens_per_step=2)
    assert "tokens_per_step=2 is inexact" in caplog.text
    filled = found.position_U.tolist()
    assert found.calls == -(-len(filled) // 2)
    assert len(filled) > 2
    # Up to the second pair: after it, content that saw its own pair has another history than in a
    # chain.
    for turn in (0, 1):
        log_prob_V = predicted(made(), found.token_N, filled, 0, filled[turn])
        assert abs(log_prob_V[found.token_N[filled[turn]]] - found.log_prob_U[turn]) < 1e-12
    assert abs(without_cache(known[0], found)[1] - found.log_prob_U[1]) > 1e-6


@pytest.mark.parametrize(
    ("objective", "options"),
    [("plm", {"order": "random"}), ("plm", {"speculative": 3}), ("clm", {})],
    ids=["random", "speculation", "clm"],
)
def test_same_seed_same_tokens_in_any_company(objective, options, x64):
    """Equal bits in an equal shape. Other seeds, other tokens, and equal texts are different
    draws.
    """
    ids, known = questions(4) if objective == "plm" else continuation(tokens=T + 5)
    many, one_by_one = (decoder(size, objective=objective) for size in (8, 1))
    first, again, other = (fill(many, ids, known, seed=seed, **options) for seed in (7, 7, 8))
    for one, same in zip(first, again, strict=True):
        assert [x.tobytes() for x in one[:3]] == [x.tobytes() for x in same[:3]]
    alone = fill(one_by_one, ids, known, seed=7, **options)
    tokens, same, others = (
        [one.token_N.tolist() for one in found] for found in (first, alone, other)
    )
    assert tokens == same and tokens != others
    alike = fill(many, [ids[-1]] * 5, [known[-1]] * 5, seed=7, **options)
    assert len({one.token_N.tobytes() for one in alike}) == 5


@pytest.mark.parametrize(("objective", "speculative"), [("plm", 0), ("plm", 4), ("clm", 0)])
def test_listener_hears_every_token_once_and_a_stop_ends_the_text(objective, speculative, x64):
    """The stop token is one that the text draws; it is the last one, and nothing after it is
    kept.
    """
    ids, known = continuation((4, 4), 2 * T)
    model, asked = decoder(objective=objective), {"seed": 1, "speculative": speculative}
    whole = fill(model, ids, known, **asked)
    stop = int(whole[0].token_N[9])
    heard = [[], []]

    def listener(number, pairs, ended):
        heard[number].append((pairs, ended))

    found = fill(model, ids, known, stop, listener, **asked)
    for one, text, said in zip(found, whole, heard, strict=True):
        expected = text.token_N.tolist()
        end = expected.index(stop, 4) + 1 if stop in expected[4:] else len(expected)
        assert one.token_N.tolist() == expected[:end]
        pairs, ended = zip(*said, strict=True)
        assert sum(pairs, []) == list(enumerate(expected[:end]))[4:]
        assert ended.index(True) == len(ended) - 1
        assert one.calls <= end - 4
    assert len(found[0].token_N) <= 10


SAMPLES = 20_000


@pytest.mark.slow
@pytest.mark.parametrize("speculative", [0, 3])
def test_speculation_has_the_distribution_of_the_chain(speculative, x64):
    """Samples of three tokens of a toy model against the chain's exact distribution. So many
    standard deviations above its mean the chi-square of a right rule is once in a million.
    """
    scores = scorer(vocab=5, batch_size=125)
    model = Decoder(scores.model, scores.params, XLNET, T, 5000)
    ids, known = np.array([3, 0, 1, 0, 0]), np.array([True, False, True, False, False])
    asked = {"seed": 11, "order": "reversed", "speculative": speculative}
    found = fill(model, [ids] * SAMPLES, [known] * SAMPLES, **asked)
    assert all(one.calls <= 3 for one in found)
    texts = np.repeat(ids[None], 125, axis=0)
    texts[:, ~known] = list(itertools.product(range(5), repeat=3))
    expected = SAMPLES * np.exp(
        [one.joint_K[0] for one in log_prob(scores, texts, [known] * 125, order=[4, 3, 1])]
    )
    drawn = [one.token_N[~known] @ [25, 5, 1] for one in found]
    counts = np.bincount(drawn, minlength=125)
    rare = expected < 10
    expected, counts = (np.append(each[~rare], each[rare].sum()) for each in (expected, counts))
    freedom = len(expected) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.slow
def test_sharded_equals_one_device(x64):
    """Rows over `data`, heads and vocabulary over `tensor`: the same draws. Five or seven texts in
    eight rows.
    """
    mesh = meshes.make_mesh(tiny.config(mesh={"data": 2, "tensor": 2}).mesh, jax.devices()[:4])
    some_order = {"order": "random", "speculative": 3}
    for objective, options in (("plm", some_order), ("plm", {"order": "confidence"}), ("clm", {})):
        ids, known = questions(9) if objective == "plm" else continuation()
        one = fill(decoder(8, objective=objective), ids, known, top_k=9, seed=2, **options)
        with jax.set_mesh(mesh):
            split = fill(decoder(8, objective=objective), ids, known, top_k=9, seed=2, **options)
        for alone, shared in zip(one, split, strict=True):
            assert alone.token_N.tolist() == shared.token_N.tolist()
            np.testing.assert_allclose(alone.log_prob_U, shared.log_prob_U, atol=1e-12, rtol=0)


def test_one_new_token_costs_two_rows_of_each_layer(x64, monkeypatch):
    """In the program of the chain's loop, no product with weights has more rows than one per stream
    and text.
    """
    monkeypatch.syspath_prepend(tiny.ROOT / "benchmarks")
    importlib.import_module("generation").check_rows(decoder())


def test_damaged_parameters_are_one_line(x64):
    model = decoder()
    model = dataclasses.replace(model, params=jax.tree.map(lambda x: x * np.nan, model.params))
    with pytest.raises(
        BadInput, match="^text 1: a likelihood is not finite; the parameters are damaged$"
    ):
        fill(model, [[9, 10, 11]], [[False] * 3])


def test_buckets_waste_at_most_a_half():
    wanted = {1: 8, 8: 8, 9: 12, 12: 12, 13: 16, 97: 128}
    assert {number: bucket(number, 8) for number in wanted} == wanted
