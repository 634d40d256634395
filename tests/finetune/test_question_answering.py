"""Question answering: windows, labels and characters on the host, and the beam against all
pairs.
"""

import dataclasses
import functools
import itertools

import data_fixtures
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.data import subwords
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.data.vocabulary import open_tokenizer
from xlnet_jax.finetune.question_answering import QuestionAnswering
from xlnet_jax.finetune.task import Example, Hidden

# Padding before the paragraph; then SEP, a question of one piece, SEP, CLS.
T, D, PARAGRAPH = 12, 16, range(3, 8)


@functools.cache
def _tokenizer(family):
    """Of the kind that the family has."""
    if family == "xlnet":
        return data_fixtures.tokenizer()
    level, size = {"bert": ("wordpiece", 240), "roberta": ("bytebpe", 300)}[family]
    path = f"{data_fixtures.session_folder()}/{level}-tokenizer.json"
    subwords.train(
        [CONTEXT, *data_fixtures.synthetic_text(0, 20).split("\n")],
        path,
        size,
        level,
        Normalization(),
    )
    return open_tokenizer(path)


def _task(segment_len=T, family="xlnet", **changes):
    config = tiny.config().changed(
        finetune=changes, data={"segment_len": segment_len}, model={"architecture": family}
    )
    return QuestionAnswering(config, _tokenizer(family))


def _hidden(seed, real_T, segments, rows=1, cls="last"):
    h_TD = np.random.default_rng(seed).normal(size=(T, D)).astype(np.float32)
    parts = (h_TD, real_T, np.array(segments, np.int32))
    return Hidden(*(jnp.array([[x]] * rows) for x in parts), jnp.arange(rows), cls)


_xlnet = functools.partial(_hidden, 0, np.arange(T) >= 3, [0] * 9 + [1] * 2 + [2])


def _row(task, first):
    """Of a paragraph that has a character for each position from `first`."""
    place = np.arange(len(PARAGRAPH))
    (row,) = task.encode(0, Example(("ba", "ki"), (), ""))
    more = row.more._replace(first=first, start_N=place, end_N=place + 1, best_N=place >= 0)
    return row._replace(more=more)


def _head(beam):
    task = _task(beam=beam)
    head = task.head(dataclasses.replace(tiny.config().model, init_std=0.5, dropout=0.0))
    labels = {name: np.zeros(1, np.int32) for name in ("start", "end", "impossible")}
    return head, head.init(jax.random.key(0), _xlnet(), labels, method="losses")


@pytest.fixture(scope="module")
def exhaustive():
    """log p(start) + log p(end | start) of all pairs, from the loss of each as the label: float [T,
    T].
    """
    head, params = _head(2)
    pairs = np.array(list(itertools.product(range(T), range(T))), np.int32)
    hidden, none = _xlnet(len(pairs)), np.zeros(len(pairs), np.int32)
    labels = {"start": pairs[:, 0], "end": pairs[:, 1], "impossible": none}
    losses = jax.jit(lambda labels: head.apply(params, hidden, labels, method="losses"))
    one, two = losses(labels), losses(labels | {"impossible": none + 1})
    # BCE(1) - BCE(0) = -logit, and BCE(0) = softplus(logit); both count half.
    legal = T * PARAGRAPH[0] + PARAGRAPH[0]
    logit = -2 * float(two[legal] - one[legal])
    return (np.logaddexp(0, logit) - 2 * np.asarray(one, np.float64)).reshape(T, T), logit


@pytest.mark.parametrize("beam", [2, T])
def test_the_beam_equals_exhaustive_search(beam, exhaustive):
    """The fault: ends that are not conditioned on their own start, or allowed positions that differ
    from training.
    """
    score_TT, logit = exhaustive
    head, params = _head(beam)
    found = jax.tree.map(np.asarray, head.apply(params, _xlnet(), method="predictions"))
    np.testing.assert_allclose(found["no_answer"], [logit], atol=1e-5)
    for k, e in itertools.product(range(beam), range(beam)):
        start, end = T + found["start"][0, k], T + found["end"][0, k, e]
        if score_TT[start, end] > -1e20:
            beam_score = found["start_score"][0, k] + found["end_score"][0, k, e]
            assert beam_score == pytest.approx(score_TT[start, end], abs=1e-4)
    if beam == T:  # the best pair of the paragraph
        task = _task(beam=beam, max_answer=3)
        (output,) = task.outputs(found, [_row(task, 3 - T)], [Example(("abcde", "?"), None, "")])
        legal = [(i, j) for i in PARAGRAPH for j in PARAGRAPH if i <= j < i + 3]
        first, last = max(legal, key=lambda pair: score_TT[pair])
        assert output["answer"] == "abcde"[first - 3 : last - 2]
        assert output["score"] == pytest.approx(score_TT[first, last], abs=1e-4)
    # Padding, SEP and the question are never chosen in training either; CLS is.
    allowed = {*PARAGRAPH, T - 1}
    assert {int(i) for i, j in np.argwhere(score_TT > -1e20)} == allowed


def test_one_dense_layer_finds_the_best_span_of_all():
    """The fault: a span of the question, or one that is too long, or the score of "no answer"
    without CLS.
    """
    task = _task(family="bert", beam=5, max_answer=2)
    # CLS, a question of one piece, SEP, five pieces of the paragraph, SEP, padding. With these
    # vectors the best end for the best start is too far from it.
    hidden = _hidden(2, np.arange(T) < 9, [0] * 3 + [1] * 6 + [0] * 3, cls="first")
    head = task.head(dataclasses.replace(task.config.model, init_std=0.5))
    labels = {"start": np.array([4]), "end": np.array([6])}
    params = nn.meta.unbox(head.init(jax.random.key(0), hidden, labels, method="losses"))
    kernel, bias = (
        np.asarray(params["params"]["logits"][name], np.float64) for name in ("kernel", "bias")
    )
    start_T, end_T = (np.asarray(hidden.h_BCTD[0, 0]) @ kernel + bias).T
    loss = head.apply(params, hidden, labels, method="losses")
    wanted = sum(np.log(np.exp(x).sum()) for x in (start_T, end_T)) - start_T[4] - end_T[6]
    np.testing.assert_allclose(np.asarray(loss), [wanted / 2], rtol=1e-5)
    row = _row(task, 3)
    assert row.labels["impossible"] and row.labels["start"] == row.labels["end"] == 0
    # Of all starts, and of the best start alone.
    for beam, starts in ((5, range(3, 8)), (1, [3 + int(start_T[3:8].argmax())])):
        found = jax.tree.map(
            np.asarray, head.clone(beam=beam).apply(params, hidden, method="predictions")
        )
        (output,) = task.outputs(found, [row], [Example(("abcde", "?"), None, "")])
        legal = [
            (start_T[i] + end_T[j], "abcde"[i - 3 : j - 2])
            for i in starts
            for j in range(i, min(i + 2, 8))
        ]
        score, answer = max(legal)
        assert (output["answer"], output["score"]) == (answer, pytest.approx(score, abs=1e-5))
        assert output["no_answer"] == pytest.approx(start_T[0] + end_T[0] - score, abs=1e-5)


CONTEXT = "  Bado ki re\u0301mi, 12,450 lu. Sidone tu ve ra. Kilu nomi raba doki."


@pytest.mark.parametrize(
    ("answer", "family"),
    [
        ("re\u0301mi", "xlnet"),
        ("Bado", "xlnet"),
        ("nomi", "bert"),
        ("Bado", "bert"),
        ("12,450", "roberta"),
    ],
)
def test_a_window_points_at_the_answer_or_says_there_is_none(answer, family):
    """Decoding the labels gives the answer back; the fault: a place that is off by one, or one in
    the wrong window.
    """
    task = _task(24, family, stride=4)
    left = family == "xlnet"  # where positions count from the end
    label = ((CONTEXT.index(answer), answer),)
    rows = task.encode(0, Example((CONTEXT, "Ba do?"), label, "dev.json"))
    assert len(rows) > 3
    assert {int(row.labels["impossible"]) for row in rows} == {0, 1}
    for row in rows:
        assert len(row.tokens[0]) <= 24
        if not row.labels["impossible"]:
            first, last = (
                row.labels[name] - 24 * left - row.more.first for name in ("start", "end")
            )
            assert CONTEXT[row.more.start_N[first] : row.more.end_N[last]].strip() == answer
        else:
            assert row.labels["start"] == row.labels["end"] == 23 * left
    # A head that is sure of the labels answers right, and is scored so.
    start = np.array([[row.labels["start"]] for row in rows]) - 24 * left
    end = np.array([[[row.labels["end"]]] for row in rows]) - 24 * left
    impossible = np.array([row.labels["impossible"] for row in rows])
    sure = {"start": start, "start_score": 0.0 * start, "end": end, "end_score": 0.0 * end}
    sure["no_answer"] = impossible
    examples = [Example((CONTEXT, "Ba do?"), label, "")]
    (output,) = outputs = task.outputs(sure, rows, examples)
    assert output["answer"] == answer and CONTEXT.startswith(answer, output["start"])
    assert output["no_answer"] == 0
    # A window that has less context around its start than another one is not asked, however sure it
    # is.
    edge = [
        not row.labels["impossible"] and not row.more.best_N[start[b, 0] - row.more.first]
        for b, row in enumerate(rows)
    ]
    score = np.array(edge, float)[:, None]
    unsure = sure | {
        "start_score": 9 * score,
        "end": np.where(score[:, :, None] > 0, start[:, :, None], end),
    }
    (output,) = task.outputs(unsure, rows, examples)
    assert any(edge) == (answer != "Bado"), "the first word is in one window"
    assert (output["answer"], output["score"]) == (answer, 0)
    assert task.score(outputs, examples)["best_f1"] == 1
    # Nor is a start before the context; JSON has no number for what has no answer.
    (output,) = task.outputs(sure | {"start": start - 24}, rows, examples)
    assert (output["answer"], output["score"]) == ("", None)


@pytest.mark.parametrize(("label", "impossible"), [((), 1), (None, 0)])
def test_a_question_without_an_answer(label, impossible):
    rows = _task(24).encode(0, Example((CONTEXT, "Ba do?"), label, ""))
    assert {int(row.labels["impossible"]) for row in rows} == {impossible}
