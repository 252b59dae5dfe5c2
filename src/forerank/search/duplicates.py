"""Groups of near-identical images in an index."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerank.console import progress_bar
from forerank.errors import InputError
from forerank.search.engine import Engine, Vectors
from forerank.search.rows import Row

BLOCK = 2048
# Above this many images all pairs take too long; then each image's nearest ones are looked at.
ALL_PAIRS = 150_000
NEAREST = 64

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Images linked to one another by similarities at or above the wanted one."""

    rows: tuple[Row, ...]
    lowest: float  # smallest similarity among the linked pairs
    identical: bool  # the same bytes throughout
    labels: tuple[str, ...]  # more than one: a contradiction to look at


def find_duplicates(engine: Engine, similarity: float = 0.98) -> list[Group]:
    """Groups of at least two images, largest first.

    A group holds everything that can be reached over links of at least `similarity`; so its farthest members
    may be less similar than that.
    """
    if not 0 < similarity <= 1:
        raise InputError(f"the similarity lies above 0 and up to 1, not {similarity}.")
    rows: list[Row] = []
    parts: list[Vectors] = []
    for part, vectors in engine.scan():
        rows += part
        parts.append(vectors)
    if not rows:
        return []
    vectors = np.concatenate(parts)
    if len(rows) <= ALL_PAIRS:
        leader, weakest = _link_all_pairs(vectors, similarity)
    else:
        leader, weakest = _link_nearest(engine, rows, vectors, similarity)
    order = np.argsort(leader, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(leader[order]) > 0))
    groups = []
    for members in np.split(order, starts[1:]):
        if len(members) > 1:
            chosen = tuple(rows[i] for i in members)
            labels = tuple(sorted({row.label for row in chosen if row.label}))
            identical = len({row.content for row in chosen}) == 1
            groups.append(Group(chosen, float(weakest[leader[members[0]]]), identical, labels))
    return sorted(groups, key=lambda group: (-len(group.rows), group.rows[0].path))


def _link_all_pairs(vectors: Vectors, similarity: float) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Exact: every pair, a block at a time."""
    leader = np.arange(len(vectors))
    weakest = np.ones(len(vectors), np.float32)
    # Rounding of a product of unit vectors: an image and its copy must not fall below 1.0.
    limit = np.float32(similarity - 1e-6)
    with progress_bar("comparing", len(vectors)) as advance:
        for start in range(0, len(vectors), BLOCK):
            block = vectors[start : start + BLOCK]
            for other in range(start, len(vectors), BLOCK):
                products = block @ vectors[other : other + BLOCK].T
                i, j = np.nonzero(products >= limit)
                i, j, s = i + start, j + other, products[i, j]
                _link(leader, weakest, i[i < j], j[i < j], s[i < j])
            advance(len(block))
    return leader, _by_leader(leader, weakest)


def _link_nearest(
    engine: Engine, rows: list[Row], vectors: Vectors, similarity: float
) -> tuple[Ints, npt.NDArray[np.float32]]:
    """By the engine's own search: a chain through each image's nearest ones."""
    place = {row.id: i for i, row in enumerate(rows)}
    leader = np.arange(len(vectors))
    weakest = np.ones(len(vectors), np.float32)
    with progress_bar("comparing", len(vectors)) as advance:
        for start in range(0, len(vectors), BLOCK):
            found = engine.search(np.ascontiguousarray(vectors[start : start + BLOCK]), NEAREST)
            q, c = np.nonzero((found.similarities >= similarity - 1e-6) & (found.ids >= 0))
            j = np.array([place[number] for number in found.ids[q, c].tolist()], np.int64)
            _link(leader, weakest, q + start, j, found.similarities[q, c])
            advance(len(found.ids))
    return leader, _by_leader(leader, weakest)


def _link(
    leader: Ints, weakest: npt.NDArray[np.float32], i: Ints, j: Ints, s: npt.NDArray[np.float32]
) -> None:
    """Join the groups of i and j, in place, all links at once; the smallest member leads a group.

    >>> leader = np.arange(5)
    >>> _link(leader, np.ones(5, np.float32), np.array([3, 1]), np.array([4, 3]), np.ones(2, np.float32))
    >>> leader.tolist()
    [0, 1, 2, 1, 1]
    """
    if not len(i):
        return
    np.minimum.at(weakest, i, s)
    while True:
        a, b = leader[i], leader[j]
        if (a == b).all():
            return
        low = np.minimum(a, b)
        np.minimum.at(leader, a, low)
        np.minimum.at(leader, b, low)
        while not (leader[leader] == leader).all():  # point straight at the leader
            leader[:] = leader[leader]


def _by_leader(leader: Ints, weakest: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The weakest link of each group, kept at its leader."""
    result = np.ones(len(leader), np.float32)
    np.minimum.at(result, leader, weakest)
    return result
