"""How many labels are worth a look, and how many of those are likely wrong: measured by a spoil test.

Some labels are made wrong on purpose, and the audit is repeated. The spoiled labels show how suspicious a
wrong label looks on this data with this model. The real labels are a mixture of right and wrong ones; so at
every level of suspicion the wrong ones cannot be more than all the labels above it. The tightest of these
limits is the estimate. It is right as far as real mistakes look like labels drawn at random, and it is too
low where a mistake was learned by the model or lies between classes that look alike.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forerank.console import percent
from forerank.data import noisy_labels
from forerank.metrics import neighbours
from forerank.search.label_audit import Audit, AuditCounts, Floats, count_before

SPOILED = 0.05  # share of the labels that one spoil test makes wrong
ENOUGH = 200  # spoiled labels for a steady estimate; few images are spoiled several times
OWN_SEEDS = 7919  # far from the seeds of recipes: a label spoiled there must not be drawn again here
WORTH = 0.2  # the list ends where fewer than this share of it would be wrong


@dataclass(frozen=True)
class AuditClaim:
    """What an audit may claim: the first `shown` rows of `Audit.order()` are worth a look.

    >>> print(AuditClaim(images=2500, shown=63, wrong=13.2, spoiled=250, recall=0.94))
    63 of 2,500 labels are worth a look, about 13 of them wrong
    """

    images: int
    shown: int
    wrong: float  # how many of the shown labels are expected to be wrong
    spoiled: int  # labels that were made wrong on purpose, in all tests together
    recall: float  # share of those that the shown part of the list would have held

    def __str__(self) -> str:
        if not self.shown:
            return f"none of {self.images:,} labels stands out as worth a look"
        few = "is" if self.shown == 1 else "are"
        about = f"about {self.wrong:,.0f} of them" if self.wrong >= 0.5 else "probably none of them"
        return f"{self.shown:,} of {self.images:,} labels {few} worth a look, {about} wrong"

    def basis(self) -> str:
        """Where the numbers come from, in one sentence."""
        return (
            f"Estimated by making {self.spoiled:,} labels wrong on purpose, as if labels went wrong at "
            f"random: such a list holds {percent(self.recall, digits=0)} of them. "
            "A mistake between classes that look alike, or one that the model has learned, is harder to find"
        )


def expected_wrong(
    audit: Audit, vectors: npt.NDArray[Any], *, limit: float = 0.1, seed: int = 0
) -> AuditClaim:
    """Spoil some labels of the audited table, audit again, and say what the list is worth.

    Args:
        audit: the audit of the labels as they are.
        vectors: (N, D), the same as for the audit.
        limit: the same as for the audit.
        seed: of the labels to spoil.
    """
    table = audit.table
    size = len(table)
    near = neighbours(vectors, table.label_ids, k=audit.nearest.shape[1])
    train = table.with_columns(split=["train"] * size)  # every row of the table may be spoiled
    rate = max(SPOILED, 1 / size)
    tests = min(10, max(1, math.ceil(ENOUGH / (rate * size))))
    spoiled: list[Floats] = []
    for number in range(tests):
        worse = noisy_labels(train, rate, seed=OWN_SEEDS + seed + number)
        scores = _suspicion(count_before(vectors, worse, near, limit=limit))
        spoiled.append(scores[worse.label != table.label])
    spoiled_scores = np.sort(np.concatenate(spoiled))[::-1]
    scores = _suspicion(audit)[audit.order()]
    scores = scores[: int(audit.suspect.sum())]

    def recall(score: float) -> float:
        return float(np.mean(spoiled_scores >= score))

    # One label more than there are: where nothing is suspected the limit is one label and not none.
    everything = np.sort(_suspicion(audit))[::-1]
    # Levels that half of the spoiled labels or more reach: above them the counts are small, and their
    # smallest would be luck.
    places = np.ceil(np.linspace(0.5, 1, 11) * len(spoiled_scores)).astype(int) - 1
    levels = spoiled_scores[places]
    share = min(((everything >= level).sum() + 1) / recall(level) for level in levels) / size
    wrong = min(1.0, share) * size
    expected = np.array([wrong * recall(score) for score in scores])
    expected = np.minimum(expected, np.arange(1, len(scores) + 1))
    worth = np.flatnonzero(expected >= WORTH * np.arange(1, len(scores) + 1))
    shown = int(worth[-1]) + 1 if len(worth) else 0
    return AuditClaim(
        images=size,
        shown=shown,
        wrong=float(expected[shown - 1]) if shown else 0.0,
        spoiled=len(spoiled_scores),
        recall=recall(scores[shown - 1]) if shown else 0.0,
    )


def _suspicion(counts: Audit | AuditCounts) -> Floats:
    """(N,) one number by which `Audit.order` goes first: suspects above the others, then by chance."""
    suspicion: Floats = counts.suspect.astype(np.float64) + np.nan_to_num(counts.chance, nan=0.0)
    return suspicion
