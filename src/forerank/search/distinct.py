"""Fewer but different results: one per class, with near-duplicates folded."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from forerank.search.engine import EVERYTHING, Filter, Vectors
from forerank.search.index import Hit, Index, Matches
from forerank.search.vote import VOTERS, Vote, calibrated_vote, vote_on_hits

DEEPEST = 2000  # images looked at for the sake of different ones
DUPLICATE = 0.98  # the similarity from which on `forerank duplicates` calls two images near-identical
MOST_FOLDED = 24  # folded images that are listed with one result


@dataclass(frozen=True)
class Result:
    """A hit that is shown, and those that are hidden behind it, nearest first."""

    hit: Hit
    folded: tuple[Hit, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a search found: `matches` as they were ranked, `results` as they are to be shown."""

    matches: Matches
    results: tuple[Result, ...]
    vote: Vote | None


def search_distinct(
    index: Index,
    query: Vectors,
    k: int,
    where: Filter = EVERYTHING,
    *,
    without: Collection[int] = (),
    one_per_class: bool = False,
    fold: float | None = None,
) -> Answer:
    """The k nearest results of a vector (D,).

    Args:
        index: where to search.
        query: unit vector (D,).
        k: results to show; hidden images do not count. Looked for among the nearest `DEEPEST` images.
        where: which images count.
        without: ids of images that are left out: the examples themselves.
        one_per_class: only the nearest image of each label is shown; images without a label all are.
        fold: hide an image behind a nearer one if the two are at least this similar.
    """
    thin = one_per_class or fold is not None
    voters, _ = calibrated_vote(index.meta) or (VOTERS, None)
    depth = max(k, voters)
    while True:
        nearest = index.search_vectors(query[None], depth, where, without=without)[0]
        hits = nearest.hits
        results = _thin_out(index, hits, one_per_class, fold) if thin else [Result(hit) for hit in hits]
        if len(results) >= k or len(nearest) < depth or depth >= DEEPEST:
            return Answer(
                Matches(hits, nearest.threshold), tuple(results[:k]), vote_on_hits(index.meta, hits)
            )
        depth = min(DEEPEST, 4 * depth)


def _thin_out(index: Index, hits: Sequence[Hit], one_per_class: bool, fold: float | None) -> list[Result]:
    shown: list[Hit] = []
    hidden: list[list[Hit]] = []
    of_label: dict[str, int] = {}
    vectors = index.engine.vectors([hit.id for hit in hits]) if fold is not None and hits else None
    leaders = list[int]()  # positions of the shown ones among the hits
    for position, hit in enumerate(hits):
        leader = of_label.get(hit.label) if one_per_class and hit.label else None
        if leader is None and vectors is not None and fold is not None and leaders:
            alike = vectors[leaders] @ vectors[position]  # (shown,)
            nearest = int(np.argmax(alike))
            # Rounding of a product of unit vectors: an image and its copy must not fall below 1.
            leader = nearest if alike[nearest] >= fold - 1e-6 else None
        if leader is None:
            if hit.label:
                of_label.setdefault(hit.label, len(shown))
            shown.append(hit)
            hidden.append([])
            leaders.append(position)
        elif len(hidden[leader]) < MOST_FOLDED:
            hidden[leader].append(hit)
    return [Result(hit, tuple(behind)) for hit, behind in zip(shown, hidden, strict=True)]
