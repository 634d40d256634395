"""Metrics of predictions, on the host, in float64.

Each metric takes the labels and the predictions of a whole split, because most metrics are not
means over examples. The metrics agree with scikit-learn and seqeval (`tests/peers/test_scores.py`).
`squad` compares answers to questions by the official rules of SQuAD 1.1 and 2.0: without case,
punctuation, English articles and extra white space.
"""

from __future__ import annotations

import collections
import itertools
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from xlnet_jax.errors import BadInput

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Returns the share of predictions that equal their label."""
    return float(np.mean(np.equal(label_N, predicted_N)))


def confusion(label_N: np.ndarray, predicted_N: np.ndarray) -> np.ndarray:
    """Returns the counts by label and prediction, int64 [C, C]."""
    C = int(np.max([label_N, predicted_N])) + 1
    table_CC = np.zeros((C, C), np.int64)
    np.add.at(table_CC, (label_N, predicted_N), 1)
    return table_CC


def f1(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Returns the F1 of class 1, as in MRPC and QQP; 0 if the class is neither a label nor
    predicted.
    """
    is_one, predicted = np.equal(label_N, 1), np.equal(predicted_N, 1)
    return _ratio(2 * (is_one & predicted).sum(), is_one.sum() + predicted.sum())


def macro_f1(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Returns the mean F1 of all classes that are labels or predictions."""
    table_CC = confusion(label_N, predicted_N)
    size_C = table_CC.sum(axis=0) + table_CC.sum(axis=1)
    return float(np.mean(2 * np.diag(table_CC)[size_C > 0] / size_C[size_C > 0]))


def multi_label_f1(label_NC: np.ndarray, predicted_NC: np.ndarray) -> dict[str, float]:
    """Returns the F1 of all classes together (`f1_micro`) and the mean F1 of the single classes
    (`f1_macro`), from arrays [N, C] of 0 and 1.

    The F1 of a class that is neither a label nor predicted is 0.
    """
    both_C = (2 * label_NC * predicted_NC).sum(axis=0)
    size_C = (label_NC + predicted_NC).sum(axis=0)
    return {
        "f1_micro": _ratio(both_C.sum(), size_C.sum()),
        "f1_macro": float(np.mean(both_C / np.maximum(size_C, 1))),
    }


def matthews(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Returns Matthews' correlation for any number of classes (Gorodkin 2004, R_K); 0 where it is
    not defined.
    """
    table_CC = confusion(label_N, predicted_N).astype(np.float64)
    label_C, predicted_C, count = table_CC.sum(axis=1), table_CC.sum(axis=0), table_CC.sum()
    above = np.trace(table_CC) * count - label_C @ predicted_C
    below = (count**2 - label_C @ label_C) * (count**2 - predicted_C @ predicted_C)
    return _ratio(above, np.sqrt(below))


def pearson(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Returns Pearson's correlation; 0 if the labels or the predictions are constant."""
    from scipy.stats import pearsonr  # JAX requires SciPy; the import takes a second

    x_N, y_N = np.asarray(label_N, np.float64), np.asarray(predicted_N, np.float64)
    if not np.ptp(x_N) or not np.ptp(y_N):
        return 0.0
    result: Any = pearsonr(x_N, y_N)
    return float(result.statistic)


def spearman(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Returns Spearman's correlation: Pearson's correlation of the ranks. Equal values get the mean
    of their ranks.
    """
    from scipy.stats import rankdata

    return pearson(rankdata(label_N), rankdata(predicted_N))


Sentences = Sequence[Sequence[str]]
"""The tag of each word of each sentence."""


def entity_f1(labels: Sentences, predicted: Sentences, names: Iterable[str] = ()) -> float:
    """Returns the F1 of the entities in sentences of tags. Entities agree if start, end and type
    are equal.

    The `names` of all possible labels and the tags decide the `scheme`. BIO and IOE are counted as
    in CoNLL-2003 and by default in seqeval, BIOES and BILOU as with `mode="strict"` in seqeval.
    Raises BadInput if the labels follow no scheme.
    """
    names = {*names, *itertools.chain(*labels, *predicted)}
    true, guessed = (
        {(number, *entity) for number, tags in enumerate(side) for entity in entities(tags, names)}
        for side in (labels, predicted)
    )
    return _ratio(2 * len(true & guessed), len(true) + len(guessed))


def entities(tags: Sequence[str], names: Iterable[str] = ()) -> list[tuple[int, int, str]]:
    """Returns the entities [start, end) of one sentence with their types; `names` as in
    `entity_f1`.

    An I or E after a B or I of the same type continues the entity. Every other mark except O starts
    an entity, as an I does in IOB1. With BIOES and BILOU an entity counts only if it is an S, or
    starts with B and ends with E. Raises BadInput if the labels follow no `scheme`.
    """
    found = scheme((*names, *tags))
    if found is None:
        raise BadInput(NO_SCHEME)
    by_tag, strict = found
    entities = []
    marks, kinds = zip(("O", ""), *map(by_tag.__getitem__, tags), strict=True)
    for end, (mark, kind) in enumerate(zip(marks, kinds, strict=True)):
        if mark in "IE" and marks[end - 1] in "BI" and kinds[end - 1] == kind:
            entities[-1] = (entities[-1][0], end, kind)
        elif mark != "O":
            entities.append((end - 1, end, kind))
    whole = ("BE", "SS")
    return [each for each in entities if not strict or marks[each[0] + 1] + marks[each[1]] in whole]


_BIOES = str.maketrans("LU", "ES")
NO_SCHEME = "F1 of entities needs tags of BIO, IOE, BIOES or BILOU, such as B-PER, PER_B, B and O"
"""Message about labels that follow no scheme."""


def scheme(labels: Iterable[str]) -> tuple[dict[str, tuple[str, str]], bool] | None:
    """Finds the tagging scheme of labels: the first of BIO (with IOB1), IOE, BIOES and BILOU that
    has the marks of all labels.

    The mark of a label is the letter before its first `-` or `_`. If these letters follow no
    scheme, it is the letter after the last `-` or `_`. A label without `-` and `_` is itself a
    mark.

    Returns:
      The mark of each label, as a letter of BIOES, and its type; and whether the scheme marks the
      ends of entities. None if the marks follow no scheme.
    """
    before = {label: label.replace("_", "-").partition("-") for label in labels}
    behind = {label: label.replace("_", "-").rpartition("-")[::-1] for label in labels}
    for tags in (before, behind):
        marks = {mark for mark, _, _ in tags.values()}
        if marks.issubset("BIOES") or marks.issubset("BILOU"):
            strict = not (marks.issubset("BIO") or marks.issubset("IOE"))
            return {
                label: (mark.translate(_BIOES), kind) for label, (mark, _, kind) in tags.items()
            }, strict
    return None


def normalized(answer: str) -> str:
    """Puts an answer in lower case, then removes ASCII punctuation, then articles, then extra white
    space.
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact(answer: str, predicted: str) -> float:
    """Returns 1 if two `normalized` answers are equal, else 0."""
    return float(normalized(answer) == normalized(predicted))


def words_f1(answer: str, predicted: str) -> float:
    """Returns the F1 of the words of two answers. If an answer has no words, returns 1 if both have
    none, else 0.
    """
    words, predicted_words = normalized(answer).split(), normalized(predicted).split()
    if words == predicted_words:
        return 1.0
    common = sum((collections.Counter(words) & collections.Counter(predicted_words)).values())
    return 2 * common / (len(words) + len(predicted_words))


def squad(
    answers: Sequence[Sequence[str]], predicted: Sequence[str], no_answer: Sequence[float]
) -> dict[str, float]:
    """Scores the predicted answers to the questions of a split, from 0 to 1; "" is no answer.

    Args:
      answers: the true answers of each question; the best match counts.
      no_answer: a number for each question on any scale, higher where no answer is more likely.

    Returns:
      `exact` and `f1`. If some questions have an answer and others none, also `has_answer_exact`,
      `no_answer_exact` and so on. `best_exact` and `best_f1` are the scores at the best threshold
      of `no_answer`, above which no answer is given; `best_exact_threshold` and
      `best_f1_threshold` are these thresholds.
    """
    # An answer of only articles and punctuation is no answer.
    nearest = [[answer for answer in true if normalized(answer)] or [""] for true in answers]
    by_metric = {
        name: np.array(
            [
                max(metric(answer, said) for answer in true)
                for true, said in zip(nearest, predicted, strict=True)
            ]
        )
        for name, metric in (("exact", exact), ("f1", words_f1))
    }
    has_N, said_N = np.array([*map(bool, answers)]), np.array([*map(bool, predicted)], float)
    groups = {"": has_N | ~has_N}
    if len({*has_N}) > 1:
        groups |= {"has_answer_": has_N, "no_answer_": ~has_N}
    scores = {}
    for prefix, in_N in groups.items():
        for name, score_N in by_metric.items():
            scores[prefix + name] = sum(score_N[in_N].tolist()) / int(in_N.sum())
    for name, score_N in by_metric.items():
        best = best_threshold(np.where(has_N, score_N, -said_N), (~has_N).sum(), no_answer)
        scores[f"best_{name}"], scores[f"best_{name}_threshold"] = best
    return scores


def best_threshold(
    gain_N: np.ndarray, silent: int, no_answer: Sequence[float]
) -> tuple[float, float]:
    """Returns the best mean score, and the threshold of `no_answer` that gives it. Above the
    threshold no answer is given.

    Answers are added one by one, lowest `no_answer` first. Each adds its gain to `silent`, the sum
    of the scores if no answer is given. Of equally good thresholds the lowest wins. If it is best
    to give no answer, the threshold is below every `no_answer`.
    """
    order_N = np.argsort(no_answer, kind="stable")
    sure_N, score_M = np.array(no_answer)[order_N], np.cumsum([silent, *gain_N[order_N]])
    # One threshold cannot separate equal values.
    score_M[1:-1][sure_N[1:] == sure_N[:-1]] = -np.inf
    given = int(score_M.argmax())
    return float(score_M[given]) / len(gain_N), float(sure_N[given - 1] if given else sure_N[0] - 1)


def _ratio(above: Any, below: Any) -> float:
    return float(above / below) if below else 0.0
