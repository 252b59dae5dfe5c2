"""The counter for processors: tiles are counted by compiled code, each by one thread from end to end.

Several threads on one tile would wait for each other after its product, and BLAS threads wait by spinning,
which takes from the counting what the product gained.
"""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numba import config
from numba.core.errors import NumbaError
from numpy.typing import NDArray
from torch import Tensor

from forerank.console import say_if_slow
from forerank.ranking import hard_blocks
from forerank.ranking import hard_kernel as kernel
from forerank.ranking import hard_screen as screen
from forerank.ranking.hard_blocks import Block, Queries
from forerank.ranking.hard_count import Counter, Sides, Tile
from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import compared
from forerank.ranking.hard_threads import one_thread_each, threads
from forerank.ranking.hard_tile import CROWDED, ThresholdBounds

SLAB = 64  # rows counted for both sides before the next ones: they stay in a core's own cache
LEAST = 512  # smaller tiles would cost more to set up than to count


class CompiledCounter(Counter):
    """Counts as `Counter` does, several times as fast."""

    wide = 256

    def side(self) -> int:
        """Smaller where many threads have a tile and two blocks each: they share a quarter of the memory."""
        side = hard_blocks.BLOCK
        while side > LEAST and threads() * side * (8 * side + 12 * self.rows.dim) > self.memory // 4:
            side //= 2
        return side

    def work(self, tiles: list[Tile]) -> None:
        """As many tiles at a time as torch has threads."""
        with ThreadPoolExecutor(threads()) as pool, one_thread_each():
            try:
                for one in [pool.submit(self.step, *tile) for tile in tiles]:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def room(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """A tile in the thread's own buffer, with some rows to spare behind it."""
        return super().room(dtype, rows + kernel.TOGETHER - 1, columns)[:rows]

    def count_sides(self, tile: Tensor, sides: Sides, dtype: torch.dtype) -> Sides:
        """Count a tile for its rows and perhaps its columns; returns those sides that need a finer screen."""
        if dtype == torch.bfloat16 and any(
            float(side.threshold_bounds(other, self.rows.dim, dtype).low.min()) <= 0 for side, other in sides
        ):
            return sides  # the bit patterns would mislead
        if dtype == torch.float64:
            for side, other in sides:  # one: see `count`
                self._exact(_array(tile), side, side.threshold_bounds(other, self.rows.dim, dtype))
            return []
        ways = [_Side(self.rows, *pair, dtype, along=1 - i) for i, pair in enumerate(sides)]
        height, width = -(-len(tile) // kernel.TOGETHER) * kernel.TOGETHER, tile.shape[1]
        whole = self.buffers.tile.view(dtype)[: height * width].view(height, width)
        whole[len(tile) :] = -2  # no items: below every threshold
        values = _array(whole)
        slab = np.empty((SLAB, width), dtype=np.int16)
        for start in range(0, height, SLAB):
            part = values[start : start + SLAB]
            if dtype == torch.float32:
                kernel.narrow(part, slab)
                part = slab[: len(part)]
            for way in ways:
                way.count(part, values, start, min(start + SLAB, len(tile)))
        return [pair for pair, way in zip(sides, ways, strict=True) if not way.add_counts()]

    def _exact(self, tile: NDArray[Any], side: Queries, bounds: ThresholdBounds) -> None:
        above, tied = np.zeros((2, *bounds.low.shape), dtype=np.int64)
        kernel.count_exact(tile, _array(bounds.low), _array(bounds.high), side.number.numpy(), above, tied)
        side.add(torch.from_numpy(above), torch.from_numpy(tied))


class _Side:
    """One side of a tile as the compiled code wants it."""

    def __init__(
        self, rows: UnitRows, block: Queries, other: Block, dtype: torch.dtype, *, along: int
    ) -> None:
        self.rows, self.block, self.other, self.along = rows, block, other, along
        low, high = (_array(x if along == 1 else x.T) for x in block.threshold_bounds(other, rows.dim, dtype))
        floor, ceiling = _narrow(low) - np.int16(1), _narrow(high)
        self.queries = kernel.Side(floor, ceiling, low, high, block.number.numpy())
        self.vectors, self.items = (x.unit(rows, torch.float32).numpy() for x in (block, other))
        # Items above each threshold, (C, P) or (P, C): a tile is far smaller than this type's largest number.
        self.above = np.zeros(low.shape, dtype=np.uint16)
        self.room = len(block) * len(other) // CROWDED
        step = kernel.TOGETHER * kernel.SEGMENT * block.threshold.shape[1]
        # Pairs (n, 3) too near to tell: query, item, threshold. And how many there are.
        self.rest, self.seen = np.empty((self.room + step + 1, 3), np.int32), np.zeros(1, dtype=np.int64)

    def count(self, slab: NDArray[np.int16], values: NDArray[Any], start: int, stop: int) -> None:
        """Count some rows of the tile, which `slab` holds as narrow numbers."""
        work = kernel.count_rows if self.along == 1 else kernel.count_columns
        work(slab, values, start, stop, self.queries, self.above, self.rest, self.seen, self.room)

    def add_counts(self) -> bool:
        """Decide what was left open and give the counts to the block; False if too much was near."""
        if self.seen[0] > self.room:
            return False
        above = np.ascontiguousarray(self.above if self.along == 1 else self.above.T, dtype=np.int64)
        tied, threshold = np.zeros_like(above), self.block.threshold.numpy()
        near, margin = self.rest[: self.seen[0]], screen.dot_margin(self.rows.dim)
        left = kernel.decide_open_pairs(self.vectors, self.items, threshold, margin, above, near)
        query, item, p = near[:left].T.astype(np.int64)
        if len(query):
            exact = self.rows.similarity(self.block.index[query], self.other.index[item]).numpy()
            both = compared(exact, threshold[query, p])
            for count, chosen in zip((above, tied), both, strict=True):
                np.add.at(count, (query[chosen], p[chosen]), 1)
        self.block.add(torch.from_numpy(above), torch.from_numpy(tied))
        return True


def usable(*, quick: bool) -> bool:
    """Whether compiled code can be had here: compiling and keeping it can fail in ways of its own."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return False
    try:
        with say_if_slow("compiling the counting code for this processor: once, some seconds"):
            for dtype in (np.float32, np.int16) if quick else (np.float32,):
                kernel.prepare(dtype)
    except (OSError, EOFError, pickle.UnpicklingError, NumbaError):  # a full disk, a damaged cache
        return False
    return True


def _array(tensor: Tensor) -> NDArray[Any]:
    # numpy has no bfloat16; from zero up its bit patterns order as the numbers do.
    whole = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return np.ascontiguousarray(whole.numpy())


def _narrow(limits: NDArray[Any]) -> NDArray[np.int16]:
    if limits.dtype == np.int16:
        return limits
    steps = np.empty(limits.shape, dtype=np.int16)
    kernel.narrow(limits, steps)
    return steps
