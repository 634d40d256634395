"""What models whose texts end at `model.max_positions` say of texts: one piece of a masked text, or
what follows up to the end.
"""

import re

import data_fixtures
import jax
import numpy as np
import pytest
import tiny
from special_ids import CLS, EOD, MASK, SEP
from test_score import log_prob_at

from xlnet_jax.batch import NEVER
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.infill import Passage
from xlnet_jax.library import Model
from xlnet_jax.train.recipe import language_model

TEXT, GAP = "Bado kilu menora.", "Bado [MASK] menora."


@pytest.fixture(scope="module")
def models():
    """By family."""
    configs = {name: tiny.family(name) for name in ("bert", "gpt2", "modernbert")}
    diffusion = {
        "objective": "mdm",
        "reuse_len": 30,
        "num_predict": 30,
        "pairs": "none",
        "sentence_loss": False,
    }
    configs["diffusion"] = tiny.family("bert", data=diffusion)
    configs["modern_diffusion"] = tiny.family("modernbert", data=diffusion, model={"window": 4})
    return {
        name: Model(config, data_fixtures.tokenizer(), tiny.random_params(config, 0.3), 4)
        for name, config in configs.items()
    }


def log_probs(model, ids):
    """log p over the vocabulary at every position of one text, from the model itself, [N, V]."""
    at_1T, n = np.arange(32, dtype=np.int32)[None], len(ids)
    rank_1T = np.where(at_1T < n, at_1T * model.config.objective.causal, NEVER)
    ids_1T = np.array([ids + [0] * (32 - n)], np.int32)
    language = language_model(model.config)
    return np.asarray(log_prob_at(language, model.params, ids_1T, rank_1T, 0 * at_1T, at_1T)[0, :n])


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_masked_model_scores_each_piece_given_all_others(models, family):
    model = models[family]
    ids = model.tokenizer.encode(TEXT).tolist()
    (found,) = model.pseudo_score([TEXT])
    for at, log_prob in zip(found.position_U, found.log_prob_U, strict=True):
        masked = [CLS, *ids[:at], MASK, *ids[at + 1 :], SEP]
        assert log_prob == pytest.approx(log_probs(model, masked)[1 + at, ids[at]], abs=1e-4)
    assert found.pseudo_log_prob == pytest.approx(found.log_prob_U.sum())
    (part,) = model.pseudo_score([Passage(" kilu", before="Bado", after=" menora.")])
    np.testing.assert_allclose(part.log_prob_U, found.log_prob_U[part.position_U], atol=1e-5)


def test_a_masked_model_fills_one_gap(models):
    model = models["bert"]
    (filled,), (logits_1V,) = model.fill([GAP]), model.logits([GAP])
    assert filled.gaps[0].pieces == [model.tokenizer.pieces[logits_1V[0].argmax()]]
    ranked = [one.gaps[0].pieces[0] for one in model.fill([GAP], top=3)]
    assert ranked == [model.tokenizer.pieces[id] for id in np.argsort(-logits_1V[0])[:3]]
    drawn = model.fill([GAP], temperature=1.0, samples=40)
    assert len({one.text for one in drawn}) > 5


@pytest.mark.parametrize(
    "name", [pytest.param("diffusion", marks=pytest.mark.slow), "modern_diffusion"]
)
def test_masked_diffusion_reads_texts_between_cls_and_sep(models, name):
    model = models[name]
    ids = model.tokenizer.encode(TEXT).tolist()
    (bound,) = model.elbo([TEXT], draws=3)
    for term_U in bound.term_KU:
        masked = np.flatnonzero(term_U)
        read = [CLS, *np.where(term_U != 0, MASK, ids).tolist(), SEP]
        each = len(ids) / len(masked) * log_probs(model, read)[1 + masked, np.array(ids)[masked]]
        np.testing.assert_allclose(term_U[masked], each, rtol=1e-4)
    with_gaps = infill.gapped(model.tokenizer, "Bado [MASK:2] menora, [MASK]", 1)
    (filled,) = model.fill(["Bado [MASK:2] menora, [MASK]"], order="confidence")
    read, turns = [CLS, *with_gaps.ids, SEP], {}
    places = 1 + np.flatnonzero(~np.array(with_gaps.known))
    for turn in (1, 2, 3):
        log_p_NV = log_probs(model, read)
        at = max(set(places) - turns.keys(), key=lambda place: log_p_NV[place].max())
        read[at], turns[at] = int(log_p_NV[at].argmax()), turn
    assert sum((gap.order for gap in filled.gaps), []) == [turns[at] for at in places]
    pieces = [model.tokenizer.pieces[read[at]] for at in places]
    assert sum((gap.pieces for gap in filled.gaps), []) == pieces and filled.exact
    (text,) = model.generate([TEXT], tokens=6, temperature=0, order="confidence")
    assert len(model.tokenizer.encode(TEXT + text)) > len(ids)


@pytest.mark.parametrize(
    ("model", "method", "text", "options", "message"),
    [
        ("bert", "fill", "Bado [MASK:2] menora.", {}, "has 2 unknown pieces"),
        ("bert", "fill", GAP, {"order": "random"}, "without further options"),
        ("bert", "generate", TEXT, {}, "for all else use a model of data.objective=plm or clm"),
        ("bert", "hidden", TEXT * 5, {}, "the model has positions for 32"),
        ("gpt2", "pseudo_score", TEXT, {}, "use `score`"),
        ("gpt2", "elbo", TEXT, {}, "data.objective=clm and has no bound; use `score`"),
        ("gpt2", "score", TEXT, {"draws": 2}, "draws=2: a model of data.objective=clm has a like"),
        ("gpt2", "generate", TEXT * 3, {}, "new and special ones included; shorten it"),
        ("diffusion", "pseudo_score", TEXT, {}, "use `elbo`"),
        ("diffusion", "score", TEXT, {}, "has a bound on the likelihood; use `elbo`"),
        ("diffusion", "elbo", TEXT, {"orders": 2}, "orders=2: a model of data.objective=mdm has"),
        ("diffusion", "fill", GAP, {"speculative": 2}, "speculative=2: this model was trained"),
        (
            "diffusion",
            "elbo",
            TEXT * 3,
            {},
            "max_positions=32, special pieces included; shorten it",
        ),
    ],
)
def test_what_a_model_cannot_answer_is_refused(models, model, method, text, options, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        getattr(models[model], method)([text], **options)


def test_a_left_to_right_model_of_learned_positions_continues_texts_to_the_last_one(models, caplog):
    model = models["gpt2"]
    (likelihood,) = model.score([TEXT])
    ids = model.tokenizer.encode(TEXT).tolist()
    each = log_probs(model, [EOD, *ids])[np.arange(len(ids)), ids]
    np.testing.assert_allclose(likelihood.log_prob_KU[0], each, atol=1e-4)
    (text,) = model.generate([TEXT], tokens=100, temperature=0)
    room = model.config.model.max_positions - len(ids)
    assert f"text 1 ends after {room} new tokens: the model reads 32 tokens at most" in caplog.text
    for _ in range(room):
        ids.append(int(log_probs(model, ids)[-1].argmax()))
    assert text.strip() in model.tokenizer.decode(ids)
    assert model.encode([TEXT]).shape == (1, model.config.model.d_model)


def test_a_masked_xlnet_fills_by_the_logits_of_the_whole_text_with_cls_in_its_own_segment():
    """Fails if a call of the decoder reads the segments of the text as zeros."""
    config = tiny.config(
        data={"objective": "mlm", "reuse_len": 29, "num_predict": 6}, model={"memory_len": 0}
    )
    model = Model(config, data_fixtures.tokenizer(), tiny.random_params(config, 0.3), 4)
    (logits_PV,) = model.logits([GAP])
    expected = jax.nn.log_softmax(logits_PV[0]).max()
    np.testing.assert_allclose(model.fill([GAP])[0].log_prob, expected, rtol=1e-6)
