"""The statistics against values computed by hand or by scipy's own functions."""

import numpy as np
import pytest
from scipy import stats

from forerank.paper.statistics import class_difference, holm, more_often, paired_difference

FIRST, SECOND = [3.0, 4.5, 5.0, 6.0], [1.0, 2.0, 4.5, 3.0]


def test_interval_is_students() -> None:
    # Differences 2.0, 2.5, 0.5, 3.0: mean 2, standard error 0.5401; t with 3 degrees of freedom is 3.182.
    difference = paired_difference(FIRST, SECOND)
    low, high = difference.interval()
    assert difference.mean == pytest.approx(2.0)
    assert low == pytest.approx(2 - 3.182 * 0.5401, abs=1e-3)
    assert high == pytest.approx(2 + 3.182 * 0.5401, abs=1e-3)
    assert difference.effect == pytest.approx(2.0 / np.std([2.0, 2.5, 0.5, 3.0], ddof=1))


def test_p_values_are_those_of_scipy() -> None:
    difference = paired_difference(FIRST, SECOND)
    both = stats.ttest_rel(FIRST, SECOND).pvalue
    assert difference.p_above() == pytest.approx(both)  # one-sided, doubled
    assert difference.p_below() == 1.0
    shifted = np.asarray(FIRST) - np.asarray(SECOND)
    assert difference.p_above(1.5) == pytest.approx(
        2 * stats.ttest_1samp(shifted, 1.5, alternative="greater").pvalue
    )
    lower = stats.ttest_1samp(shifted, -4, alternative="greater").pvalue
    upper = stats.ttest_1samp(shifted, 4, alternative="less").pvalue
    assert difference.p_within(4) == pytest.approx(2 * max(lower, upper))


def test_a_p_value_below_five_percent_is_an_interval_without_zero() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        difference = paired_difference(generator.normal(0.8, 1, 8), np.zeros(8))
        low, high = difference.interval()
        assert (difference.p_above() < 0.05) == (low > 0)
        assert (difference.p_within(1.0) < 0.05) == (low > -1 and high < 1)


def test_one_seed_decides_nothing_and_no_spread_decides_everything() -> None:
    one = paired_difference([5.0], [1.0])
    assert (one.p_above(), one.p_below(), one.p_within(100)) == (1.0, 1.0, 1.0)
    constant = paired_difference([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert (constant.p_above(), constant.p_below(), constant.p_within(2)) == (0.0, 1.0, 0.0)


def test_classes_of_equal_size_are_a_paired_t_test() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.integers(0, 11, 30), generator.integers(0, 11, 30)
    difference = class_difference(first, second, np.full(30, 10))
    expected = stats.ttest_rel(first / 10, second / 10)
    assert difference.mean == pytest.approx(np.mean(first - second) / 10)
    assert difference.p_above() == pytest.approx(min(1.0, 2 * expected.pvalue / 2 if expected.statistic > 0
                                                     else 2 * (1 - expected.pvalue / 2)))  # fmt: skip


def test_the_error_over_classes_is_that_of_a_bootstrap() -> None:
    generator = np.random.default_rng(2)
    sizes = generator.integers(4, 30, 200)
    first, second = generator.binomial(sizes, 0.8), generator.binomial(sizes, 0.7)
    drawn = generator.integers(0, 200, (4000, 200))
    resampled = (first[drawn].sum(1) - second[drawn].sum(1)) / sizes[drawn].sum(1)
    assert class_difference(first, second, sizes).error == pytest.approx(resampled.std(), rel=0.06)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, never falling.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_fisher() -> None:
    expected = stats.fisher_exact([[3, 0], [0, 3]], alternative="greater").pvalue
    assert expected == pytest.approx(1 / 20)  # one of the 20 ways to choose 3 of 6
    assert more_often(3, 3, 0, 3) == pytest.approx(2 * expected)
    assert more_often(0, 3, 3, 3) == 1.0
