"""Question answering: windows, labels and characters on the host, and the beam against all pairs."""

import dataclasses
import itertools

import data_fixtures
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.finetune.question_answering import QuestionAnswering
from xlnet_jax.finetune.task import Example, Hidden

T, D, PARAGRAPH = 12, 16, range(3, 8)  # padding before the paragraph; then SEP, a question of one piece, SEP, CLS


def _task(segment_len=T, **changes):
    config = tiny.config().changed(finetune=changes, data={"segment_len": segment_len})
    return QuestionAnswering(config, data_fixtures.tokenizer())


def _hidden(rows=1):
    h_TD = np.random.default_rng(0).normal(size=(T, D)).astype(np.float32)
    segments_T = np.array([0] * 9 + [1] * 2 + [2], np.int32)

    def repeat(x):
        return jnp.broadcast_to(x, (rows, 1, *x.shape))

    return Hidden(repeat(h_TD), repeat(np.arange(T) >= 3), repeat(segments_T), jnp.arange(rows))


def _head(beam):
    task = _task(beam=beam)
    head = task.head(dataclasses.replace(tiny.config().model, init_std=0.5, dropout=0.0))
    labels = {name: np.zeros(1, np.int32) for name in ("start", "end", "impossible")}
    return head, head.init(jax.random.key(0), _hidden(), labels, deterministic=True, method="losses")


@pytest.fixture(scope="module")
def exhaustive():
    """log p(start) + log p(end | start) of all pairs, from the loss of each as the label: float [T, T]."""
    head, params = _head(2)
    pairs = np.array(list(itertools.product(range(T), range(T))), np.int32)
    hidden = _hidden(len(pairs))
    labels = {"start": pairs[:, 0], "end": pairs[:, 1], "impossible": np.zeros(len(pairs), np.int32)}
    losses = jax.jit(lambda labels: head.apply(params, hidden, labels, deterministic=True, method="losses"))
    one, two = losses(labels), losses(labels | {"impossible": np.ones(len(pairs), np.int32)})
    # BCE(1) - BCE(0) = -logit, and BCE(0) = softplus(logit); both count half.
    legal = T * PARAGRAPH[0] + PARAGRAPH[0]
    logit = -2 * float(two[legal] - one[legal])
    return (np.logaddexp(0, logit) - 2 * np.asarray(one, np.float64)).reshape(T, T), logit


@pytest.mark.parametrize("beam", [2, T])
def test_the_beam_equals_exhaustive_search(beam, exhaustive):
    """The fault: ends that are not conditioned on their own start, or allowed positions that differ from training."""
    score_TT, logit = exhaustive
    head, params = _head(beam)
    found = jax.tree.map(np.asarray, head.apply(params, _hidden(), method="predictions"))
    np.testing.assert_allclose(found["no_answer"], [logit], atol=1e-5)
    for k, e in itertools.product(range(beam), range(beam)):
        start, end = T + found["start"][0, k], T + found["end"][0, k, e]
        if score_TT[start, end] > -1e20:
            beam_score = found["start_score"][0, k] + found["end_score"][0, k, e]
            assert beam_score == pytest.approx(score_TT[start, end], abs=1e-4)
    # The best pair of the paragraph, whose characters are its positions.
    task = _task(beam=beam, max_answer=3)
    place = np.arange(len(PARAGRAPH))
    (row, *_) = task.encode(0, Example(("ba", "ki"), (), ""))
    row = dataclasses.replace(
        row, more=row.more._replace(first=3 - T, start_N=place, end_N=place + 1, best_N=place >= 0)
    )
    (output,) = task.outputs(found, [row], [Example(("abcde", "?"), None, "")])
    legal = [(i, j) for i in PARAGRAPH for j in PARAGRAPH if i <= j < i + 3]
    best = max(legal, key=lambda pair: score_TT[pair])
    if beam == T:
        assert output["answer"] == "abcde"[best[0] - 3 : best[1] - 2]
    assert output["score"] is None or output["score"] <= score_TT[best] + 1e-4
    # Padding, SEP and the question are never chosen in training either; CLS is.
    allowed = {*PARAGRAPH, T - 1}
    assert {int(i) for i, j in np.argwhere(score_TT > -1e20)} == allowed


CONTEXT = "  Bado ki re\u0301mi, 12,450 lu. Sidone tu ve ra. Kilu nomi raba doki."


@pytest.mark.parametrize("answer", ["re\u0301mi", "12,450", "nomi", "Bado"])
def test_a_window_points_at_the_answer_or_says_there_is_none(answer):
    """Decoding the labels gives the answer back; the fault: a place that is off by one, or one in the wrong window."""
    task = _task(24, stride=4)
    label = ((CONTEXT.index(answer), answer),)
    rows = task.encode(0, Example((CONTEXT, "Ba do?"), label, "dev.json"))
    assert len(rows) > 3
    holding = [row for row in rows if not row.labels["impossible"]]
    assert holding and len(holding) < len(rows)
    for row in rows:
        assert len(row.tokens[0]) <= 24
        if not row.labels["impossible"]:
            first, last = (row.labels[name] - 24 - row.more.first for name in ("start", "end"))
            assert CONTEXT[row.more.start_N[first] : row.more.end_N[last]].strip() == answer
        else:
            assert row.labels["start"] == row.labels["end"] == 23
    # A head that is sure of the labels answers right, and is scored so.
    start = np.array([[row.labels["start"]] for row in rows]) - 24
    end = np.array([[[row.labels["end"]]] for row in rows]) - 24
    impossible = np.array([row.labels["impossible"] for row in rows])
    sure = {"start": start, "start_score": 0.0 * start, "end": end, "end_score": 0.0 * end, "no_answer": impossible}
    examples = [Example((CONTEXT, "Ba do?"), label, "")]
    (output,) = outputs = task.outputs(sure, rows, examples)
    assert output["answer"] == answer and CONTEXT.startswith(answer, output["start"])
    assert output["no_answer"] == 0
    # A window that has less context around its start than another one is not asked, however sure it is.
    edge = [
        not row.labels["impossible"] and not row.more.best_N[start[b, 0] - row.more.first] for b, row in enumerate(rows)
    ]
    score = np.array(edge, float)[:, None]
    unsure = sure | {"start_score": 9 * score, "end": np.where(score[:, :, None] > 0, start[:, :, None], end)}
    (output,) = task.outputs(unsure, rows, examples)
    assert any(edge) == (answer != "Bado"), "the first word is in one window"
    assert (output["answer"], output["score"]) == (answer, 0)
    assert task.score(outputs, examples)["best_f1"] == 1


def test_a_question_without_an_answer():
    task = _task(24)
    rows = task.encode(0, Example((CONTEXT, "Ba do?"), (), ""))
    assert all(row.labels["impossible"] == 1 for row in rows)
    assert all(row.labels["impossible"] == 0 for row in task.encode(0, Example((CONTEXT, "Ba do?"), None, "")))
