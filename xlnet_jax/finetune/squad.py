"""Scores of answers to questions by the official rules of SQuAD 1.1 and 2.0.

Answers are compared without case, punctuation, English articles and extra white space; of several true answers, the
nearest counts. A question without an answer has the true answer "". All scores are shares, between 0 and 1.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces: in this order."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact(answer: str, predicted: str) -> float:
    """1 if both are equal after `normalized`, else 0."""
    return float(normalized(answer) == normalized(predicted))


def f1(answer: str, predicted: str) -> float:
    """F1 of the words that both have. If one has no words, 1 if neither has any, else 0."""
    words, predicted_words = normalized(answer).split(), normalized(predicted).split()
    if not words or not predicted_words:
        return float(words == predicted_words)
    common = sum((collections.Counter(words) & collections.Counter(predicted_words)).values())
    return 2 * common / (len(words) + len(predicted_words))


def score(
    answers: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Scores a split.

    Args:
      answers: the true answers to each question, none if it has no answer.
      predicted: the best answer to each question that is not empty, or "" for no answer.
      no_answer: how much speaks against any answer, on any scale: adds `best_exact` and `best_f1`, the scores if no
        answer is given above the best threshold for each, and these thresholds.

    Returns:
      `exact` and `f1`; and for questions with and without an answer, if there are both, `has_answer_exact` and so on.
    """
    by_metric: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question, true in answers.items():
        # An answer of nothing but articles and punctuation is none.
        true = [answer for answer in true if normalized(answer)] or [""]
        for name, metric in (("exact", exact), ("f1", f1)):
            by_metric[name][question] = max(metric(answer, predicted[question]) for answer in true)
    groups = {"": list(answers)}
    has_answer = {question: bool(true) for question, true in answers.items()}
    if len(set(has_answer.values())) > 1:
        groups["has_answer_"] = [question for question in answers if has_answer[question]]
        groups["no_answer_"] = [question for question in answers if not has_answer[question]]
    scores = {
        prefix + name: sum(of_question[question] for question in group) / len(group)
        for prefix, group in groups.items()
        for name, of_question in by_metric.items()
    }
    if no_answer is not None:
        for name, of_question in by_metric.items():
            best = best_threshold(of_question, has_answer, predicted, no_answer)
            scores[f"best_{name}"], scores[f"best_{name}_threshold"] = best
    return scores


def best_threshold(
    of_question: Mapping[str, float],
    has_answer: Mapping[str, bool],
    predicted: Mapping[str, str],
    no_answer: Mapping[str, float],
) -> tuple[float, float]:
    """The best score and its threshold: questions with `no_answer` above the threshold get no answer.

    Starts without any answer and gives them one by one, the surest first. The lowest of equal thresholds wins. If it
    is best to answer nothing, the threshold is below every `no_answer`.
    """
    order = sorted(of_question, key=lambda question: no_answer[question])
    current = best = float(sum(not has_answer[question] for question in order))
    threshold = no_answer[order[0]] - 1
    for rank, question in enumerate(order):
        if has_answer[question]:
            current += of_question[question]
        elif predicted[question]:
            current -= 1
        # One threshold cannot separate equal values.
        last = rank + 1 == len(order) or no_answer[order[rank + 1]] > no_answer[question]
        if last and current > best:
            best, threshold = current, no_answer[question]
    return best / len(order), threshold
