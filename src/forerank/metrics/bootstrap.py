"""How sure is a recall? Resampling whole classes, because queries of one class rise and fall together."""

import numpy as np
from numpy.typing import NDArray


def recall_intervals(
    first_rank: NDArray[np.int64],
    classes: NDArray[np.int64],
    ks: tuple[int, ...],
    *,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile interval of each recall@k over `draws` resamplings of the classes.

    Args:
        first_rank: (Q,) rank of each query's first positive, from 1.
        classes: (Q,) label code of each query.

    Example:
        >>> recall_intervals(np.array([1, 1, 2, 1]), np.array([0, 0, 1, 1]), (1, 2), draws=100)
        {'recall@1': (0.5, 1.0), 'recall@2': (1.0, 1.0)}
    """
    _, code = np.unique(classes, return_inverse=True)
    number = int(code.max()) + 1
    size = np.bincount(code, minlength=number)
    hits = np.stack([np.bincount(code[first_rank <= k], minlength=number) for k in ks], axis=1)  # (L, K)
    totals = np.column_stack([hits, size]).astype(np.float64)  # (L, K + 1)
    generator = np.random.default_rng(seed)
    drawn = np.empty((draws, len(ks)))
    step = max(1, (1 << 22) // number)  # at most about 4 million drawn classes at a time
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked = generator.integers(number, size=(rows, number), dtype=np.int32)
        picked += np.arange(rows, dtype=np.int32)[:, None] * number
        weight = np.bincount(picked.ravel(), minlength=rows * number).reshape(rows, number)
        summed = weight.astype(np.float64) @ totals
        drawn[start : start + rows] = summed[:, :-1] / summed[:, -1:]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return {f"recall@{k}": (float(low[i]), float(high[i])) for i, k in enumerate(ks)}
