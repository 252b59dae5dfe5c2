"""The ranked list of a query: one similarity, one rule for ties, ranks from 1, as the counts have them.

Similarities are float64 dot products of unit vectors. An image is never its own neighbour: it is left out by
its row number, so copies of the query stay in the list. With `ignore` (camera or sequence) images of the
query's label and camera are left out too. Similarities closer than `TIE` are tied: then negatives stand
before positives, and images of one kind stand in the order of their rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from forerank.errors import InputError
from forerank.metrics.inputs import label_codes, row_numbers
from forerank.ranking.hard_rows import Embeddings, UnitRows, unit_rows
from forerank.ranking.hard_same import TIE

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK_SIMILARITIES = 1 << 23  # 64 MiB of float64 at a time, whatever the size of the gallery


@dataclass(frozen=True)
class RankedLists:
    """The k nearest gallery images of each query; column 0 holds rank 1.

    Attributes:
        query: (Q,) row of each query in the embeddings.
        index: (Q, k) row of each neighbour.
        similarity: (Q, k) cosine similarity.
        is_positive: (Q, k) whether the neighbour has the query's label.
    """

    query: Integers
    index: Integers
    similarity: Floats
    is_positive: NDArray[np.bool_]


@dataclass(frozen=True)
class Pairs:
    """Which queries are compared with which gallery images.

    Attributes:
        rows: the embeddings as unit vectors.
        codes: (N,) label of each row as a number.
        query, gallery: (Q,) and (G,) row numbers.
        group: (N,) a query never meets gallery images of its own group: itself, or its label and camera.
    """

    rows: UnitRows
    codes: Integers
    query: Integers
    gallery: Integers
    group: Integers


def neighbours(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    queries: ArrayLike | None = None,
    k: int = 10,
    *,
    gallery: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
) -> RankedLists:
    """The `k` nearest gallery images of each query, or fewer where some query has no more candidates.

    A positive at rank r of a list has the rank r in the counts of `evaluate` as well.

    Args:
        embeddings: (N, D) vectors; they need not be normalised.
        labels: (N,) labels, numbers or strings.
        queries, gallery: rows as numbers or a mask; default all.
        k: neighbours to return.
        ignore: (N,) camera or sequence; images of the query's label and camera are left out.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> lists = neighbours(vectors, ["a", "a", "b", "a"], queries=[0], k=2)
        >>> lists.index.tolist(), lists.is_positive.tolist()
        ([[1, 3]], [[True, True]])
    """
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}.")
    pairs = checked_pairs(embeddings, labels, queries, gallery, ignore)
    left_out = np.bincount(pairs.group[pairs.gallery], minlength=len(pairs.rows))[pairs.group[pairs.query]]
    k = max(0, min(k, len(pairs.gallery) - int(left_out.max(initial=0))))
    index = np.empty((len(pairs.query), k), dtype=np.int64)
    similarity = np.empty((len(pairs.query), k))
    for number, line in similarity_lines(pairs) if k else ():
        # Whatever may be among the first k: an item this far below k others stands after them all.
        near = np.flatnonzero(line >= np.partition(line, -k)[-k] - 2 * TIE)
        positive = pairs.codes[pairs.gallery[near]] == pairs.codes[pairs.query[number]]
        head = near[ranked(line[near], positive, pairs.gallery[near])[:k]]
        index[number], similarity[number] = pairs.gallery[head], line[head]
    return RankedLists(
        pairs.query, index, similarity, pairs.codes[index] == pairs.codes[pairs.query][:, None]
    )


def ranked(similarity: Floats, positive: NDArray[np.bool_], row: Integers) -> Integers:
    """The order (n,) of one list: each positive at its rank, the negatives in the other places.

    >>> ranked(np.array([0.5, 0.9, 0.5]), np.array([True, True, False]), np.arange(3)).tolist()
    [1, 2, 0]
    """
    near, far = (_by_similarity(similarity, row, np.flatnonzero(which)) for which in (positive, ~positive))
    order = np.empty(len(similarity), dtype=np.int64)
    place = np.arange(len(near)) + negatives_before(similarity[near], similarity[far])
    order[place] = near
    order[np.delete(np.arange(len(similarity)), place)] = far
    return order


def negatives_before(positives: Floats, negatives: Floats) -> Integers:
    """How many negatives stand before each positive (P,), from their similarities: ties stand before it.

    The positives are given nearest first, up to ties.

    >>> negatives_before(np.array([0.9, 0.5]), np.array([0.5, 0.7, 0.1])).tolist()
    [0, 2]
    """
    nearest_first = np.sort(positives)[::-1]
    return len(negatives) - np.searchsorted(np.sort(negatives), nearest_first - TIE, side="left")


def _by_similarity(similarity: Floats, row: Integers, chosen: Integers) -> Integers:
    """The chosen items, most similar first, those that tie by row."""
    order = chosen[np.argsort(-similarity[chosen], kind="stable")]
    tie = np.cumsum(np.diff(similarity[order], prepend=np.inf) < -TIE)
    return order[np.lexsort((row[order], tie))]


def checked_pairs(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    queries: ArrayLike | None,
    gallery: ArrayLike | None,
    ignore: ArrayLike | None,
) -> Pairs:
    """Who is compared with whom, from what a caller gives, with the refusals of `evaluate`."""
    rows = unit_rows(embeddings)
    codes = label_codes(labels, len(rows), "labels")
    group = np.arange(len(rows))
    if ignore is not None:
        both = np.stack([codes, label_codes(ignore, len(rows), "ignore")])
        group = np.unique(both, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    asked, shelf = (
        row_numbers(given, len(rows), what) for given, what in ((queries, "queries"), (gallery, "gallery"))
    )
    return Pairs(rows, codes, asked, shelf, group)


def similarity_lines(pairs: Pairs) -> Iterator[tuple[int, Floats]]:
    """For each query its place in `pairs.query` and its similarity (G,) to the gallery; -inf: left out."""
    for start, _, lines in similarity_chunks(pairs, pairs.rows.float64(pairs.gallery)):
        yield from enumerate(lines, start)


def similarity_chunks(pairs: Pairs, shelf: Tensor) -> Iterator[tuple[int, Tensor, Floats]]:
    """Some queries at a time: the place of the first, their vectors (C, D), their similarities (C, G).

    `shelf` (G, D) holds the vectors of `pairs.gallery`, or others in their place. Left out pairs have -inf.
    """
    group = pairs.group[pairs.gallery]
    step = max(1, _CHUNK_SIMILARITIES // len(shelf))
    for start in range(0, len(pairs.query), step):
        query = pairs.query[start : start + step]
        vectors = pairs.rows.float64(query)
        similarities = (vectors @ shelf.T).cpu().numpy()  # (C, G)
        for line, own in zip(similarities, pairs.group[query], strict=True):
            line[group == own] = -np.inf
        yield start, vectors, similarities
