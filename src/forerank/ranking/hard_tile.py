"""Counting on one tile of similarities by torch: who is surely above a threshold, who is too near to tell.

The way for GPUs and for small sets. On a processor large sets are counted by `hard_kernel`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

FEW = 32  # up to one item in FEW that reaches a threshold: looked at one by one
CROWDED = 8  # more than one pair in CROWDED undecided: a finer screen is cheaper


class ThresholdBounds(NamedTuple):
    """Thresholds (C, P) of a block of queries, moved apart by the screen's margin, in the tile's type."""

    low: Tensor  # an item below is surely below the threshold
    high: Tensor  # an item above is surely above the threshold


class TileCounts(NamedTuple):
    """What a tile says about one side's queries."""

    sure: Tensor  # (C, P) items surely above each threshold
    query: Tensor  # (U,) undecided pairs: number of the query in its block,
    item: Tensor  # (U,) of the item in the other block,
    threshold: Tensor  # (U,) and of the threshold


def threshold_bounds(threshold: Tensor, margin: float, dtype: torch.dtype) -> ThresholdBounds:
    """Spread float64 thresholds (C, P) by the margin, rounded as the tile's numbers are."""
    # Rounding keeps order: a number of this type above the rounded limit is above the limit itself.
    return ThresholdBounds((threshold - margin).to(dtype), (threshold + margin).to(dtype))


def count_tile(tile: Tensor, bounds: ThresholdBounds) -> TileCounts | None:
    """Count on a tile (C, B) whose rows are queries; None if too much stays undecided.

    The thresholds of a query ascend: an item that does not reach the first reaches none.
    """
    query, item = torch.nonzero(tile >= bounds.low[:, :1], as_tuple=True)
    if len(query) * FEW > tile.numel():
        return _count_all(tile, bounds)
    value = tile[query, item][:, None]
    above = value > bounds.high[query]  # (n, P)
    sure = torch.zeros(bounds.low.shape, dtype=torch.int64, device=tile.device)
    sure.index_add_(0, query, above.long())
    which, threshold = torch.nonzero((value >= bounds.low[query]) & ~above, as_tuple=True)
    return TileCounts(sure, query[which], item[which], threshold)


def _count_all(tile: Tensor, bounds: ThresholdBounds) -> TileCounts | None:
    sure, undecided = torch.zeros_like(bounds.low, dtype=torch.int64), []
    room = tile.numel() // CROWDED
    for p, (low, high) in enumerate(zip(bounds.low.unbind(1), bounds.high.unbind(1), strict=True)):
        reached, passed = tile >= low[:, None], tile > high[:, None]
        sure[:, p] = passed.sum(dim=1, dtype=torch.int32)  # ten times as fast as into int64
        query, item = torch.nonzero(reached & ~passed, as_tuple=True)
        room -= len(query)
        if room < 0:
            return None
        undecided.append(torch.stack([query, item, torch.full_like(query, p)]))
    return TileCounts(sure, *torch.cat(undecided, dim=1))


def count_exact(tile: Tensor, bounds: ThresholdBounds) -> tuple[Tensor, Tensor]:
    """Items above each threshold (C, P), and tied with it, on a float64 tile: its limits enclose the ties."""
    above, tied = (torch.empty(bounds.low.shape, dtype=torch.int64, device=tile.device) for _ in range(2))
    for p, (low, high) in enumerate(zip(bounds.low.unbind(1), bounds.high.unbind(1), strict=True)):
        above[:, p] = (tile > high[:, None]).sum(dim=1, dtype=torch.int32)
        tied[:, p] = ((tile >= low[:, None]) & (tile <= high[:, None])).sum(dim=1, dtype=torch.int32)
    return above, tied
