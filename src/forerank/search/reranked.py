"""Searches refined as the index was told to (`forerank index --rerank`), with the formulas of the evaluation.

The engine only has to find neighbours and to give vectors, so this works with every engine; averages alone
must be made when the index is built. The similarity of a hit stays the cosine of query and image, which a
calibrated threshold is about; only the order changes.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from forerank.ranking.reranking import (
    Averaging,
    Expansion,
    Reciprocal,
    Reranking,
    reciprocal_distances,
    weighted_means,
)
from forerank.search.engine import Engine, Filter, RowNeighbours, Vectors
from forerank.search.exact import top_k

if TYPE_CHECKING:
    from forerank.search.index import Find

_ROWS = 256  # rows that are averaged together


def find_reranked(
    engine: Engine,
    find: "Find",
    queries: Vectors,
    k: int,
    where: Filter,
    chosen: Reranking | None,
    without: Collection[int] = (),
) -> RowNeighbours:
    """The first k rows of each query (Q, D) in the refined order.

    Args:
        engine: gives the vectors of rows.
        find: how neighbours are found.
        chosen: how they are refined; None: not at all.
        without: rows that are neither found nor used as evidence: the query's own.
    """

    def nearest(asked: Vectors, count: int) -> RowNeighbours:
        return _leave_out(find(asked, count + len(without), where), without, count)

    if chosen is None:
        return nearest(queries, k)
    if isinstance(chosen, Expansion):
        evidence = nearest(queries, chosen.neighbours)
        pairs = zip(queries, evidence.ids, strict=True)
        asked = np.array([_expanded(engine, query, ids[ids >= 0], chosen) for query, ids in pairs])
        return _with_cosines(engine, queries, nearest(asked.astype(np.float32), k))
    if isinstance(chosen, Averaging):
        return _with_cosines(engine, queries, nearest(queries, k))
    first = nearest(queries, max(k, chosen.depth))
    for query, ids, similarities in zip(queries, first.ids, first.similarities, strict=True):
        head = int((ids[: chosen.depth] >= 0).sum())
        if head:
            order = np.argsort(_distances(engine, query, ids[:head], chosen), kind="stable")
            ids[:head], similarities[:head] = ids[order], similarities[order]
    return RowNeighbours(first.ids[:, :k], first.similarities[:, :k])


def averages(vectors: Vectors, chosen: Averaging) -> Iterator[np.ndarray]:
    """The average of each vector (N, D) and its nearest others, in blocks (n, D)."""
    for start in range(0, len(vectors), _ROWS):
        own = np.ascontiguousarray(vectors[start : start + _ROWS])
        rows = np.arange(start, start + len(own))
        near, _ = top_k(own, vectors, chosen.neighbours + 1)
        # A row is not its own neighbour; where copies push it off its list, the last of the list goes.
        order = np.argsort(near == rows[:, None], axis=1, kind="stable")
        near = np.take_along_axis(near, order, axis=1)[:, : min(chosen.neighbours, len(vectors) - 1)]
        others = vectors[near].astype(np.float64)  # (n, m, D)
        similarity = np.einsum("nd,nmd->nm", own.astype(np.float64), others)
        yield weighted_means(own.astype(np.float64), others, similarity, chosen.alpha)


def _leave_out(nearest: RowNeighbours, without: Collection[int], k: int) -> RowNeighbours:
    """The first k rows that are not left out; -1 fills the places that stay empty, as in any answer."""
    gone = np.isin(nearest.ids, list(without)) | (nearest.ids < 0)
    order = np.argsort(gone, axis=1, kind="stable")[:, :k]
    empty = np.take_along_axis(gone, order, axis=1)
    ids = np.where(empty, -1, np.take_along_axis(nearest.ids, order, axis=1))
    similarities = np.where(empty, -np.inf, np.take_along_axis(nearest.similarities, order, axis=1))
    return RowNeighbours(ids, similarities.astype(np.float32))


def _expanded(engine: Engine, query: Vectors, ids: np.ndarray, chosen: Expansion) -> np.ndarray:
    own, near = query.astype(np.float64), engine.vectors(ids.tolist()).astype(np.float64)
    (mean,) = weighted_means(own[None], near[None], (near @ own)[None], chosen.alpha)
    return np.asarray(mean)


def _distances(engine: Engine, query: Vectors, ids: np.ndarray, chosen: Reciprocal) -> np.ndarray:
    return reciprocal_distances(np.vstack([query, engine.vectors(ids.tolist())]).astype(np.float64), chosen)


def _with_cosines(engine: Engine, queries: Vectors, nearest: RowNeighbours) -> RowNeighbours:
    """The same rows with the cosine of each image's own vector and the query."""
    similarities = np.full(nearest.ids.shape, -np.inf, np.float32)
    for query, ids, line in zip(queries, nearest.ids, similarities, strict=True):
        real = ids >= 0
        line[real] = engine.vectors(ids[real].tolist()) @ query
    return RowNeighbours(nearest.ids, similarities)
