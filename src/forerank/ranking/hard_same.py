"""The gallery items that share a query's label: its positives, itself, and pairs the protocol ignores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerank.ranking.hard_rows import UnitRows, blocks

Integers = NDArray[np.int64]

# Similarities closer than this are tied. It is far above float64 rounding (about 1e-16 for unit vectors)
# and far below any difference float32 embeddings can mean, so equal vectors tie however sums are ordered.
TIE = 1e-12
FEW = 32  # images of a label up to which pairs are compared one by one


def compared(similarity: Any, threshold: Any) -> tuple[Any, Any]:
    """Whether each float64 similarity is above its threshold, and whether it is only tied: the one rule.

    >>> [x.tolist() for x in compared(np.array([0.5, 0.4, 0.3]), np.full(3, 0.4))]
    [[True, False, False], [False, True, False]]
    """
    above = similarity > threshold + TIE
    return above, (similarity >= threshold - TIE) & ~above


@dataclass(frozen=True)
class Candidates:
    """Who is compared with whom. Positions index the rows of the embeddings."""

    queries: Integers  # (Q,)
    gallery: Integers  # (G,)
    labels: Integers  # (N,) codes of all rows
    ignore: Integers | None  # (N,) codes; a pair of one label and one code is left out

    @property
    def symmetric(self) -> bool:
        """True if queries and gallery are the same rows, so a pair is met twice."""
        return len(self.queries) == len(self.gallery) and bool(np.array_equal(self.queries, self.gallery))


@dataclass(frozen=True)
class Thresholds:
    """The positives of some queries, ragged: those of query i stand at offsets[i]:offsets[i+1].

    Most similar first. `same_above` and `same_from` count the items of the query's own label (positives,
    ignored ones, itself) that a count over the whole gallery would include, to be taken off.
    """

    offsets: Integers  # (Q + 1,)
    similarity: NDArray[np.float64]  # (P,)
    same_above: Integers  # (P,) similarity > this positive's
    same_from: Integers  # (P,) similarity >= this positive's


@dataclass(frozen=True)
class SameLabel:
    """Gallery rows ordered by label, to find all of one label as a run."""

    members: Integers  # (G,) rows of the embeddings, sorted by label
    start: Integers  # (Q,) first member of each query's label
    count: Integers  # (Q,)


def same_label(candidates: Candidates) -> SameLabel:
    """For every query, where the gallery items of its label are."""
    labels = candidates.labels[candidates.gallery]
    order = np.argsort(labels, kind="stable")
    labels = labels[order]
    wanted = candidates.labels[candidates.queries]
    start = np.searchsorted(labels, wanted, side="left")
    return SameLabel(candidates.gallery[order], start, np.searchsorted(labels, wanted, side="right") - start)


def positives_of(rows: UnitRows, candidates: Candidates, same: SameLabel, chosen: Integers) -> Thresholds:
    """Similarities of the positives of the chosen queries (positions in `candidates.queries`), exactly.

    Padded blocks of queries with like numbers of same-label items keep the work in whole-array operations.
    """
    width = same.count[chosen]
    by_width = np.argsort(width, kind="stable")
    parts: list[tuple[Integers, Integers, NDArray[np.float64], Integers, Integers]] = []
    start = 0
    while start < len(chosen):
        # As many queries as keep the padded block small; at least one.
        ahead = width[by_width[start:]]
        area = ahead * np.arange(1, len(ahead) + 1)
        stop = start + max(1, int(np.searchsorted(area, 1 << 19, side="right")))
        which = by_width[start:stop]
        parts.append(_padded_block(rows, candidates, same, chosen[which], which))
        start = stop
    count = np.zeros(len(chosen), dtype=np.int64)
    for which, kept, *_ in parts:
        count[which] = kept
    offsets = np.concatenate(([0], np.cumsum(count)))
    similarity = np.empty(offsets[-1], dtype=np.float64)
    above, reach = np.empty(offsets[-1], dtype=np.int64), np.empty(offsets[-1], dtype=np.int64)
    for which, kept, t, a, r in parts:
        where = np.repeat(offsets[which] - np.concatenate(([0], np.cumsum(kept)[:-1])), kept) + np.arange(
            len(t)
        )
        similarity[where], above[where], reach[where] = t, a, r
    return Thresholds(offsets, similarity, above, reach)


def _padded_block(
    rows: UnitRows, candidates: Candidates, same: SameLabel, chosen: Integers, which: Integers
) -> tuple[Integers, Integers, NDArray[np.float64], Integers, Integers]:
    queries = candidates.queries[chosen]
    width = int(same.count[chosen].max(initial=0))
    column = np.arange(width)
    real = column < same.count[chosen][:, None]  # (C, M)
    item = same.members[np.where(real, same.start[chosen][:, None] + column, 0)]  # (C, M)
    similarity = np.full((len(chosen), width), -np.inf)
    if width <= FEW:
        owner, place = np.nonzero(real)
        similarity[real] = rows.similarity(queries[owner], item[owner, place]).cpu().numpy()
    else:
        _one_product_a_label(rows, candidates.labels[queries], queries, item, same.count[chosen], similarity)
    positive = real & (item != queries[:, None])
    if candidates.ignore is not None:
        positive &= candidates.ignore[item] != candidates.ignore[queries][:, None]

    everyone = torch.from_numpy(np.sort(similarity, axis=1))  # ascending, padding first
    threshold = np.sort(np.where(positive, similarity, -np.inf), axis=1)[:, ::-1].copy()
    kept = positive.sum(axis=1)
    t = torch.from_numpy(threshold)
    above = width - torch.searchsorted(everyone, t + TIE, right=True)
    reach = width - torch.searchsorted(everyone, t - TIE, right=False)
    filled = column < kept[:, None]
    return which, kept, threshold[filled], above.numpy()[filled], reach.numpy()[filled]


def _one_product_a_label(
    rows: UnitRows,
    labels: Integers,
    queries: Integers,
    item: Integers,
    count: Integers,
    similarity: NDArray[np.float64],
) -> None:
    order = np.argsort(labels, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        members = item[group[0], : count[group[0]]]
        for first, last in blocks(len(group), rows.dim):  # a class may be most of the embeddings
            some = group[first:last]
            query = rows.float64(queries[some])
            for start, stop in blocks(len(members), rows.dim):
                product = query @ rows.float64(members[start:stop]).T
                similarity[some[:, None], np.arange(start, stop)] = product.cpu().numpy()
