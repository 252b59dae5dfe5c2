"""Intervals against the formulas written out, and against resampling one draw at a time."""

import numpy as np
import pytest
from scipy import stats

from forerank.metrics.intervals import class_intervals, wilson_interval


@pytest.mark.parametrize(("wrong", "count"), [(0, 20), (1, 30), (15, 30)])
def test_wilson_interval_by_its_formula(wrong, count):
    share, z = 1 - wrong / count, 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    assert wilson_interval(share, count) == pytest.approx((middle - reach, middle + reach), abs=1e-6)


def test_a_part_of_a_failure_counts_whole():
    assert wilson_interval(0.99, 30) == wilson_interval(29 / 30, 30)


def test_class_intervals_are_those_of_scipys_bootstrap_over_classes():
    generator = np.random.default_rng(0)
    classes = np.repeat(np.arange(40), generator.integers(1, 9, size=40))
    skill = generator.uniform(size=40)[classes]
    hits = (generator.uniform(size=len(classes)) < skill).astype(float)
    weights = generator.uniform(0.5, 2, size=len(classes))
    sums, sizes = (np.bincount(classes, values) for values in (hits * weights, weights))
    theirs = stats.bootstrap(
        (sums, sizes),
        lambda s, n, axis: s.sum(axis) / n.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=20000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    ours = class_intervals((hits * weights)[:, None], classes, weights, draws=20000)
    np.testing.assert_allclose(ours[:, 0], theirs, atol=0.01)


def test_columns_share_their_draws_and_draws_without_weight_are_left_out():
    generator = np.random.default_rng(2)
    values = generator.uniform(size=(30, 2))
    classes = np.arange(30) // 3
    both = class_intervals(values, classes, seed=4)
    for column in range(2):
        assert (
            both[:, column].tolist() == class_intervals(values[:, [column]], classes, seed=4)[:, 0].tolist()
        )
    weights = np.where(classes == 0, 1.0, 0.0)  # most draws of ten classes hold the first, some do not
    ends = class_intervals(weights[:, None], classes, weights)
    assert ends.tolist() == [[1.0], [1.0]]
