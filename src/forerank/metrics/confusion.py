"""Which class stands before the positives of which other class."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError
from forerank.metrics.ranked_lists import Floats, Integers, Pairs, checked_pairs, similarity_lines
from forerank.ranking.hard_rows import Embeddings, UnitRows
from forerank.ranking.hard_same import TIE


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


def confused_pairs(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    queries: ArrayLike | None = None,
    *,
    gallery: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
    before: Literal["first", "any"] = "first",
    top: int = 10,
) -> list[ConfusedPair]:
    """The pairs of classes of which one stands before the positives of the other, most queries first.

    Pairs are ordered by the number of queries, then by count: one very bad query must not lead the list.

    Args:
        embeddings, labels, queries, gallery, ignore: as in `neighbours`.
        before: "first" counts each negative that stands before the query's first positive: what recall@1
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
    pairs = checked_pairs(embeddings, labels, queries, gallery, ignore)
    names = np.unique(np.asarray(labels))
    # Queries of one class after another: one row of counts is enough, and only its largest entries are kept.
    by_class = pairs.query[np.argsort(pairs.codes[pairs.query], kind="stable")]
    pairs = Pairs(pairs.rows, pairs.codes, by_class, pairs.gallery, pairs.group)
    gallery_codes = pairs.codes[pairs.gallery]
    largest: list[tuple[int, int, int, int]] = []  # count, queries, class, other
    counts, affected = np.zeros((2, len(names)), dtype=np.int64)

    def close_class(code: int) -> None:
        most = np.lexsort((-counts, -affected))[:top]
        largest.extend((int(counts[o]), int(affected[o]), code, int(o)) for o in most if counts[o])
        counts[:] = 0
        affected[:] = 0

    current = -1
    for number, line in similarity_lines(pairs):
        code = int(pairs.codes[by_class[number]])
        if code != current and current >= 0:
            close_class(current)
        current = code
        columns, times = _intruders(line, gallery_codes == code, before)
        others = gallery_codes[columns]
        np.add.at(counts, others, times)
        affected[np.unique(others)] += 1
    close_class(current)
    largest.sort(key=lambda pair: (-pair[1], -pair[0], pair[2], pair[3]))
    return [
        ConfusedPair(names[code].item(), names[other].item(), count, asked, *_clearest(pairs, code, other))
        for count, asked, code, other in largest[:top]
    ]


def _intruders(line: Floats, is_positive: NDArray[np.bool_], before: str) -> tuple[Integers, Integers]:
    """Columns of the negatives before a positive, and how many positives (1 for "first") each is before."""
    near = np.sort(line[is_positive & np.isfinite(line)]) - TIE  # a negative tied with it stands before it
    if not len(near):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    columns = np.flatnonzero(line >= (near[-1] if before == "first" else near[0]))
    columns = columns[~is_positive[columns]]
    if before == "first":
        return columns, np.ones(len(columns), dtype=np.int64)
    return columns, np.searchsorted(near, line[columns], side="right").astype(np.int64)


def _clearest(pairs: Pairs, code: int, other: int) -> tuple[int, int, float]:
    """The (query, intruder) whose similarity most exceeds that of the query's nearest positive."""
    codes = pairs.codes[pairs.gallery]
    gallery = pairs.gallery[(codes == code) | (codes == other)]
    theirs = pairs.codes[gallery] == other
    query = pairs.query[pairs.codes[pairs.query] == code]
    best = (-np.inf, -1, -1, 0.0)
    for number, line in similarity_lines(Pairs(pairs.rows, pairs.codes, query, gallery, pairs.group)):
        column = int(np.argmax(np.where(theirs, line, -np.inf)))
        positive = line[~theirs].max(initial=-np.inf)
        excess = float(line[column] - positive) if np.isfinite(positive) else -np.inf
        if excess > best[0]:
            best = (excess, int(query[number]), int(gallery[column]), float(line[column]))
    return best[1:]
