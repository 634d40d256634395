"""`score --order=confidence`: the decoder that chooses its order is a distribution over texts, and
the likelihood of a text is the chain rule in the order that the text leads it to.
"""

import dataclasses
import itertools

import data_fixtures
import jax
import numpy as np
import pytest
import tiny
from test_decoder import T, decoder, made, questions
from test_score import log_prob, log_prob_at, scorer

from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.options import Decoding, Score
from xlnet_jax.infer.orders import checked_texts
from xlnet_jax.library import Model
from xlnet_jax.members import MEMBERS

V, MASK, KNOWN = 4, 3, 1
UNKNOWN = [0, 2, 3]
BERT = MEMBERS["bert"].usual(T)["model"] | {"memory_len": 0, "max_positions": T}


def predictions(model, special, text_N, taken):
    """log p of every token at every position of a text, of which the decoder has taken some, from
    the model itself, [N, V].
    """
    open_N = ~np.isin(np.arange(len(text_N)), [KNOWN, *taken])
    objective, member = model.model.transformer.objective, model.model.transformer.config.member
    if not objective.masks:
        rank_N = np.where(open_N, 1 + len(taken), -1)
        rank_N[taken] = 1 + np.arange(len(taken))
        read_N, kind_N, first = text_N * ~open_N, 0 * text_N, 0
    else:
        read_N = np.where(open_N, special.mask, text_N)
        kind_N, first = 0 * text_N, 0
        if objective.framed[member.bounded]:
            ends = member.cls == "last"
            around = [[], [special.sep, special.cls]] if ends else [[special.cls], [special.sep]]
            read_N, first = np.array([*around[0], *read_N, *around[1]]), len(around[0])
            kind_N = np.array([0] * (len(read_N) - 1) + [2 * ends])
        rank_N = 0 * read_N
    rows = [x_N[None].astype(np.int32) for x_N in (read_N, rank_N, kind_N, np.arange(len(read_N)))]
    return np.asarray(log_prob_at(model.model, model.params, *rows)[0, first:][: len(text_N)])


def by_hand(model, special, text_N):
    """The order that the decoder takes on its way to a text, and log p of each token in it."""
    taken, terms = [], []
    while len(taken) < len(UNKNOWN):
        log_p_NV = predictions(model, special, text_N, taken)
        left = [at for at in UNKNOWN if at not in taken]
        sure = {at: log_p_NV[at].max() for at in left}
        # Of one known token all queries see the same: equal, but for rounding.
        at = next(at for at in left if sure[at] > max(sure.values()) - 1e-5)
        taken.append(at)
        terms.append(log_p_NV[at, text_N[at]])
    return taken, np.array(terms)


@pytest.mark.parametrize(
    ("objective", "model"),
    [
        ("plm", {"memory_len": 0}),
        ("mlm", {"memory_len": 0}),
        pytest.param("mdm", {"memory_len": 0}, marks=pytest.mark.slow),
        ("mdm", BERT),
        pytest.param("mlm", BERT, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("architecture", "xlnet"),
)
def test_all_texts_sum_to_one_in_orders_of_their_own(objective, model, x64):
    """All texts of three unknown tokens around a known one. Caught: an order that looks at the
    answer, a token that is drawn, a probability of another call, unequal places.
    """
    special = XLNET._replace(cls=0, sep=2, mask=MASK)
    if objective == "plm":  # only here a known CLS or SEP has another rank than text
        special = XLNET
    made = dataclasses.replace(scorer(V, objective, batch_size=V**3, **model), special=special)
    made = dataclasses.replace(made, params=jax.tree.map(lambda x: 2 * x, made.params))
    texts = np.insert(list(itertools.product(range(V), repeat=3)), KNOWN, 1, axis=1)
    known_N = np.arange(4) == KNOWN
    counted = []
    found = made.log_prob(
        checked_texts(made.model, T, texts, [known_N] * len(texts)),
        Score(order="confidence"),
        counted.append,
    )
    assert abs(np.exp([one.joint_K[0] for one in found]).sum() - 1) < 1e-10
    assert sum(counted) == len(texts)
    orders = {tuple(one.place_U.tolist()) for one in found}
    assert len(orders) > 1, "nothing was shown: all texts have the same order"
    for text_N, one in zip(texts[::5], found[::5], strict=True):
        order, terms = by_hand(made, special, text_N)
        assert one.position_U.tolist() == UNKNOWN
        assert [order.index(at) + 1 for at in UNKNOWN] == one.place_U.tolist()
        by_place = np.argsort(one.place_U)
        np.testing.assert_allclose(one.log_prob_KU[0, by_place], terms, atol=1e-12)


def test_segments_follow_each_other_and_equal_positions_are_taken_from_the_left(x64):
    """Texts of one to two segments with the memory carried, against the chain rule in one call in
    the order that was found; and a model that knows nothing.
    """
    ids, known = questions(5)
    found = log_prob(made(), ids, known, order="confidence")
    moved = 0
    for text_N, known_N, one in zip(ids, known, found, strict=True):
        order = one.position_U[np.argsort(one.place_U)].tolist()
        (same,) = log_prob(made(), [text_N], [known_N], order=order)
        np.testing.assert_allclose(one.log_prob_KU, same.log_prob_KU, atol=1e-12)
        moved += order != sorted(order)
    assert moved > 1
    none = dataclasses.replace(made(), params=jax.tree.map(lambda x: 0 * x, made().params))
    (one,) = log_prob(none, ids[1:2], [[False] * 3], order="confidence")
    assert one.place_U.tolist() == [1, 2, 3]


def test_it_is_the_likelihood_of_what_fill_finds(x64):
    ids, known = questions(6)
    texts = checked_texts(decoder().model, T, ids, known)
    filled = decoder()(texts, Decoding(order="confidence"))
    found = log_prob(made(), [one.token_N for one in filled], known, order="confidence")
    for one, likelihood in zip(filled, found, strict=True):
        order = likelihood.position_U[np.argsort(likelihood.place_U)]
        assert one.position_U.tolist() == order.tolist()
        assert likelihood.joint_K[0] == pytest.approx(one.log_prob_U.sum(), abs=1e-12)


CLM = {"objective": "clm", "reuse_len": 32, "num_predict": 32}
MLM = {"objective": "mlm", "reuse_len": 29}
MDM = {"objective": "mdm", "reuse_len": 32, "num_predict": 32}


@pytest.mark.parametrize(
    ("data", "method", "options", "message"),
    [
        (CLM, "score", {}, "order=confidence: a left-to-right model (data.objective=clm) predicts"),
        (MLM, "elbo", {}, "data.objective=mlm, which predicts each unknown token by itself"),
        (MLM, "score", {"draws": 2}, "draws=2: a model of data.objective=mlm has a likelihood"),
        (MDM, "elbo", {}, "order=confidence: a model of data.objective=mdm has a bound, the mean"),
        (MDM, "score", {"orders": 2}, "orders=2 with order=confidence: several orders are random"),
    ],
)
def test_a_model_that_cannot_choose_is_one_line(data, method, options, message):
    config = tiny.config(data=data, model={"memory_len": 0})
    model = Model(config, data_fixtures.tokenizer(), None, 4)
    with pytest.raises(BadInput) as raised:
        getattr(model, method)(["Bado kilu."], order="confidence", **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
