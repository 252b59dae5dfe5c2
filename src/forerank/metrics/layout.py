"""Vectors laid out in a plane, similar ones near each other: a map to look at, not a measurement."""

import warnings

import numpy as np
from numpy.typing import NDArray

from forerank.errors import require

NEIGHBOURS = 15  # that decide where a point lies; UMAP's own default
FEWEST = 5  # points; fewer have no neighbourhood to speak of


def lay_out(
    vectors: NDArray[np.float32],
    nearest: NDArray[np.int64],
    similarities: NDArray[np.float32],
    *,
    seed: int = 0,
) -> NDArray[np.float32]:
    """Places (N, 2) between 0 and 1 for unit vectors (N, D), by UMAP from their nearest neighbours.

    It begins from the first two principal components, so that far apart stays far apart where it can, and the
    same seed gives the same map. Distances between far points and sizes of clusters mean little.

    Args:
        vectors: (N, D), of length one.
        nearest: (N, K) positions of each vector's nearest ones, itself among them.
        similarities: (N, K) cosines of those.
        seed: of the layout.
    """
    start = _principal_components(vectors)
    if len(vectors) < FEWEST:
        return _between_0_and_1(start)
    umap = require("umap")
    # Each point is its own first neighbour, also where a copy of it was named before it.
    own = np.arange(len(vectors))
    nearest, distances = nearest.copy(), np.sqrt(np.maximum(0, 2 - 2 * similarities)).astype(np.float32)
    elsewhere = nearest == own[:, None]
    elsewhere[:, 0] = False
    rows, columns = np.nonzero(elsewhere)
    nearest[rows, columns] = nearest[rows, 0]
    distances[rows, columns] = distances[rows, 0]
    nearest[:, 0], distances[:, 0] = own, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it cannot place new points, and has one thread because of the seed
        made = umap.UMAP(
            n_neighbors=nearest.shape[1],
            precomputed_knn=(nearest.astype(np.int32), distances),
            force_approximation_algorithm=True,
            init=10 * start / max(float(np.abs(start).max()), 1e-9),
            random_state=seed,
            n_jobs=1,
        ).fit_transform(vectors)
    return _between_0_and_1(made)


def _principal_components(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first two principal components (N, 2); the axes come from at most 5,000 rows."""
    centred = vectors - vectors.mean(axis=0)
    sample = centred[:: max(1, len(centred) // 5000)]
    axes = np.linalg.svd(sample, full_matrices=False)[2][:2]
    parts = centred @ axes.T
    return np.pad(parts, ((0, 0), (0, 2 - parts.shape[1]))).astype(np.float32)


def _between_0_and_1(places: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same shape, its longer side from 0 to 1, the shorter one in the middle."""
    low, high = places.min(axis=0), places.max(axis=0)
    longest = max(float((high - low).max()), 1e-9)
    fitted: NDArray[np.float32] = ((places - (low + high) / 2) / longest + 0.5).astype(np.float32)
    return fitted
