"""Counting on one tile of similarities: who is surely above a threshold, who is too near to tell."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.ranking.hard_threads import in_parts, in_slices

MULTIPLE = 8  # sides of a tile are multiples of it: eight flags are added up as one integer
SLAB = 64  # rows counted together: 64 x 2,048 float32 and their flags stay in a core's own cache


class Limits(NamedTuple):
    """Thresholds of a block of queries, moved apart by the screen's margin. Padding is +inf."""

    low: Tensor  # (C, P) an item below is surely below the threshold
    high: Tensor  # (C, P) an item above is surely above the threshold
    lowest_bits: Tensor  # (C,) the lowest `low` of each query, as the bit pattern of the tile's type


class Verdict(NamedTuple):
    """What a tile says about one side's queries."""

    sure: Tensor  # (C, P) items surely above each threshold
    query: Tensor  # (U,) undecided pairs: number of the query in its block,
    item: Tensor  # (U,) of the item in the other block,
    threshold: Tensor  # (U,) and of the threshold


def limits(threshold: Tensor, margin: float, dtype: torch.dtype) -> Limits:
    """Spread float64 thresholds (C, P) by the margin, rounded as the tile's numbers are."""
    # Rounding keeps order: a number of this type above the rounded limit is above the limit itself.
    low, high = ((threshold + d).to(dtype).float() for d in (-margin, margin))
    lowest = low.min(dim=1).values
    whole = torch.int16 if dtype == torch.bfloat16 else torch.int32
    bits = lowest.to(dtype).view(whole)
    # Bit patterns order like the numbers only from zero up; else let every item through.
    return Limits(low, high, torch.where(lowest > 0, bits, torch.iinfo(whole).min))


def count_sparse(tile: Tensor, bounds: Limits, along: int) -> Verdict:
    """Where few items reach a query's lowest threshold: pick those, then look at them closely.

    `along` is the axis of the items: 1 if the queries are the tile's rows, 0 if they are its columns.
    """
    row, column = _reaching(tile, bounds.lowest_bits, along)
    value = tile[row, column].float()[:, None]
    query, item = (row, column) if along == 1 else (column, row)
    high, low = bounds.high[query], bounds.low[query]  # (n, P)
    above = value > high
    sure = torch.zeros(bounds.low.shape, dtype=torch.int64, device=tile.device)
    sure.index_add_(0, query, above.long())
    which, threshold = torch.nonzero((value >= low) & ~above, as_tuple=True)
    return Verdict(sure, query[which], item[which], threshold)


def _reaching(tile: Tensor, lowest: Tensor, along: int) -> tuple[Tensor, Tensor]:
    """Rows and columns where the tile's bit patterns are at least `lowest`, one for each query."""
    bits = tile.view(lowest.dtype)
    if tile.device.type != "cpu":
        row, column = torch.nonzero(bits >= (lowest[:, None] if along == 1 else lowest), as_tuple=True)
        return row, column
    # As integers, bfloat16 compares in numpy too, and faster than in torch.
    array, limit = bits.numpy(), lowest.numpy()

    def slab(some: slice) -> NDArray[np.int64]:
        reached = array[some] >= (limit[some, None] if along == 1 else limit)
        where: NDArray[np.int64] = np.flatnonzero(reached) + some.start * array.shape[1]
        return where

    found = torch.from_numpy(in_parts(slab, len(array), SLAB // 2))
    row = torch.div(found, array.shape[1], rounding_mode="floor")
    return row, found - row * array.shape[1]


def count_dense(tile: Tensor, bounds: Limits, along: int) -> Verdict:
    """Where thresholds lie among the bulk of the items: compare everything with each of them."""
    if tile.device.type != "cpu":
        return _count_dense_torch(tile, bounds, along)
    array = tile.numpy()
    # (P, C): one threshold of all queries lies together, or comparing columns would crawl.
    low, high = (np.ascontiguousarray(x.numpy().T) for x in (bounds.low, bounds.high))

    def slab(some: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        part, own = array[some], some if along == 1 else slice(None)
        sure = np.zeros((low[0, own].size, len(low)), dtype=np.int64)
        undecided = []  # places in (P, rows, columns), flat
        reached, passed = np.empty(part.shape, dtype=bool), np.empty(part.shape, dtype=bool)
        for p in range(len(low)):
            floor, ceiling = low[p, own], high[p, own]
            if np.isposinf(ceiling).all():
                break  # padding only from here on
            if along == 1:
                floor, ceiling = floor[:, None], ceiling[:, None]
            np.greater_equal(part, floor, out=reached)
            np.greater(part, ceiling, out=passed)
            sure[:, p] = _ones(passed, along)
            np.not_equal(reached, passed, out=reached)
            undecided.append(reached.ravel().nonzero()[0] + (p * array.size + some.start * array.shape[1]))
        return sure, np.concatenate(undecided) if undecided else np.empty(0, dtype=np.int64)

    results = in_slices(slab, len(array), SLAB)
    sure = np.concatenate([s for s, _ in results]) if along == 1 else np.sum([s for s, _ in results], axis=0)
    threshold, place = np.divmod(np.concatenate([found for _, found in results]), array.size)
    row, column = np.divmod(place, array.shape[1])
    pair = (row, column) if along == 1 else (column, row)
    return Verdict(*(torch.from_numpy(x) for x in (sure, *pair, threshold)))


def _ones(mask: NDArray[np.bool_], along: int) -> NDArray[np.int64]:
    """How many are true along an axis: eight bytes are added as one integer, never past 255 each."""
    words = mask.view(np.int64)  # (rows, columns / 8), a counter in each byte
    if along == 0:  # at most SLAB rows: no byte overflows
        counters: NDArray[np.uint8] = words.sum(axis=0).view(np.uint8)
        return counters.astype(np.int64)
    sums = np.add.reduceat(words, range(0, words.shape[1], 128), axis=1).view(np.uint8)
    total: NDArray[np.int64] = sums.sum(axis=1, dtype=np.int64)
    return total


def _count_dense_torch(tile: Tensor, bounds: Limits, along: int) -> Verdict:
    tile = tile if along == 1 else tile.T
    sure = torch.stack([(tile > h[:, None]).sum(dim=1) for h in bounds.high.unbind(1)], dim=1)
    found = []
    for p, (low, high) in enumerate(zip(bounds.low.unbind(1), bounds.high.unbind(1), strict=True)):
        query, item = torch.nonzero((tile >= low[:, None]) & (tile <= high[:, None]), as_tuple=True)
        found.append(torch.stack([query, item, torch.full_like(query, p)]))
    return Verdict(sure, *torch.cat(found, dim=1))
