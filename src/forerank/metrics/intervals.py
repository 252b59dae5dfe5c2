"""Confidence intervals: Wilson's for shares, and resampling of whole classes."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share seen in `count` independent cases; a part of a failure counts whole.

    >>> [round(end, 3) for end in wilson_interval(1.0, 20)]
    [0.839, 1.0]
    """
    from scipy import stats

    ends = stats.binomtest(math.floor(share * count + 1e-9), count).proportion_ci(0.95, "wilson")
    return float(ends.low), float(ends.high)


def class_intervals(
    values: NDArray[Any],
    classes: NDArray[Any],
    weights: Floats | None = None,
    *,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Floats:
    """Percentile intervals (2, K) of the means of the columns of `values` (Q, K), drawing whole classes anew.

    Queries of one class succeed and fail together, so classes are drawn and not queries. Ours and not
    scipy.stats.bootstrap: the same draws serve all K columns as one product of matrices, in bounded memory.

    Args:
        values: (Q, K) figures of each query, each multiplied by the query's weight if there are weights.
        classes: (Q,) class of each query.
        weights: (Q,) what the sums of `values` are divided by; default one for each query.

    Example:
        >>> hits = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])  # recall@1 and recall@2
        >>> class_intervals(hits, np.array([0, 0, 1, 1]), draws=100).tolist()
        [[0.5, 1.0], [1.0, 1.0]]
    """
    _, code = np.unique(classes, return_inverse=True)
    number = int(code.max()) + 1
    columns = [*np.asarray(values, dtype=np.float64).T, np.ones(len(code)) if weights is None else weights]
    totals = np.stack([np.bincount(code, column, number) for column in columns], axis=1)  # (L, K + 1)
    generator = np.random.default_rng(seed)
    drawn = np.empty((draws, len(columns) - 1))
    step = max(1, (1 << 22) // number)  # at most about 4 million drawn classes at a time
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked = generator.integers(number, size=(rows, number), dtype=np.int32)
        picked += np.arange(rows, dtype=np.int32)[:, None] * number
        times = np.bincount(picked.ravel(), minlength=rows * number).reshape(rows, number)
        summed = times.astype(np.float64) @ totals
        with np.errstate(invalid="ignore"):  # a draw of nothing but weightless classes says nothing
            drawn[start : start + rows] = summed[:, :-1] / summed[:, -1:]
    ends: Floats = np.nanquantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return ends
