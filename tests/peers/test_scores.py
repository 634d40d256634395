"""Metrics against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from xlnet_jax.finetune import metrics


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_classes(classes, seed):
    rng = np.random.default_rng(seed)
    label_N = rng.integers(0, classes, 40)
    found_N = np.where(rng.random(40) < 0.5, label_N, rng.integers(0, classes, 40))
    assert 0 < metrics.accuracy(label_N, found_N) < 1
    assert metrics.accuracy(label_N, found_N) == pytest.approx(sklearn.metrics.accuracy_score(label_N, found_N))
    assert metrics.matthews(label_N, found_N) == pytest.approx(sklearn.metrics.matthews_corrcoef(label_N, found_N))
    macro = sklearn.metrics.f1_score(label_N, found_N, average="macro")
    assert metrics.macro_f1(label_N, found_N) == pytest.approx(macro)
    if classes == 2:
        assert metrics.f1(label_N, found_N) == pytest.approx(sklearn.metrics.f1_score(label_N, found_N))


@pytest.mark.filterwarnings("ignore:F-score is ill-defined")
@pytest.mark.parametrize("seed", range(5))
def test_several_labels(seed):
    """Of a text of none, one or more classes; the last class never occurs."""
    rng = np.random.default_rng(seed)
    label_NC, found_NC = ((rng.random((30, 6)) < [0.1, 0.3, 0.5, 0.2, 0.9, 0]).astype(int) for _ in range(2))
    found = metrics.multi_label_f1(label_NC, found_NC)
    assert found["f1_micro"] != pytest.approx(found["f1_macro"])
    for name in ("micro", "macro"):
        assert found[f"f1_{name}"] == pytest.approx(sklearn.metrics.f1_score(label_NC, found_NC, average=name))
