"""Which queries a report shows: the worst ones, and for balance some of the best."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.metrics import PerQuery


def hardest(each: PerQuery, count: int) -> NDArray[np.int64]:
    """Places in `each` of the worst queries: the deepest first positive, then the lowest AP.

    >>> from forerank.metrics import rank_queries
    >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> each = rank_queries(vectors, ["a", "a", "b", "b"])
    >>> each.query[hardest(each, 1)].tolist()
    [1]
    """
    order: NDArray[np.int64] = np.lexsort((each.query, each.average_precision, -each.first_rank))[:count]
    return order


def easiest(each: PerQuery, labels: ArrayLike, count: int) -> NDArray[np.int64]:
    """Places in `each` of the best queries, one per class: the highest AP, then the most positives."""
    names = np.asarray(labels)[each.query]
    order = np.lexsort((each.query, -each.positives, -each.average_precision))
    _, first_of_class = np.unique(names[order], return_index=True)
    best: NDArray[np.int64] = order[np.sort(first_of_class)][:count]
    return best
