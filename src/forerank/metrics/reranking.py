"""Exact ranks of positives in rankings that are refined by neighbours: see `forerank.ranking.reranking`.

Every query gets one line of scores over the gallery, and the ranks of its positives are counted from it with
the tie rule of all counts. Its evidence is the gallery without what the protocol leaves out for it: itself,
and with `ignore` the images of its label and camera. So the figures are those of a search in which the query
is not in the index. What is held at a time: the gallery in float64 (for averaging twice), a chunk of lines,
and for averaging a list of neighbours of each gallery image.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from forerank.metrics.ranked_lists import Floats, Integers, Pairs, similarity_chunks
from forerank.ranking.hard import HardRanks
from forerank.ranking.hard_same import TIE
from forerank.ranking.reranking import (
    DIGITS,
    Averaging,
    Expansion,
    Reciprocal,
    Reranking,
    reciprocal_distances,
    weighted_means,
)

# Neighbours that are kept for averaging beyond those it needs: they replace those that a query leaves out.
_SPARE = 64
_QUERIES = 1024  # queries whose ranks are handed on together
_MEANS = 64  # gallery images that are averaged together
# A distance is at most 2 and a cosine at most 1: 4 - distance stands before every cosine.
_BEFORE_ALL = 4.0


def reranked_ranks(pairs: Pairs, chosen: Reranking) -> Iterator[HardRanks]:
    """Negatives before each positive in the refined ranking, a part of the queries at a time."""
    return line_ranks(pairs, reranked_lines(pairs, chosen))


def reranked_lines(pairs: Pairs, chosen: Reranking) -> Iterator[tuple[int, Floats]]:
    """For each query its place in `pairs.query` and its scores (G,), highest first; -inf: left out."""
    if isinstance(chosen, Expansion):
        return _expanded(pairs, chosen)
    if isinstance(chosen, Averaging):
        return _averaged(pairs, chosen)
    return _reciprocal(pairs, chosen)


def line_ranks(pairs: Pairs, lines: Iterator[tuple[int, Floats]]) -> Iterator[HardRanks]:
    """Counts from lines of scores, by the rule of all counts: closer than `TIE` is tied.

    >>> from forerank.metrics.ranked_lists import checked_pairs, similarity_lines
    >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> pairs = checked_pairs(vectors, ["a", "a", "b"], None, None, None)
    >>> (part,) = line_ranks(pairs, similarity_lines(pairs))
    >>> part.offsets.tolist(), part.ranks().tolist()
    ([0, 1, 2, 2], [2, 2])
    """
    shelf = pairs.codes[pairs.gallery]
    numbers: list[int] = []
    counted: list[tuple[Floats, Integers, Integers]] = []
    for number, line in lines:
        same = shelf == pairs.codes[pairs.query[number]]
        positives = line[same]
        positives = np.sort(positives[positives > -np.inf])[::-1]
        negatives = line[~same]
        lowest = positives[-1] - TIE if len(positives) else np.inf
        negatives = np.sort(negatives[negatives >= lowest])
        above = len(negatives) - np.searchsorted(negatives, positives + TIE, side="right")
        reach = len(negatives) - np.searchsorted(negatives, positives - TIE, side="left")
        numbers.append(number)
        counted.append((positives, above, reach - above))
        if len(numbers) == _QUERIES:
            yield _joined(numbers, counted)
            numbers, counted = [], []
    if numbers:
        yield _joined(numbers, counted)


def _joined(numbers: list[int], counted: list[tuple[Floats, Integers, Integers]]) -> HardRanks:
    offsets = np.cumsum([0, *(len(positives) for positives, _, _ in counted)])
    similarity, above, tied = (np.concatenate(column) for column in zip(*counted, strict=True))
    return HardRanks(np.array(numbers, dtype=np.int64), offsets, similarity, above, tied)


def _nearest(line: Floats, k: int) -> Integers:
    """Positions of the k highest scores that are not -inf, highest first; ties in the gallery's order."""
    k = min(k, int((line > -np.inf).sum()))
    if not k:
        return np.empty(0, dtype=np.int64)
    near = np.flatnonzero(line >= np.partition(line, -k)[-k] - TIE)
    return near[np.argsort(-line[near].round(DIGITS), kind="stable")[:k]]


def _expanded(pairs: Pairs, chosen: Expansion) -> Iterator[tuple[int, Floats]]:
    shelf = pairs.rows.float64(pairs.gallery)
    gallery = shelf.cpu().numpy()
    for start, vectors, lines in similarity_chunks(pairs, shelf):
        queries = vectors.cpu().numpy().copy()
        for place, line in enumerate(lines):
            near = _nearest(line, chosen.neighbours)
            own = queries[place : place + 1]
            queries[place] = weighted_means(own, gallery[near][None], line[near][None], chosen.alpha)[0]
        scores = (torch.from_numpy(queries).to(shelf.device) @ shelf.T).cpu().numpy()
        scores[lines == -np.inf] = -np.inf
        yield from enumerate(scores, start)


def _averaged(pairs: Pairs, chosen: Averaging) -> Iterator[tuple[int, Floats]]:
    shelf = pairs.rows.float64(pairs.gallery)
    gallery, group = shelf.cpu().numpy(), pairs.group[pairs.gallery]
    spare = min(_SPARE, int(np.bincount(group).max()))
    lists, similarity = _gallery_neighbours(pairs, shelf, chosen.neighbours + spare)  # (G, M) each

    def means(which: Integers, items: Integers, values: Floats) -> Floats:
        return weighted_means(gallery[which], gallery[items], values, chosen.alpha)

    average = np.empty_like(gallery)
    for first in range(0, len(gallery), _MEANS):
        some = np.arange(first, min(first + _MEANS, len(gallery)))
        average[some] = means(some, lists[some, : chosen.neighbours], similarity[some, : chosen.neighbours])

    # Which averages hold an image of which group: a query of that group sees others, made without the image.
    holder, column = np.nonzero(similarity[:, : chosen.neighbours] > -np.inf)
    held = group[lists[holder, column]]
    order = np.argsort(held, kind="stable")
    holder, held = holder[order], held[order]
    for start, vectors, lines in similarity_chunks(pairs, torch.from_numpy(average).to(shelf.device)):
        queries = vectors.cpu().numpy()
        for place, line in enumerate(lines):
            own = pairs.group[pairs.query[start + place]]
            changed = np.unique(holder[slice(*np.searchsorted(held, [own, own + 1]))])
            changed = changed[group[changed] != own]
            if len(changed):
                values = np.where(group[lists[changed]] == own, -np.inf, similarity[changed])
                kept = np.argsort(values == -np.inf, axis=1, kind="stable")[:, : chosen.neighbours]
                items = np.take_along_axis(lists[changed], kept, axis=1)
                values = np.take_along_axis(values, kept, axis=1)
                line[changed] = means(changed, items, values) @ queries[place]
            yield start + place, line


def _gallery_neighbours(pairs: Pairs, shelf: Tensor, count: int) -> tuple[Integers, Floats]:
    """Positions (G, M) of the nearest other gallery images of each, and their similarities; -inf: none."""
    everyone = Pairs(pairs.rows, pairs.codes, pairs.gallery, pairs.gallery, np.arange(len(pairs.rows)))
    lists = np.zeros((len(pairs.gallery), count), dtype=np.int64)
    similarity = np.full(lists.shape, -np.inf)
    for start, _, lines in similarity_chunks(everyone, shelf):
        for place, line in enumerate(lines, start):
            near = _nearest(line, count)
            lists[place, : len(near)], similarity[place, : len(near)] = near, line[near]
    return lists, similarity


def _reciprocal(pairs: Pairs, chosen: Reciprocal) -> Iterator[tuple[int, Floats]]:
    shelf = pairs.rows.float64(pairs.gallery)
    gallery = shelf.cpu().numpy()
    for start, vectors, lines in similarity_chunks(pairs, shelf):
        queries = vectors.cpu().numpy()
        for place, line in enumerate(lines):
            near = _nearest(line, chosen.depth + 1)
            if len(near) > chosen.depth:
                # Images that tie across the last place stay where they are: their order means nothing.
                near = near[line[near] > line[near[-1]] + TIE]
            if len(near):
                distance = reciprocal_distances(np.vstack([queries[place], gallery[near]]), chosen)
                line[near] = _BEFORE_ALL - distance
            yield start + place, line
