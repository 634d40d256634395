"""Metrics by hand cases; `tests/peers/test_scores.py` compares random ones with scikit-learn."""

import numpy as np
import pytest

from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import metrics

LABELS = np.array([1, 1, 1, 0, 0, 0, 0, 1])
# 3 true and 1 false positive, 3 true and 1 false negative.
PREDICTED = np.array([1, 0, 1, 0, 1, 0, 0, 1])


def test_classes_by_hand():
    """Precision and recall of class 1 are 3/4; the fault: mixed up with class 0 or with accuracy,
    equal here by 6/8.
    """
    assert metrics.accuracy(LABELS, PREDICTED) == 6 / 8
    assert metrics.f1(LABELS, PREDICTED) == pytest.approx(0.75)
    assert metrics.f1(LABELS[:3], PREDICTED[:3]) == pytest.approx(0.8)
    assert metrics.matthews(LABELS, PREDICTED) == pytest.approx((3 * 3 - 1 * 1) / 16)
    assert metrics.macro_f1([0, 1, 2], [0, 2, 2]) == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert metrics.macro_f1([0, 3], [0, 3]) == 1, "classes 1 and 2 are not there"

    # What is not defined is 0.
    assert metrics.matthews([0, 1, 0], [0, 0, 0]) == 0
    assert metrics.pearson([1.0, 2.0], [3.0, 3.0]) == 0
    assert metrics.f1([0, 0], [0, 0]) == 0


def test_several_labels_by_hand():
    """Class 0: 1 true positive and 1 false negative; class 1: 1 false positive; class 2 never
    occurs.
    """
    label_NC, predicted_NC = np.array([[1, 0, 0], [1, 0, 0]]), np.array([[1, 1, 0], [0, 0, 0]])
    assert metrics.multi_label_f1(label_NC, predicted_NC) == pytest.approx(
        {"f1_micro": 2 / 4, "f1_macro": 2 / 3 / 3}
    )
    assert metrics.multi_label_f1(0 * label_NC, 0 * predicted_NC) == {"f1_micro": 0, "f1_macro": 0}


def test_correlations_by_hand():
    assert metrics.pearson([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: ties share a rank.
    assert metrics.spearman([0, 5, 5, 9], [1, 10, 100, 1000]) == pytest.approx(
        4.5 / np.sqrt(4.5 * 5)
    )


def test_entities_are_whole_or_wrong():
    """The fault: counting tags, which would give credit for half an entity."""
    true = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]
    assert metrics.entities(true) == [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]
    assert metrics.entities(["O", "I-PER", "I-LOC"]) == [(1, 2, "PER"), (2, 3, "LOC")]
    assert metrics.entity_f1([true], [["B-PER", "O", "O", "B-LOC", "B-LOC"]]) == pytest.approx(
        2 * 2 / 6
    )


@pytest.mark.parametrize(
    ("true", "predicted", "f1"),
    [
        # The end of a predicted entity is not marked: that is none, though BIO would count it as
        # right.
        ("B-PER E-PER S-PER", "B-PER I-PER S-PER", 2 / 3),
        ("B-PER I-PER E-PER S-ORG", "B-PER I-LOC E-PER S-ORG", 2 / 3),
        ("B-PER E-PER", "I-PER E-PER", 0),
        ("B-PER L-PER U-ORG", "B-PER L-PER U-LOC", 1 / 2),
        # Types before the mark, and other signs between them: an entity of several words is one.
        ("PER-B PER-I O LOC-B", "PER-B O O LOC-B", 1 / 2),
        ("B_PER I_PER O B_LOC", "B_PER I_PER O B_ORG", 1 / 2),
        ("B_A-B I_A-B", "B_A-B I_A-C", 0),
        # No type; an end that is marked without a start.
        ("B I O S", "B E O S", 2 / 3),
        ("I-A E-A E-A", "I-A E-A O", 2 / 3),
    ],
)
def test_entities_are_counted_by_the_scheme_of_the_labels(true, predicted, f1):
    assert metrics.entity_f1([true.split()], [predicted.split()]) == pytest.approx(f1)


@pytest.mark.parametrize("odd", ["Q-PER", "", "BI-PER", "L-PER"])
def test_labels_of_no_scheme_have_no_f1(odd):
    """Mixed schemes are none either."""
    with pytest.raises(BadInput, match="F1 of entities needs tags of BIO, IOE, BIOES or BILOU"):
        metrics.entity_f1([["B-PER", "E-PER", "O"]], [["B-PER", "E-PER", odd]])


@pytest.mark.parametrize(
    ("answer", "predicted", "exact", "f1"),
    [
        ("The Eiffel Tower!", "eiffel  tower", 1, 1),  # articles, punctuation, white space, case
        ("the", "an", 1, 1),  # nothing is left of either
        ("Denver Broncos", "Broncos", 0, 2 / 3),
        # A word counts as often as both have it; the article a is gone.
        ("a b b", "b b c", 0, 2 * 2 / 5),
        ("Theatre", "atre", 0, 0),  # an article is a word
        ("A.B.", "b", 0, 0),  # no article: punctuation goes first, without leaving a space
        ("", "something", 0, 0),
    ],
)
def test_answers_are_compared_by_the_official_rules(answer, predicted, exact, f1):
    assert metrics.exact(answer, predicted) == exact
    assert metrics.words_f1(answer, predicted) == pytest.approx(f1)


def test_the_nearest_of_several_answers_counts():
    scores = metrics.squad(
        [["Santa Clara", "Santa Clara, California", "the"]], ["santa clara california"], [0.0]
    )
    assert (scores["exact"], scores["f1"]) == (1, 1) and "has_answer_exact" not in scores
    # A true answer of nothing but articles is none, unless there is no other: it is not near to an
    # empty one.
    assert metrics.squad([["Santa Clara", "The."]], ["a"], [0.0])["f1"] == 0


def test_the_best_threshold_gives_the_answers_that_pay():
    """Answering a, b and c wins 1 + 1 - 1; a and b is best; the fault: a threshold that leaves out
    its own question.

    The answer to f is empty, which is right, and costs nothing. To "The." an empty answer is right
    as well.
    """
    answers = [["one"], ["two"], [], ["three"], [], []]
    predicted, no_answer = (
        ["one", "two", "wrong", "no", "wrong", ""],
        [-3.0, -1.0, 0.0, 2.0, 5.0, -2.0],
    )
    scores = metrics.squad(answers, predicted, no_answer)
    assert scores["exact"] == 3 / 6
    assert scores["best_exact"] == 5 / 6 and scores["best_exact_threshold"] == -1
    scores = metrics.squad([["four"], [], ["The."]], ["four", "three", ""], [0.0, 0.0, 0.0])
    assert scores["exact"] == pytest.approx(2 / 3)
    assert scores["has_answer_exact"] == 1 and scores["no_answer_exact"] == 0

    # One threshold does not separate equal values.
    scores = metrics.squad([["one"], []], ["one", "wrong"], [0.0, 0.0])
    assert scores["best_exact"] == 1 / 2 and scores["best_exact_threshold"] < 0
