"""The hard rank of every positive: how many negatives stand before it, counted exactly.

No list of neighbours is made. For each positive the whole gallery is counted against one number, its
similarity; recall, average precision and the rest follow from the counts (see `forerank.metrics`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerank.ranking.hard_count import count_gallery
from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import Candidates, Integers, positives_of, same_label

MEMORY = 512 << 20


@dataclass(frozen=True)
class HardRanks:
    """Negatives before each positive of some queries, ragged: query i owns offsets[i]:offsets[i+1].

    The positives of a query stand most similar first, so the p-th of them (from 0) has the rank
    `p + above + 1`, or `p + above + tied + 1` where equal negatives are put before it.
    """

    queries: Integers  # (Q,) positions in the list of queries
    offsets: Integers  # (Q + 1,)
    similarity: NDArray[np.float64]  # (P,) of the positive
    above: Integers  # (P,) negatives more similar
    tied: Integers  # (P,) negatives exactly as similar

    def ranks(self, *, pessimistic: bool = True) -> Integers:
        """Rank (P,) of each positive among positives and negatives, from 1."""
        position = np.arange(len(self.above)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return position + 1 + self.above + (self.tied if pessimistic else 0)


def hard_ranks(
    rows: UnitRows,
    labels: Integers,
    *,
    queries: Integers | None = None,
    gallery: Integers | None = None,
    ignore: Integers | None = None,
    precision: str = "auto",
    memory: int = MEMORY,
    distributed: bool = False,
) -> Iterator[HardRanks]:
    """Count the negatives before each positive, for all queries, a part of them at a time.

    Args:
        rows: the embeddings as unit vectors.
        labels: (N,) integer codes.
        queries, gallery: row numbers; default all. A query is never its own candidate.
        ignore: (N,) codes; gallery items with the query's label and its code are left out.
        precision: what screens the pairs: "auto", "bfloat16", "float32" or "float64". The counts are the
            same: what a screen cannot decide within its error bound is decided in float64.
        memory: bytes the counting may use above the embeddings.
        distributed: split the gallery over the processes of torch.distributed; all get the whole result.

    Example:
        >>> from forerank.ranking.hard_rows import unit_rows
        >>> rows = unit_rows(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0]]))
        >>> (part,) = hard_ranks(rows, np.array([0, 1, 0, 1]))
        >>> part.queries.tolist(), part.above.tolist()  # one positive each
        ([0, 1, 2, 3], [1, 2, 1, 1])
    """
    everyone = np.arange(len(rows), dtype=np.int64)
    candidates = Candidates(
        everyone if queries is None else queries, everyone if gallery is None else gallery, labels, ignore
    )
    same = same_label(candidates)
    for chosen in _parts(same.count, memory):
        positives = positives_of(rows, candidates, same, chosen)
        above, reach = count_gallery(
            rows, candidates, chosen, positives, precision=precision, memory=memory, distributed=distributed
        )
        above -= positives.same_above
        reach -= positives.same_from
        yield HardRanks(chosen, positives.offsets, positives.similarity, above, reach - above)


def _parts(pairs: Integers, memory: int) -> Iterator[Integers]:
    """Consecutive queries whose positives together fit in a quarter of the memory (64 bytes per pair)."""
    limit = max(1, memory // 4 // 64)
    total = np.cumsum(np.maximum(pairs, 1))
    start = 0
    while start < len(pairs):
        before = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + limit, side="right")))
        yield np.arange(start, stop, dtype=np.int64)
        start = stop
