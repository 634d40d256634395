"""Metrics against scikit-learn and seqeval."""

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics

from xlnet_jax.finetune import metrics


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_classes(classes, seed):
    rng = np.random.default_rng(seed)
    label_N = rng.integers(0, classes, 40)
    found_N = np.where(rng.random(40) < 0.5, label_N, rng.integers(0, classes, 40))
    assert 0 < metrics.accuracy(label_N, found_N) < 1
    assert metrics.accuracy(label_N, found_N) == pytest.approx(
        sklearn.metrics.accuracy_score(label_N, found_N)
    )
    assert metrics.matthews(label_N, found_N) == pytest.approx(
        sklearn.metrics.matthews_corrcoef(label_N, found_N)
    )
    macro = sklearn.metrics.f1_score(label_N, found_N, average="macro")
    assert metrics.macro_f1(label_N, found_N) == pytest.approx(macro)
    if classes == 2:
        assert metrics.f1(label_N, found_N) == pytest.approx(
            sklearn.metrics.f1_score(label_N, found_N)
        )


@pytest.mark.filterwarnings("ignore:F-score is ill-defined")
@pytest.mark.parametrize("seed", range(5))
def test_several_labels(seed):
    """Of a text of none, one or more classes; the last class never occurs."""
    rng = np.random.default_rng(seed)
    label_NC, found_NC = (
        (rng.random((30, 6)) < [0.1, 0.3, 0.5, 0.2, 0.9, 0]).astype(int) for _ in range(2)
    )
    found = metrics.multi_label_f1(label_NC, found_NC)
    assert found["f1_micro"] != pytest.approx(found["f1_macro"])
    for name in ("micro", "macro"):
        assert found[f"f1_{name}"] == pytest.approx(
            sklearn.metrics.f1_score(label_NC, found_NC, average=name)
        )


@pytest.mark.parametrize(
    ("letters", "scheme"),
    [
        ("BI", None),
        ("I", None),
        ("IE", None),
        ("BIES", seqeval.scheme.IOBES),
        ("BILU", seqeval.scheme.BILOU),
    ],
)
@pytest.mark.parametrize("form", ["{0}-{1}", "{1}-{0}", "{0}"])
def test_entities(letters, scheme, form):
    """Of any marks in any order; every label is there, so that its scheme is read from them
    alone.
    """
    rng = np.random.default_rng(0)
    names = [
        "O",
        *dict.fromkeys(form.format(mark, kind) for mark in letters for kind in ("PER", "LOC")),
    ]
    options = {"mode": "strict", "scheme": scheme} if scheme else {}
    options |= {"suffix": form.startswith("{1}"), "zero_division": 0}
    found = []
    for _ in range(60):
        true = [names, *(rng.choice(names, size).tolist() for size in rng.integers(1, 12, 12))]
        predicted = [
            [rng.choice(names) if rng.random() < 0.15 else tag for tag in tags] for tags in true
        ]
        predicted[0] = names
        found.append(metrics.entity_f1(true, predicted))
        assert found[-1] == pytest.approx(seqeval.metrics.f1_score(true, predicted, **options))
    assert 0.2 < np.mean(found) < 0.9 and len(set(found)) > 20
