"""Counting the whole gallery against the similarity of each positive."""

import numpy as np
import torch
from torch import Tensor

from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import TIE, Candidates, Integers, Positives


def count_gallery(
    rows: UnitRows,
    candidates: Candidates,
    chosen: Integers,
    positives: Positives,
    *,
    precision: str,
    memory: int,
    distributed: bool,
) -> tuple[Integers, Integers]:
    """Gallery items more similar than each positive (P,), and at least as similar (P,)."""
    total = len(positives.similarity)
    counts = torch.zeros(2, total, dtype=torch.int64)
    world = torch.distributed.get_world_size() if distributed else 1
    rank = torch.distributed.get_rank() if distributed else 0
    shard = np.array_split(candidates.gallery, world)[rank]
    step = 1024
    for start in range(0, len(chosen), step):
        counts += 0
        _count_float64(
            rows, candidates.queries[chosen[start : start + step]], shard, positives, start, counts
        )
    if distributed:
        torch.distributed.all_reduce(counts)
    return counts[0].numpy(), counts[1].numpy()


def _count_float64(
    rows: UnitRows, queries: Integers, gallery: Integers, positives: Positives, start: int, counts: Tensor
) -> None:
    offsets = torch.from_numpy(positives.offsets[start : start + len(queries) + 1])
    number = torch.diff(offsets)
    width = int(number.max())
    filled = torch.arange(width) < number[:, None]  # (C, W)
    threshold = torch.full((len(queries), width), np.inf, dtype=torch.float64)
    threshold[filled] = torch.from_numpy(positives.similarity[int(offsets[0]) : int(offsets[-1])])
    threshold = threshold.sort(dim=1).values
    query = rows.float64(queries)
    for begin in range(0, len(gallery), 2048):
        similarity = query @ rows.float64(gallery[begin : begin + 2048]).T
        base = torch.arange(len(queries))[:, None] * (width + 1)
        for row, edges, right in ((0, threshold + TIE, False), (1, threshold - TIE, True)):
            passed = torch.searchsorted(edges, similarity, right=right)  # thresholds that each item passes
            histogram = torch.bincount((base + passed).flatten(), minlength=len(queries) * (width + 1))
            histogram = histogram.view(len(queries), width + 1)
            at_least = histogram.flip(1).cumsum(1).flip(1)[:, 1:]  # items passing threshold 1, 2, ...
            # Ascending thresholds with padding last; positives are kept descending.
            ascending = at_least[filled]
            place = torch.repeat_interleave(offsets[1:] - 1, number) - (
                torch.arange(len(ascending)) - torch.repeat_interleave(offsets[:-1] - offsets[0], number)
            )
            counts[row, place] += ascending
