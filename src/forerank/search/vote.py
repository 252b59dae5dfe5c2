"""What the nearest images are called: the one vote of the page, command line, calibration and audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from forerank.search.index import Hit

T = TypeVar("T")
VOTERS = 7  # the nearest labelled images that vote where no vote was calibrated


@dataclass(frozen=True)
class Vote:
    """The most frequent label of the nearest images, and whether it is trusted."""

    label: str
    votes: int
    voters: int
    similarity: float  # of the nearest image that has the label
    support: float  # sum of the similarities of the images that have the label, divided by the voters
    threshold: float | None = None  # the support from which on the vote is trusted, if it was calibrated

    @property
    def trusted(self) -> bool:
        """Whether the support reaches the threshold; true where there is none."""
        return self.threshold is None or self.support >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "trusted": self.trusted}

    def __str__(self) -> str:
        if self.threshold is None:
            return (
                f"{self.label}: {self.votes} of the {self.voters} nearest, similarity {self.similarity:.2f}"
            )
        said = f"{self.label}, support" if self.trusted else f"no match, {self.label} has support"
        return (
            f"the nearest {self.voters} vote: {said} {self.support:.4f}; trusted from {self.threshold:.4f} on"
        )


def most_frequent(labels: Sequence[T]) -> T:
    """The most frequent of labels that stand nearest first; of equally frequent ones the nearest.

    >>> most_frequent(["pen", "cup", "cup", "pen"])
    'pen'
    """
    return max(dict.fromkeys(labels), key=labels.count)


def count_votes(
    labels: Sequence[str], similarities: Sequence[float], voters: int = VOTERS, threshold: float | None = None
) -> Vote | None:
    """The vote of the first `voters` labelled images, nearest first; None where no image has a label.

    `most_frequent` says which label wins. Its support is high where the nearest images agree and are similar.

    >>> print(count_votes(["cup", "", "pen", "cup"], [0.9, 0.85, 0.8, 0.7]))
    cup: 2 of the 3 nearest, similarity 0.90
    >>> print(count_votes(["cup", "pen", "cup"], [0.9, 0.8, 0.6], threshold=0.6))
    the nearest 3 vote: no match, cup has support 0.5000; trusted from 0.6000 on
    """
    asked = [pair for pair in zip(labels, similarities, strict=True) if pair[0]][:voters]
    if not asked:
        return None
    names = [label for label, _ in asked]
    winner = most_frequent(names)
    own = [similarity for label, similarity in asked if label == winner]
    return Vote(winner, len(own), len(asked), own[0], sum(own) / len(asked), threshold)


def calibrated_vote(meta: Mapping[str, Any]) -> tuple[int, float] | None:
    """How many images vote and from which support on they are trusted, if the index stores that."""
    stored = (meta.get("threshold") or {}).get("vote")
    return None if stored is None else (int(stored["neighbours"]), float(stored["similarity"]))


def vote_on_hits(meta: Mapping[str, Any], hits: Sequence[Hit]) -> Vote | None:
    """The vote of hits, nearest first, by the rule that is stored in the meta data of their index."""
    voters, threshold = calibrated_vote(meta) or (VOTERS, None)
    return count_votes([hit.label for hit in hits], [hit.similarity for hit in hits], voters, threshold)
