"""Means with intervals, and the rule by which a claim is judged."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerank.metrics.intervals import student_interval


@dataclass(frozen=True)
class Difference:
    """A mean difference over paired seeds with its 95% interval (Student's t).

    With one seed there is no interval: `low` and `high` are infinite and nothing can be decided.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def sign(self) -> int:
        """+1 or -1 when the interval leaves zero out, else 0: undecided."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.mean:+.2f} (one seed)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] over {self.seeds} seeds"


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Mean of first - second, the i-th of one with the i-th of the other (same seed), with its interval.

    >>> print(paired_difference([3.0, 4.0, 5.0], [1.0, 2.0, 2.0]))
    +2.33 [+0.90, +3.77] over 3 seeds
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = len(differences)
    mean = float(differences.mean())
    if count < 2:
        return Difference(mean, -np.inf, np.inf, count)
    return Difference(mean, *student_interval(differences), count)
