"""The counter for processors: tiles are counted by compiled code, each by one thread from end to end.

Several threads on one tile would wait for each other after its product, and BLAS threads wait by spinning,
which takes from the counting what the product gained.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.ranking import hard_blocks
from forerank.ranking import hard_kernel as kernel
from forerank.ranking import hard_screen as screen
from forerank.ranking.hard_blocks import Block, Queries
from forerank.ranking.hard_count import Counter, Sides, Tile
from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import TIE
from forerank.ranking.hard_threads import one_thread_each
from forerank.ranking.hard_tile import CROWDED

SLAB = 64  # rows counted for both sides before the next ones: they stay in a core's own cache
LEAST = 512  # smaller tiles would cost more to set up than to count
Counts = NDArray[np.uint32]
Rest = NDArray[np.int32]  # (n, 3) query, item and threshold of pairs that are still open


class CompiledCounter(Counter):
    """Counts as `Counter` does, several times as fast."""

    wide = 256

    def side(self) -> int:
        """Smaller where many threads have a tile each: together they get a quarter of the memory."""
        side = hard_blocks.BLOCK
        while side > LEAST and torch.get_num_threads() * 4 * side**2 > self.memory // 4:
            side //= 2
        return side

    def work(self, tiles: list[Tile]) -> None:
        """As many tiles at a time as torch has threads."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool, one_thread_each():
            waiting = [pool.submit(self.step, *tile) for tile in tiles]
            try:
                for one in waiting:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def room(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """A tile in the thread's own buffer, with some rows to spare behind it."""
        return super().room(dtype, rows + kernel.TOGETHER - 1, columns)[:rows]

    def take(self, tile: Tensor, sides: Sides, dtype: torch.dtype) -> Sides:
        """Count a tile for its rows and perhaps its columns; returns those sides that need a finer screen."""
        if dtype == torch.bfloat16 and any(
            float(side.limits(other, self.rows.dim, dtype).low.min()) <= 0 for side, other in sides
        ):
            return sides  # the bit patterns would mislead
        if dtype == torch.float64:
            for pair, exact in zip(sides, (tile, tile.T), strict=False):
                way = _Side(self.rows, *pair, dtype, along=1)
                kernel.count_exact(_array(exact), way.queries, *way.counts)
                way.finish()
            return []
        ways = [_Side(self.rows, *pair, dtype, along=1 - i) for i, pair in enumerate(sides)]
        height, width = -(-len(tile) // kernel.TOGETHER) * kernel.TOGETHER, tile.shape[1]
        whole = self.buffers.tile.view(dtype)[: height * width].view(height, width)
        whole[len(tile) :] = -2  # no items: below every threshold
        values, room = _array(whole), tile.numel() // CROWDED
        for start in range(0, len(tile), SLAB):
            for way in ways:
                way.count(values, start, min(start + SLAB, len(tile)), room)
        for way in ways:
            if way.near <= room:
                way.finish()
        return [pair for pair, way in zip(sides, ways, strict=True) if way.near > room]


class _Side:
    """One side of a tile as the compiled code wants it."""

    def __init__(
        self, rows: UnitRows, block: Queries, other: Block, dtype: torch.dtype, *, along: int
    ) -> None:
        self.rows, self.block, self.other, self.along = rows, block, other, along
        low, high = (_array(x if along == 1 else x.T) for x in block.limits(other, rows.dim, dtype))
        threshold, vectors = block.threshold.numpy(), block.unit(rows, torch.float32).numpy()
        number = block.number.numpy()
        self.queries = kernel.Side(low, high, number, threshold, vectors)
        self.items = other.unit(rows, torch.float32).numpy()
        self.margin = screen.dot_margin(rows.dim)
        # Items above each threshold and tied with it, both (C, P) or (P, C).
        self.counts: tuple[Counts, Counts] = np.zeros(low.shape, np.uint32), np.zeros(low.shape, np.uint32)
        # Twice what a step of the compiled code may need, so that it seldom stops early.
        step = kernel.TOGETHER * len(other if along == 1 else block) * threshold.shape[1]
        self.rest = np.empty((2 * step, 3), dtype=np.int32)
        self.open: list[Rest] = []
        self.near = 0  # pairs too near for the screen

    def count(self, values: NDArray[Any], start: int, stop: int, room: int) -> None:
        """Count some rows of the tile, and keep what stays open, unless too many pairs have been near."""
        work = kernel.count_rows if self.along == 1 else kernel.count_columns
        while start < stop and self.near <= room:
            seen = np.zeros(2, dtype=np.int64)
            start = work(
                values, start, stop, self.queries, self.items, self.margin, self.counts[0], self.rest, seen
            )
            self.near += int(seen[1])
            if seen[0]:
                self.open.append(self.rest[: seen[0]].copy())

    def finish(self) -> None:
        """Decide what was left open and give the counts to the block."""
        if self.open:
            query, item, p = np.concatenate(self.open).T.astype(np.int64)
            exact = self.rows.similarity(self.block.index[query], self.other.index[item]).numpy()
            gap = exact - self.queries.threshold[query, p]
            place = (query, p) if self.along == 1 else (p, query)
            for count, chosen in zip(self.counts, (gap > TIE, np.abs(gap) <= TIE), strict=True):
                np.add.at(count, tuple(x[chosen] for x in place), 1)
        counts = np.stack(self.counts).astype(np.int64)
        self.block.add(*torch.from_numpy(counts if self.along == 1 else counts.transpose(0, 2, 1)))


def _array(tensor: Tensor) -> NDArray[Any]:
    # numpy has no bfloat16; from zero up its bit patterns order as the numbers do.
    whole = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return np.ascontiguousarray(whole.numpy())
