"""Look for wrong labels by counting what stands before: too many negatives before an image's positives."""

from dataclasses import dataclass
from math import lgamma
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from forerank.data import Table
from forerank.errors import InputError
from forerank.metrics import ConfusedPair, RankedLists, confused_pairs, neighbours
from forerank.ranking.hard import hard_ranks
from forerank.ranking.hard_rows import unit_rows
from forerank.search.vote import most_frequent

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SplitClass:
    """A class whose images lie around several centres."""

    label: str
    images: int
    centres: tuple[tuple[int, ...], ...]  # rows of each centre, largest first; its most central image first


@dataclass(frozen=True)
class Audit:
    """What an audit found, by row of the table.

    Attributes:
        positives: (N,) other images with the same label.
        before: (N,) negatives before its positives, mean over them; NaN for an image alone in its class.
        before_nearest: (N,) negatives before the nearest positive.
        chance: (N,) the chance that positives scattered at random would bring one nearer than the nearest is:
            close to 0 for an image among its own, anywhere in 0 to 1 for one whose label says nothing.
        suspect: (N,) whether the label is worth a look: the chance is at or above the limit, and the nearest
            images suggest another label.
        suggestion: (N,) the label most frequent among the nearest images.
        agreement: (N,) share of the nearest images that have the suggested label.
        split_classes: classes with several centres.
        confused: pairs of classes of which one stands before the positives of the other.
        nearest: (N, k) rows of the nearest images.
    """

    table: Table
    positives: Ints
    before: Floats
    before_nearest: Floats
    chance: Floats
    suspect: npt.NDArray[np.bool_]
    suggestion: npt.NDArray[np.str_]
    agreement: Floats
    split_classes: list[SplitClass]
    confused: list[ConfusedPair]
    nearest: Ints

    def order(self) -> Ints:
        """All rows, suspects before the others, most suspicious first."""
        chance = np.nan_to_num(self.chance, nan=-1.0)
        nearest = np.nan_to_num(self.before_nearest)
        return np.lexsort((-np.nan_to_num(self.before), -nearest, -chance, ~self.suspect))


@dataclass(frozen=True)
class AuditScore:
    """How well suspects match the labels that are really wrong."""

    wrong: int
    suspects: int
    precision: float
    recall: float
    average_precision: float  # of the whole list, most suspicious first

    def __str__(self) -> str:
        return (
            f"{self.wrong:,} labels were spoiled on purpose; {self.suspects:,} are suspected: precision "
            f"{self.precision:.3f}, recall {self.recall:.3f}, average precision of the list "
            f"{self.average_precision:.3f}"
        )


def audit(
    vectors: npt.NDArray[Any], table: Table, *, limit: float = 0.1, k: int = 10, pairs: int = 20
) -> Audit:
    """Audit the labels of a table by the vectors (N, D) of its images.

    Args:
        limit: of `chance`, from which on an image may be suspected. If a wrong label is any other label, at
            least a share 1 - limit of the wrong ones is found, whatever the model; a better model suspects
            fewer others.
        k: nearest images that suggest a label; fewer if classes usually have fewer images, because in a wider
            vote the classes around the right one would win.
        pairs: confused pairs of classes to list.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(["a", "b", "c"], 10)
        >>> vectors = np.repeat(np.eye(3, 8), 10, axis=0) + 0.05 * rng.normal(size=(30, 8))
        >>> labels[4] = "c"
        >>> audited = audit(vectors, Table([f"{i}.png" for i in range(30)], labels, ["train"] * 30))
        >>> np.flatnonzero(audited.suspect).tolist(), audited.suggestion[4]
        ([4], np.str_('a'))
    """
    if len(vectors) != len(table):
        raise InputError(f"there are {len(vectors)} vectors for {len(table)} images.")
    if len(table.classes) < 2:
        raise InputError("an audit compares classes: the table has only one.")
    if not 0 < limit < 1:
        raise InputError(f"the limit lies between 0 and 1, not {limit}.")
    near = neighbours(vectors, table.label_ids, k=k)
    counts = count_before(vectors, table, near, limit=limit)
    return Audit(
        table=table,
        positives=counts.positives,
        before=counts.before,
        before_nearest=counts.before_nearest,
        chance=counts.chance,
        suspect=counts.suspect,
        suggestion=table.classes[counts.suggestion],
        agreement=counts.agreement,
        split_classes=_split_classes(np.asarray(vectors), table, counts.reach, counts.suspect),
        confused=confused_pairs(vectors, table.label, top=pairs),
        nearest=near.index,
    )


@dataclass(frozen=True)
class AuditCounts:
    """What `audit` counts for each image (N,); `suggestion` holds codes of classes."""

    positives: Ints
    before: Floats
    before_nearest: Floats
    chance: Floats
    suspect: npt.NDArray[np.bool_]
    suggestion: Ints
    agreement: Floats
    reach: Ints  # how many of its positives, nearest first, an image holds as its own


def count_before(vectors: npt.NDArray[Any], table: Table, near: RankedLists, *, limit: float) -> AuditCounts:
    """Count what stands before the positives of each image, and let its nearest images `near` vote."""
    codes, size = table.label_ids, len(table)
    positives = np.bincount(codes)[codes] - 1
    before, before_nearest = np.full(size, np.nan), np.full(size, np.nan)
    reach = np.zeros(size, np.int64)
    for part in hard_ranks(unit_rows(np.asarray(vectors)), codes):
        for i, start, stop in zip(part.queries, part.offsets[:-1], part.offsets[1:], strict=True):
            if stop > start:
                # A negative tied with a positive stands before it, as in every count.
                ahead = part.above[start:stop] + part.tied[start:stop]
                before[i], before_nearest[i] = ahead.mean(), ahead[0]
                reach[i] = int((ahead <= positives[i] // 4).sum())
    chance = _chance(before_nearest, positives, size - 1 - positives)
    voters = max(1, int(np.median(positives)))
    suggestion = np.array([most_frequent(line) for line in codes[near.index[:, :voters]].tolist()])
    agreement = (codes[near.index[:, :voters]] == suggestion[:, None]).mean(axis=1)
    suspect = (np.nan_to_num(chance, nan=0.0) >= limit) & (suggestion != codes)
    return AuditCounts(positives, before, before_nearest, chance, suspect, suggestion, agreement, reach)


def score(audit: Audit, wrong: npt.NDArray[np.bool_]) -> AuditScore:
    """Compare suspects with the rows (N,) whose labels are known to be wrong."""
    hits = int((audit.suspect & wrong).sum())
    ranked = wrong[audit.order()]
    precisions = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    return AuditScore(
        int(wrong.sum()),
        int(audit.suspect.sum()),
        hits / max(1, int(audit.suspect.sum())),
        hits / max(1, int(wrong.sum())),
        float(precisions[ranked].mean()) if ranked.any() else 1.0,
    )


def _chance(before_nearest: Floats, positives: Ints, negatives: Ints) -> Floats:
    """Chance that the first of P positives, shuffled among N negatives, has fewer than R negatives before it.

    That is one minus the chance that the first R places are all negatives.

    >>> _chance(np.array([0.0, 1.0]), np.array([1, 1]), np.array([3, 3])).round(6).tolist()
    [0.0, 0.25]
    """
    result = np.full(len(before_nearest), np.nan)
    for i, r in enumerate(before_nearest):
        if not np.isnan(r):
            p, n, m = int(positives[i]), int(negatives[i]), int(r)
            log_none = lgamma(n + 1) - lgamma(n - m + 1) - lgamma(n + p + 1) + lgamma(n + p - m + 1)
            result[i] = 0.0 - np.expm1(log_none)
    return result


def _split_classes(
    vectors: npt.NDArray[Any], table: Table, reach: Ints, suspect: npt.NDArray[np.bool_]
) -> list[SplitClass]:
    """Classes that fall into several parts when each image holds on to the positives before the crowd.

    An image holds a positive that has no more negatives before it than a quarter of the class. Parts that are
    linked by no hold are centres, if they have at least two images and a fifth of the class. Suspects are
    left out: a wrong label is not a centre.
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    split_classes = []
    order = np.argsort(table.label_ids, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(table.label_ids[order])) + 1):
        kept = members[~suspect[members]]
        if len(kept) < 4:
            continue
        size = len(members)
        nearest_first = neighbours(vectors[members], np.zeros(size, int), k=size).index  # (n, n - 1)
        held, sound = np.zeros((size, size), bool), ~suspect[members]
        for i in np.flatnonzero(sound):
            held[i, nearest_first[i, : reach[members[i]]]] = True
        number, part_of = connected_components(held & sound, directed=False)
        parts = [members[(part_of == name) & sound] for name in range(number)]
        parts = [part for part in parts if len(part) >= max(2, 0.2 * len(kept))]
        if len(parts) >= 2:
            centres = tuple(_central_first(unit, part) for part in sorted(parts, key=len, reverse=True))
            split_classes.append(SplitClass(str(table.label[members[0]]), len(members), centres))
    return sorted(split_classes, key=lambda split: (-len(split.centres[1]) / split.images, split.label))


def _central_first(unit: npt.NDArray[Any], rows: Ints) -> tuple[int, ...]:
    """Rows by their similarity to the mean of them all."""
    towards = unit[rows] @ unit[rows].mean(axis=0)
    return tuple(int(row) for row in rows[np.argsort(-towards, kind="stable")])
