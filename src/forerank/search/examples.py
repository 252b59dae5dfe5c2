"""Several examples become one query: more like these, less like those."""

import numpy as np

from forerank.errors import InputError
from forerank.search.engine import Vectors, unit_vectors

# How much the mean of the negatives counts against the mean of the positives.
NEGATIVE_SHARE = 0.5


def combine(positives: Vectors, negatives: Vectors | None = None, share: float = NEGATIVE_SHARE) -> Vectors:
    """The query (D,) of length one that stands for examples: mean of positives - share x mean of negatives.

    This is Rocchio's relevance feedback on unit vectors. One positive and no negative give the positive.

    Args:
        positives: (P, D), at least one.
        negatives: (N, D); none by default.
        share: weight of the negatives, 0.5 by default.

    >>> [round(float(x), 3) for x in combine(np.eye(3)[:1], np.eye(3)[1:2])]
    [0.894, -0.447, 0.0]
    """
    if not len(positives):
        raise InputError("a search needs at least one example to be like; it has only examples to be unlike.")
    query = unit_vectors(positives).mean(axis=0)
    if negatives is not None and len(negatives):
        query = query - share * unit_vectors(negatives).mean(axis=0)
    if not np.linalg.norm(query) > 1e-6:
        raise InputError("these examples cancel each other out: take one of them away.")
    combined: Vectors = unit_vectors(query)[0]
    return combined
