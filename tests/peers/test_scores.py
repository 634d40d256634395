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
