"""Exact nearest neighbours over vectors that may lie in a memory-mapped file."""

import importlib.util

import numpy as np

from forerank.search.engine import Ids, Vectors

# Similarities held at once: 64 MB.
BLOCK = 16 * 2**20
# Filtered vectors copied at once: 128 MB of 512 dimensions.
PART = 65_536


def top_k(queries: Vectors, vectors: Vectors, k: int) -> tuple[Ids, Vectors]:
    """Positions (Q, k) and inner products (Q, k) of the k largest products, largest first.

    By faiss; where it is not installed by numpy, which finds the same at about half the speed.

    Args:
        queries: (Q, D) float32.
        vectors: (N, D) float32, C-contiguous; a memory map is read in place.
        k: how many; fewer are given where N is smaller.

    >>> gallery = np.eye(3, dtype=np.float32)
    >>> top_k(gallery[1:2], gallery, 2)[0]
    array([[1, 0]])
    """
    k = min(k, len(vectors))
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
    if importlib.util.find_spec("faiss"):
        import faiss

        similarities, positions = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        return positions, similarities
    return _blockwise(queries, vectors, k)


def top_k_among(queries: Vectors, vectors: Vectors, accepted: Ids, k: int) -> tuple[Ids, Vectors]:
    """As `top_k`, among the vectors at the positions `accepted` (A,) only; they are copied in parts.

    >>> gallery = np.eye(3, dtype=np.float32)
    >>> top_k_among(gallery[1:2], gallery, np.array([0, 2]), 1)[0]
    array([[0]])
    """
    best = np.empty((len(queries), 0), np.float32)
    where = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(accepted), PART):
        part = accepted[start : start + PART]
        positions, products = top_k(queries, np.ascontiguousarray(vectors[part]), k)
        best, where = _merge(best, where, products, part[positions], k)
    return where, best


def _blockwise(queries: Vectors, vectors: Vectors, k: int) -> tuple[Ids, Vectors]:
    """One product per block of the gallery, keeping the best k so far."""
    best = np.empty((len(queries), 0), np.float32)
    where = np.empty((len(queries), 0), np.int64)
    step = max(1, BLOCK // len(queries))
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step]
        # (B, Q) for few queries: the large operand is read once, in its own order.
        products = (block @ queries.T).T if len(queries) > 1 else (block @ queries[0])[None]
        if products.shape[1] > k:
            kept = np.argpartition(products, -k, axis=1)[:, -k:]
            products = np.take_along_axis(products, kept, axis=1)
        else:
            kept = np.broadcast_to(np.arange(products.shape[1]), products.shape)
        best, where = _merge(best, where, products, kept + start, k)
    return where, best


def _merge(best: Vectors, where: Ids, products: Vectors, positions: Ids, k: int) -> tuple[Vectors, Ids]:
    """The k largest of two lists of products (Q, n) and (Q, m), with their positions."""
    best = np.concatenate([best, products], axis=1)
    where = np.concatenate([where, positions], axis=1)
    order = np.lexsort((where, -best), axis=1)[:, :k]
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(where, order, axis=1)
