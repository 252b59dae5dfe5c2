"""Who stands where: the nearest images of a query, how deep its positives lie, who stands before them.

Everything here is one chunked product of unit vectors in numpy. An image is never its own neighbour: it is
excluded by identity (its row number), not by being first, so duplicates of the query stay in the list. With
`ignore` (camera or sequence) images of the query's label and camera are left out too, as `evaluate` does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_CHUNK_SIMILARITIES = 1 << 24  # 64 MiB of float32 at a time, whatever the size of the gallery


@dataclass(frozen=True)
class Neighbours:
    """The k nearest gallery images of each query, nearest first.

    Attributes:
        query: (Q,) row of each query in the embeddings.
        index: (Q, k) row of each neighbour.
        similarity: (Q, k) cosine similarity.
        is_positive: (Q, k) whether the neighbour carries the query's label.
    """

    query: Ints
    index: Ints
    similarity: Floats
    is_positive: NDArray[np.bool_]


@dataclass(frozen=True)
class Survey:
    """How each query fares against the whole gallery.

    Attributes:
        query: (Q,) row of each query that has at least one positive.
        positives: (Q,) number of its positives in the gallery.
        first_rank: (Q,) negatives standing before its first positive; 0 means Recall@1 counts it.
        first_positive: (Q,) row of that first positive.
        average_precision: (Q,) its AP. Ties count against the query (a negative as similar stands before).
        edges: (B + 1,) edges of the similarity histograms.
        positive_counts, negative_counts: (B,) pairs of the surveyed queries in each bin.
    """

    query: Ints
    positives: Ints
    first_rank: Ints
    first_positive: Ints
    average_precision: NDArray[np.float64]
    edges: NDArray[np.float64]
    positive_counts: Ints
    negative_counts: Ints


@dataclass(frozen=True)
class ConfusedPair:
    """Queries of class `label` before whose positives images of class `other` stand.

    Attributes:
        label, other: codes or names, as the labels were given.
        count: how many times an image of `other` stood before a positive (see `confused_pairs`).
        queries: how many queries of `label` this happened to.
        query, intruder: rows of the clearest example: the pair of images most wrongly close.
        similarity: cosine similarity of the example.
    """

    label: Any
    other: Any
    count: int
    queries: int
    query: int
    intruder: int
    similarity: float


def neighbours(
    embeddings: ArrayLike,
    labels: ArrayLike,
    query_ids: ArrayLike | None = None,
    k: int = 10,
    *,
    gallery_ids: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
) -> Neighbours:
    """The `k` nearest gallery images of each query (fewer where some query has no more to find).

    Args:
        embeddings: (N, D) vectors; they need not be normalised.
        labels: (N,) labels, numbers or strings.
        query_ids: (Q,) rows that ask; all rows by default.
        k: neighbours to return.
        gallery_ids: (G,) rows that may be found; all rows by default.
        ignore: (N,) camera or sequence; images of the query's label and camera are not found.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> found = neighbours(vectors, ["a", "a", "b", "a"], query_ids=[0], k=2)
        >>> found.index.tolist(), found.is_positive.tolist()
        ([[1, 3]], [[True, True]])
    """
    vectors, codes, query, gallery, twins = _checked(embeddings, labels, query_ids, gallery_ids, ignore)
    hidden = np.bincount(twins[gallery], minlength=len(vectors))[twins[query]]  # (Q,) not to be found
    k = min(k, max(1, len(gallery) - int(hidden.max(initial=0))))
    index = np.empty((len(query), k), dtype=np.int64)
    similarity = np.empty((len(query), k), dtype=np.float32)
    for rows, similarities in _similarities(vectors, query, gallery, twins):
        nearest = np.argpartition(-similarities, k - 1, axis=1)[:, :k]  # (C, k), unordered
        near = np.take_along_axis(similarities, nearest, axis=1)
        order = np.lexsort((nearest, -near), axis=1)  # ties: the lower row first, so galleries are repeatable
        index[rows] = gallery[np.take_along_axis(nearest, order, axis=1)]
        similarity[rows] = np.take_along_axis(near, order, axis=1)
    return Neighbours(query, index, similarity, codes[index] == codes[query][:, None])


def survey(
    embeddings: ArrayLike,
    labels: ArrayLike,
    query_ids: ArrayLike | None = None,
    *,
    gallery_ids: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
    bins: int = 100,
) -> Survey:
    """Rank of the first positive, AP and similarity histograms of the given queries, by exact counting.

    Queries without a positive are left out.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> found = survey(vectors, ["a", "a", "b"])
        >>> found.query.tolist(), found.first_rank.tolist(), found.average_precision.tolist()
        ([0, 1], [1, 1], [0.5, 0.5])
    """
    vectors, codes, query, gallery, twins = _checked(embeddings, labels, query_ids, gallery_ids, ignore)
    gallery_codes = codes[gallery]
    edges = np.linspace(-1.0, 1.0, bins + 1)
    positive_counts = np.zeros(bins, dtype=np.int64)
    negative_counts = np.zeros(bins, dtype=np.int64)
    positives = np.zeros(len(query), dtype=np.int64)
    first_rank = np.full(len(query), -1, dtype=np.int64)
    first_positive = np.full(len(query), -1, dtype=np.int64)
    average_precision = np.full(len(query), np.nan)
    for rows, similarities in _similarities(vectors, query, gallery, twins):
        for row, line in zip(range(rows.start, rows.stop), similarities, strict=True):
            is_positive = gallery_codes == codes[query[row]]
            valid = np.isfinite(line)  # the query itself, and what is ignored, is -inf
            near = np.sort(line[is_positive & valid])[::-1]  # (P,) positives, nearest first
            far = np.sort(line[~is_positive])  # (M,) negatives, ascending
            positive_counts += _binned(near, bins)
            negative_counts += _binned(far, bins)
            positives[row] = len(near)
            if len(near):
                before = len(far) - np.searchsorted(far, near, side="left")  # (P,) negatives at least as near
                first_rank[row] = before[0]
                first_positive[row] = gallery[np.argmax(np.where(is_positive, line, -np.inf))]
                hits = np.arange(1, len(near) + 1)
                average_precision[row] = float(np.mean(hits / (hits + before)))
    kept = positives > 0
    return Survey(
        query[kept],
        positives[kept],
        first_rank[kept],
        first_positive[kept],
        average_precision[kept],
        edges,
        positive_counts,
        negative_counts,
    )


class Fares(Protocol):
    """What is known of each query: a `Survey`, or the `per_query` figures of an evaluation."""

    @property
    def query(self) -> Ints: ...
    @property
    def first_rank(self) -> Ints: ...
    @property
    def average_precision(self) -> NDArray[np.float64]: ...


def hardest(found: Fares, count: int) -> Ints:
    """Rows into `found` of the queries that fare worst: deepest first positive, then lowest AP.

    >>> one = survey(np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]]), ["a", "a", "b", "b"])
    >>> one.query[hardest(one, 1)].tolist()
    [1]
    """
    order: Ints = np.lexsort((found.query, found.average_precision, -found.first_rank))[:count]
    return order


def easiest(found: Survey, labels: ArrayLike, count: int) -> Ints:
    """Rows into `found` of the queries that fare best, one a class: highest AP, then most positives."""
    names = np.asarray(labels)[found.query]
    order = np.lexsort((found.query, -found.positives, -found.average_precision))
    _, first_of_class = np.unique(names[order], return_index=True)
    best: Ints = order[np.sort(first_of_class)][:count]
    return best


def confused_pairs(
    embeddings: ArrayLike,
    labels: ArrayLike,
    query_ids: ArrayLike | None = None,
    *,
    gallery_ids: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
    before: Literal["first", "any"] = "first",
    top: int = 10,
) -> list[ConfusedPair]:
    """Which classes stand before the positives of which class: the pairs that most queries suffer from.

    Pairs are ordered by the number of queries, then by count: one hopeless query must not lead the list.

    Args:
        embeddings, labels, query_ids, gallery_ids, ignore: as in `neighbours`.
        before: "first" counts each negative that stands before the query's first positive: what Recall@1
            suffers from. "any" counts each negative once for every positive after it: what the PNP losses
            penalise, and what shows classes with several centres.
        top: pairs to return.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
        >>> [(p.label, p.other, p.count) for p in confused_pairs(vectors, ["cat", "cat", "dog", "dog"])]
        [('cat', 'dog', 3), ('dog', 'cat', 3)]
    """
    if before not in ("first", "any"):
        raise InputError(f"before must be 'first' or 'any', not {before!r}.")
    vectors, codes, query, gallery, twins = _checked(embeddings, labels, query_ids, gallery_ids, ignore)
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    gallery_codes = codes[gallery]
    # Queries of one class after another: one row of counts is enough, and only its largest entries are kept.
    query = query[np.argsort(codes[query], kind="stable")]
    found: list[tuple[int, int, int, int]] = []  # count, queries, class, other
    counts = np.zeros(len(names), dtype=np.int64)
    asked = np.zeros(len(names), dtype=np.int64)

    def close(code: int) -> None:
        largest = np.lexsort((-counts, -asked))[:top]
        found.extend((int(counts[o]), int(asked[o]), code, int(o)) for o in largest if counts[o])
        counts[:] = 0
        asked[:] = 0

    current = -1
    for rows, similarities in _similarities(vectors, query, gallery, twins):
        for row, line in zip(range(rows.start, rows.stop), similarities, strict=True):
            code = int(codes[query[row]])
            if code != current and current >= 0:
                close(current)
            current = code
            columns, times = _intruders(line, gallery_codes == code, before)
            others = gallery_codes[columns]
            np.add.at(counts, others, times)
            asked[np.unique(others)] += 1
    if current >= 0:
        close(current)
    found.sort(key=lambda pair: (-pair[1], -pair[0], pair[2], pair[3]))
    return [
        ConfusedPair(
            names[code].item(),
            names[other].item(),
            count,
            queries,
            *_clearest(vectors, query[codes[query] == code], gallery, codes, other, twins),
        )
        for count, queries, code, other in found[:top]
    ]


def _intruders(line: Floats, is_positive: NDArray[np.bool_], before: str) -> tuple[Ints, Ints]:
    """Columns of the negatives before a positive, and how many positives (one for "first") each is before."""
    near = np.sort(line[is_positive & np.isfinite(line)])
    if not len(near):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    columns = np.flatnonzero(line >= (near[-1] if before == "first" else near[0]))
    columns = columns[~is_positive[columns]]
    if before == "first":
        return columns, np.ones(len(columns), dtype=np.int64)
    return columns, np.searchsorted(near, line[columns], side="right").astype(np.int64)


def _clearest(
    vectors: Floats, query: Ints, gallery: Ints, codes: Ints, other: int, twins: Ints
) -> tuple[int, int, float]:
    """The (query, intruder) whose similarity most exceeds that of the query's nearest positive."""
    best = (-np.inf, -1, -1, 0.0)
    own, theirs = (np.flatnonzero(codes[gallery] == code) for code in (codes[query[0]], other))
    for rows, similarities in _similarities(vectors, query, gallery, twins):
        for row, line in zip(range(rows.start, rows.stop), similarities, strict=True):
            column = theirs[np.argmax(line[theirs])]
            positive = line[own].max(initial=-np.inf)
            excess = float(line[column] - positive) if np.isfinite(positive) else -np.inf
            if excess > best[0]:
                best = (excess, int(query[row]), int(gallery[column]), float(line[column]))
    return best[1:]


def _binned(similarities: Floats, bins: int) -> Ints:
    place = ((similarities + 1.0) * (bins / 2)).astype(np.int64)
    counts: Ints = np.bincount(np.clip(place, 0, bins - 1), minlength=bins)
    return counts


def _checked(
    embeddings: ArrayLike,
    labels: ArrayLike,
    query_ids: ArrayLike | None,
    gallery_ids: ArrayLike | None,
    ignore: ArrayLike | None,
) -> tuple[Floats, Ints, Ints, Ints, Ints]:
    """Vectors (N, D), codes (N,), query and gallery rows, twins (N,): equal ones never find each other."""
    vectors = np.asarray(embeddings)
    if vectors.ndim != 2:
        raise InputError(f"embeddings must be a matrix (images, dimensions), not of shape {vectors.shape}.")
    if vectors.dtype != np.float32:
        vectors = vectors.astype(np.float32)
    names = np.asarray(labels)
    if names.shape != (len(vectors),):
        raise InputError(
            f"there are {len(vectors)} embeddings but labels of shape {names.shape}: give one each."
        )
    codes = np.unique(names, return_inverse=True)[1].astype(np.int64)
    twins = np.arange(len(vectors))
    if ignore is not None:
        cameras = np.asarray(ignore)
        if cameras.shape != (len(vectors),):
            raise InputError(
                f"there are {len(vectors)} embeddings but ignore is of shape {cameras.shape}: give one each."
            )
        both = np.stack([codes, np.unique(cameras, return_inverse=True)[1]])
        twins = np.unique(both, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return (
        vectors,
        codes,
        _rows(query_ids, len(vectors), "query"),
        _rows(gallery_ids, len(vectors), "gallery"),
        twins,
    )


def _rows(given: ArrayLike | None, size: int, kind: str) -> Ints:
    if given is None:
        return np.arange(size)
    rows = np.asarray(given)
    if rows.dtype == bool:
        rows = np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    if rows.ndim != 1 or (len(rows) and (rows.min() < 0 or rows.max() >= size)):
        raise InputError(f"{kind} rows must be a list of numbers from 0 to {size - 1}.")
    return rows


def _similarities(vectors: Floats, query: Ints, gallery: Ints, twins: Ints) -> Iterator[tuple[slice, Floats]]:
    """Cosines of a chunk of queries with the whole gallery: (slice of `query`, (C, G)), twins at -inf."""
    everything = len(gallery) == len(vectors) and bool((gallery == np.arange(len(vectors))).all())
    found = vectors if everything else vectors[gallery]
    lengths = np.maximum(np.linalg.norm(found, axis=1), np.finfo(np.float32).tiny)
    order = np.argsort(twins[gallery], kind="stable")  # columns, twins side by side
    sorted_twins = twins[gallery][order]
    step = max(1, _CHUNK_SIMILARITIES // max(1, len(gallery)))
    for start in range(0, len(query), step):
        rows = slice(start, min(start + step, len(query)))
        asking = vectors[query[rows]]
        asking = asking / np.maximum(np.linalg.norm(asking, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        similarities = asking @ found.T
        similarities /= lengths
        own = twins[query[rows]]
        ends = np.searchsorted(sorted_twins, own, side="left"), np.searchsorted(sorted_twins, own, "right")
        for line, first, last in zip(similarities, *ends, strict=True):
            line[order[first:last]] = -np.inf
        yield rows, similarities
