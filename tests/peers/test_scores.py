"""Metrics against scikit-learn and SciPy."""

import numpy as np
import pytest
import scipy.stats
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


@pytest.mark.parametrize("seed", range(5))
def test_correlations(seed):
    """With ties, which share a rank."""
    rng = np.random.default_rng(seed)
    x_N = rng.integers(0, 6, 30).astype(float)
    y_N = x_N + rng.normal(size=30).round()
    assert metrics.pearson(x_N, y_N) == pytest.approx(scipy.stats.pearsonr(x_N, y_N).statistic)
    assert metrics.spearman(x_N, y_N) == pytest.approx(scipy.stats.spearmanr(x_N, y_N).statistic)
