"""Metrics of predictions, on the host, in float64.

Each takes the labels and the predictions of a whole split, because most of them are no means over examples. They
agree with scikit-learn and SciPy (`tests/peers/test_scores.py`). `squad` scores answers to questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats


def accuracy(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """The share of predictions that equal their label."""
    return float(np.mean(np.asarray(label_N) == np.asarray(predicted_N)))


def confusion(label_N: np.ndarray, predicted_N: np.ndarray) -> np.ndarray:
    """Counts by label and prediction: int64 [C, C]."""
    label_N, predicted_N = np.asarray(label_N), np.asarray(predicted_N)
    C = int(max(label_N.max(), predicted_N.max())) + 1
    return np.bincount(label_N * C + predicted_N, minlength=C * C).reshape(C, C)


def f1(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """F1 of class 1, as in MRPC and QQP; 0 if the class is neither a label nor predicted."""
    is_one, predicted = np.asarray(label_N) == 1, np.asarray(predicted_N) == 1
    return _ratio(2 * (is_one & predicted).sum(), is_one.sum() + predicted.sum())


def macro_f1(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """The mean of the F1 of all classes that are a label or predicted."""
    table_CC = confusion(label_N, predicted_N)
    size_C = table_CC.sum(axis=0) + table_CC.sum(axis=1)
    return float(np.mean(2 * np.diag(table_CC)[size_C > 0] / size_C[size_C > 0]))


def matthews(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Matthews' correlation, for any number of classes (Gorodkin 2004, R_K); 0 where it is not defined."""
    table_CC = confusion(label_N, predicted_N).astype(np.float64)
    label_C, predicted_C, count = table_CC.sum(axis=1), table_CC.sum(axis=0), table_CC.sum()
    above = np.trace(table_CC) * count - label_C @ predicted_C
    below = (count**2 - label_C @ label_C) * (count**2 - predicted_C @ predicted_C)
    return _ratio(above, np.sqrt(below))


def pearson(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Pearson's correlation; 0 if one side is constant."""
    if not np.ptp(label_N) or not np.ptp(predicted_N):
        return 0.0
    return float(scipy.stats.pearsonr(label_N, predicted_N).statistic)  # type: ignore[attr-defined]


def spearman(label_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    return pearson(scipy.stats.rankdata(label_N), scipy.stats.rankdata(predicted_N))


def entity_f1(labels: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """F1 of the entities in sentences of BIO tags, as CoNLL-2003 counts them: start, end and type must be equal."""
    true_entities, predicted_entities = (
        {(number, *entity) for number, tags in enumerate(side) for entity in entities(tags)}
        for side in (labels, predicted)
    )
    return _ratio(2 * len(true_entities & predicted_entities), len(true_entities) + len(predicted_entities))


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities [start, end) of one sentence with their types.

    B- starts one; so does an I- that continues none, as in IOB1. A tag without B- or I-, such as O, ends one.
    """
    spans: list[tuple[int, int, str]] = []
    for word, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark == "I" and spans and spans[-1][1:] == (word, kind):
            spans[-1] = (spans[-1][0], word + 1, kind)
        elif mark in ("B", "I"):
            spans.append((word, word + 1, kind))
    return spans


def _ratio(above: Any, below: Any) -> float:
    return float(above / below) if below else 0.0
