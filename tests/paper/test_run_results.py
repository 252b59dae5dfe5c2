"""What is measured of an ended run beyond its metrics."""

import numpy as np
import pytest

from forerank.paper.run_results import query_correlation
from forerank.report.penalties import derivative


def numerical_gradient(similarity: np.ndarray, positive: np.ndarray, temperature: float) -> np.ndarray:
    """d loss / d similarity of each negative under PNP-Ds, by central differences."""

    def loss(s: np.ndarray) -> float:
        gaps = (s[~positive][:, None] - s[positive][None, :]) / temperature
        return float(np.log1p((1 / (1 + np.exp(-gaps))).sum(0)).sum())

    slopes = []
    for j in np.flatnonzero(~positive):
        step = np.zeros_like(similarity)
        step[j] = 1e-6
        slopes.append((loss(similarity + step) - loss(similarity - step)) / 2e-6)
    return np.array(slopes)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_correlation_is_that_of_the_true_gradient(temperature: float) -> None:
    from scipy.stats import spearmanr

    generator = np.random.default_rng(0)
    similarity, positive = generator.uniform(0, 1, 12), np.arange(12) < 4
    gradient = numerical_gradient(similarity, positive, temperature)
    before = (similarity[~positive][:, None] > similarity[positive][None, :]).sum(1)
    expected = spearmanr(before[before > 0], gradient[before > 0]).statistic
    assert query_correlation(similarity, positive, derivative("Ds"), temperature) == pytest.approx(expected)


def test_nothing_to_order_is_no_correlation() -> None:
    positive = np.array([True, True, False, False, False])
    perfect = np.array([0.9, 0.8, 0.3, 0.2, 0.1])
    assert query_correlation(perfect, positive, derivative("O"), 0.01) is None
