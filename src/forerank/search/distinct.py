"""Fewer but different results: one per class, near-duplicates folded; and what the nearest labels say."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from forerank.search.engine import EVERYTHING, Filter, Vectors
from forerank.search.index import Hit, Index, Matches

VOTERS = 7  # the nearest images whose labels are counted
DEEPEST = 2000  # images looked at for the sake of different ones
DUPLICATE = 0.98  # the similarity from which on `forerank duplicates` calls two images near-identical
MOST_FOLDED = 24  # folded images that are told of one result


@dataclass(frozen=True)
class Result:
    """A hit that is shown, and those that are hidden behind it, nearest first."""

    hit: Hit
    folded: tuple[Hit, ...] = ()


@dataclass(frozen=True)
class Vote:
    """The label that most of the nearest images have."""

    label: str
    votes: int
    voters: int
    similarity: float  # of the nearest image that has it

    def __str__(self) -> str:
        return f"{self.label}: {self.votes} of the {self.voters} nearest, similarity {self.similarity:.2f}"


def vote(hits: Sequence[Hit], voters: int = VOTERS) -> Vote | None:
    """What the nearest labelled images are called; the nearer label wins a tie. None where none has a label.

    >>> hits = [Hit(i + 1, i, "", label, 0.9 - i / 10) for i, label in enumerate("abbac")]
    >>> print(vote(hits, 4))
    a: 2 of the 4 nearest, similarity 0.90
    """
    labelled = [hit for hit in hits if hit.label][:voters]
    if not labelled:
        return None
    labels = [hit.label for hit in labelled]
    best = max(dict.fromkeys(labels), key=labels.count)  # the first of equals: labels are in order of rank
    return Vote(best, labels.count(best), len(labels), labelled[labels.index(best)].similarity)


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
    depth = max(k, VOTERS)
    while True:
        nearest = index.search_vectors(query[None], depth, where, without=without)[0]
        hits = nearest.hits
        results = _thin_out(index, hits, one_per_class, fold) if thin else [Result(hit) for hit in hits]
        if len(results) >= k or len(nearest) < depth or depth >= DEEPEST:
            return Answer(Matches(hits, nearest.threshold), tuple(results[:k]), vote(hits))
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
