"""The statistics behind the claims, as pure functions: differences with their errors, p-values, Holm's rule.

Two sources of error are kept apart. Over *seeds*: the same experiment with other first weights, batches and
drawn data. Over *test classes*: the same models on other classes of the same kind. A difference is trusted
only if both say so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

LEVEL = 0.05  # of every verdict, two-sided, after Holm's correction
# Differences below these count as no difference. The paper calls half a point of R@1 an improvement.
MARGINS = {
    "recall@1": 0.5, "map@r": 0.5, "nmi": 0.5, "centres_kept": 0.5,
    "dists@intra": 0.01, "dists@inter": 0.01, "correlation": 0.05,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """An estimated difference with its standard error (Student's t).

    With one observation there is no error: nothing can be decided, and every p-value is 1.

    Attributes:
        mean: the estimate.
        error: its standard error; infinite if it cannot be estimated.
        count: how many observations (seeds or classes) it rests on.
        effect: the mean in units of the standard deviation of one observation (Cohen's d of paired values).
    """

    mean: float
    error: float
    count: int
    effect: float = math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Lower and upper end of the interval."""
        if not math.isfinite(self.error):
            return -math.inf, math.inf
        half = float(stats.t.ppf((1 + confidence) / 2, self.count - 1)) * self.error
        return self.mean - half, self.mean + half

    def p_above(self, bound: float = 0.0) -> float:
        """p-value that the true difference lies above `bound`, doubled, so that 0.05 fits 95% intervals.

        >>> round(paired_difference([3.0, 4.0, 5.0], [1.0, 2.0, 2.0]).p_above(), 4)
        0.0198
        """
        if bound == -math.inf:
            return 0.0
        if bound == math.inf or not math.isfinite(self.error):
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > bound else 1.0
        return min(1.0, 2 * float(stats.t.sf((self.mean - bound) / self.error, self.count - 1)))

    def p_below(self, bound: float = 0.0) -> float:
        """p-value that the true difference lies below `bound`, doubled as in `p_above`."""
        return Difference(-self.mean, self.error, self.count).p_above(-bound)

    def p_within(self, margin: float) -> float:
        """p-value of "no difference": both one-sided tests that it lies between -margin and margin.

        >>> same = paired_difference([1.0, 1.1, 0.9, 1.0], [1.0, 1.0, 1.0, 1.0])
        >>> same.p_within(0.5) < 0.01, same.p_within(0.01) < 0.01
        (True, False)
        """
        return max(self.p_above(-margin), self.p_below(margin))

    def __str__(self) -> str:
        if self.count < 2:
            return f"{self.mean:+.3f} (one seed)"
        low, high = self.interval()
        return f"{self.mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def paired_difference(first: ArrayLike, second: ArrayLike) -> Difference:
    """Mean of first - second, the i-th of one with the i-th of the other (the same seed).

    >>> print(paired_difference([3.0, 4.0, 5.0], [1.0, 2.0, 2.0]))
    +2.333 [+0.899, +3.768]
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Difference(mean, math.inf, count)
    deviation = float(differences.std(ddof=1))
    effect = mean / deviation if deviation > 0 else math.copysign(math.inf, mean) if mean else 0.0
    return Difference(mean, deviation / math.sqrt(count), count, effect)


def class_difference(first: ArrayLike, second: ArrayLike, queries: ArrayLike) -> Difference:
    """Difference of two recalls with the error that comes from which classes were tested.

    A recall is a ratio of sums over classes; its error follows from how far each class departs from it
    (linearised ratio, classes as clusters).

    Args:
        first: (C,) right answers of the first method in each class, averaged over its seeds.
        second: (C,) the same of the second method.
        queries: (C,) queries of each class.

    >>> print(class_difference([8, 9, 7, 9], [5, 6, 5, 6], [10, 10, 10, 10]))
    +0.275 [+0.195, +0.355]
    """
    gained = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    sizes = np.asarray(queries, dtype=np.float64)
    count, mean = len(gained), float(gained.sum() / sizes.sum())
    if count < 2:
        return Difference(mean, math.inf, count)
    residual = gained - mean * sizes
    error = math.sqrt(count / (count - 1) * float((residual**2).sum())) / float(sizes.sum())
    return Difference(mean, error, count)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for being many, by Holm's step-down rule, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def more_often(first: int, first_of: int, second: int, second_of: int) -> float:
    """p-value (Fisher's exact test, one-sided, doubled) that an event is more frequent in the first group.

    >>> round(more_often(6, 6, 0, 6), 5)
    0.00216
    """
    counts = [[first, first_of - first], [second, second_of - second]]
    return min(1.0, 2 * float(stats.fisher_exact(counts, alternative="greater").pvalue))


def show_p(p: float) -> str:
    """A p-value with two digits that matter, however small it is.

    >>> show_p(0.0312), show_p(3.2e-7), show_p(0.0)
    ('= 0.031', '= 3.2e-07', '< 1e-300')
    """
    return "< 1e-300" if p < 1e-300 else f"= {p:.2g}"
