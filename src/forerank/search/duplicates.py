"""Groups of near-identical images in an index."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from forerank.console import progress_bar
from forerank.errors import InputError
from forerank.search.engine import Engine, Vectors
from forerank.search.rows import Row

BLOCK = 2048
# Above this many images all pairs take too long; then each image's nearest ones are looked at.
ALL_PAIRS = 150_000
NEAREST = 64
# A photograph in half or a quarter of its size, or compressed again, keeps a pixel correlation of 0.996,
# while a pretrained model may see a similarity of only 0.75 between the two. Among 3,100 photographs of
# birds, flowers and groceries, two different ones reached at most 0.985.
SAME_PIXELS = 0.995
SAME_THING = 0.7

Ints = npt.NDArray[np.int64]
Links = tuple[Ints, Ints, npt.NDArray[np.float32]]  # rows (L,), rows (L,), how similar they are (L,)


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
        links = _links_of_all_pairs(vectors, similarity)
    else:
        links = _links_to_nearest(engine, rows, vectors, similarity)
    groups = []
    for members, lowest in linked_groups(links, len(rows)):
        chosen = tuple(rows[i] for i in members)
        labels = tuple(sorted({row.label for row in chosen if row.label}))
        identical = len({row.content for row in chosen}) == 1
        groups.append(Group(chosen, lowest, identical, labels))
    return sorted(groups, key=lambda group: (-len(group.rows), group.rows[0].path))


def linked_groups(links: Iterable[Links], count: int) -> list[tuple[Ints, float]]:
    """Groups of two or more of `count` items that are joined by links, each with its weakest link.

    >>> one = np.array([0, 1]), np.array([1, 3]), np.array([0.99, 0.98], np.float32)
    >>> [(members.tolist(), round(weakest, 2)) for members, weakest in linked_groups([one], 5)]
    [([0, 1, 3], 0.98)]
    """
    first, second, strength = (np.concatenate(column) for column in zip(*links, strict=True))
    number, group_of = connected_components(coo_matrix((strength, (first, second)), (count, count)), False)
    weakest = np.ones(number, np.float32)
    np.minimum.at(weakest, group_of[first], strength)
    order = np.argsort(group_of, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1)
    return [(rows, float(weakest[group_of[rows[0]]])) for rows in parts if len(rows) > 1]


def near_copies(
    vectors: npt.NDArray[np.float32], thumbnails: npt.NDArray[np.float32], similarity: float = 0.95
) -> list[tuple[Ints, float]]:
    """Rows (n,) of near-identical pictures: alike to the model, and alike pixel by pixel.

    A model that was trained to bring a class together calls different pictures of it nearly the same. So a
    pair counts only if small versions of both pictures correlate as well. Where they correlate almost
    perfectly, a model that is disturbed by the smaller size of a copy does not have the last word. The number
    is the correlation, the weakest of the group.

    Args:
        vectors: (N, D) unit vectors of the model.
        thumbnails: (N, P) small pictures as unit vectors, zeros for one that cannot be read.
        similarity: that both must reach.
    """
    if not 0 < similarity <= 1:
        raise InputError(f"the similarity lies above 0 and up to 1, not {similarity}.")
    limit = similarity - 1e-6

    def confirmed() -> Iterator[Links]:
        for i, j, correlation in _links_of_all_pairs(thumbnails, similarity):
            alike = np.einsum("nd,nd->n", vectors[i], vectors[j])
            same = (alike >= limit) | ((correlation >= SAME_PIXELS) & (alike >= SAME_THING))
            yield i[same], j[same], correlation[same]

    groups = linked_groups(confirmed(), len(vectors)) if len(vectors) else []
    return sorted(groups, key=lambda group: (-len(group[0]), int(group[0][0])))


def _links_of_all_pairs(vectors: Vectors, similarity: float) -> Iterator[Links]:
    """Exact: every pair, a block at a time."""
    # Rounding of a product of unit vectors: an image and its copy must not fall below 1.0.
    limit = np.float32(similarity - 1e-6)
    with progress_bar("comparing", len(vectors)) as advance:
        for start in range(0, len(vectors), BLOCK):
            block = vectors[start : start + BLOCK]
            for other in range(start, len(vectors), BLOCK):
                products = block @ vectors[other : other + BLOCK].T
                i, j = np.nonzero(products >= limit)
                once = i + start < j + other
                yield i[once] + start, j[once] + other, products[i, j][once]
            advance(len(block))


def _links_to_nearest(
    engine: Engine, rows: list[Row], vectors: Vectors, similarity: float
) -> Iterator[Links]:
    """By the engine's own search: a chain through each image's nearest ones."""
    place = {row.id: i for i, row in enumerate(rows)}
    with progress_bar("comparing", len(vectors)) as advance:
        for start in range(0, len(vectors), BLOCK):
            nearest = engine.search(np.ascontiguousarray(vectors[start : start + BLOCK]), NEAREST)
            i, rank = np.nonzero((nearest.similarities >= similarity - 1e-6) & (nearest.ids >= 0))
            j = np.array([place[number] for number in nearest.ids[i, rank].tolist()], np.int64)
            yield i + start, j, nearest.similarities[i, rank]
            advance(len(nearest.ids))
