"""Counting the whole gallery against the similarity of each positive, tile by tile.

A cheap product screens each tile of queries and gallery items; what its error bound cannot decide is decided
in float64, so the counts never depend on the precision, the tiles or the number of processes. Where queries
and gallery are the same rows a tile serves both its sides, and half of the product is never computed.
"""

import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from forerank.machine import check_bf16
from forerank.ranking import hard_blocks
from forerank.ranking import hard_screen as screen
from forerank.ranking.hard_blocks import Block, Queries, plain_blocks, query_blocks
from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import TIE, Candidates, Integers, Thresholds, compared
from forerank.ranking.hard_tile import TileCounts, count_exact, count_tile

DOTS = 4096  # pairs whose vectors are gathered together
# Pairs from which compiled code pays, though compiling it takes seconds the first time on a machine; and from
# which a second screen does, for which it is compiled again.
LARGE, HUGE = 1 << 24, 1 << 28
Tile = tuple[Queries, Block, bool]  # and whether both are queries
Sides = list[tuple[Queries, Block]]
FINER = {torch.bfloat16: torch.float32, torch.float32: torch.float64}


class Counter:
    """Counts on tiles, and how pairs are compared."""

    wide = 32  # a query with more positives is counted in float64 outright

    def __init__(self, rows: UnitRows, memory: int, *, keep: bool) -> None:
        self.rows, self.memory, self.keep = rows, memory, keep
        # Products are written here over and over: fresh memory would cost a fifth of the time.
        self.buffers = threading.local()
        self.lock, self.uses = threading.Lock(), dict[int, int]()

    def side(self) -> int:
        """How many rows and columns a tile should have."""
        return hard_blocks.BLOCK

    def run(self, tiles: list[Tile]) -> None:
        """Count all tiles."""
        for tile in tiles:
            self.uses[id(tile[1])] = self.uses.get(id(tile[1]), 0) + 1
        self.work(tiles)

    def work(self, tiles: list[Tile]) -> None:
        """One after the other: torch has its own threads."""
        for tile in tiles:
            self.step(*tile)

    def step(self, queries: Queries, items: Block, both: bool) -> None:
        """Count a tile, then free the vectors that are no longer needed."""
        self.count(queries, items, both)
        with self.lock:
            self.uses[id(items)] -= 1
            done = self.uses[id(items)] == 0
        if not self.keep:
            queries.vectors = {}
        if done and not (self.keep and isinstance(items, Queries)):
            items.vectors = {}

    def count(self, queries: Queries, items: Block, both: bool) -> None:
        """Count a tile for the queries and, if `both`, for the items as queries too."""
        sides = [(queries, items), *([(items, queries)] if both and isinstance(items, Queries) else [])]
        dtype = max((side.dtype for side, _ in sides), key=_bytes)
        if dtype == torch.float64 and len(sides) == 2:  # no room for a transposed copy of the tile
            self.count(queries, items, False)
            return self.count(sides[1][0], queries, False)
        left, right = queries.unit(self.rows, dtype), items.unit(self.rows, dtype)
        tile = self.room(dtype, len(left), len(right))
        screen.product(left, right, tile)
        for side, other in self.count_sides(tile, sides, dtype):
            side.dtype = max(side.dtype, FINER[dtype], key=_bytes)
            self.count(side, other, False)

    def room(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """A tile in the buffer."""
        size = -(-rows * columns * dtype.itemsize // 8)
        if not hasattr(self.buffers, "tile") or size > len(self.buffers.tile):
            self.buffers.tile = torch.empty(size, dtype=torch.float64, device=self.rows.device)
        tile: Tensor = self.buffers.tile.view(dtype)[: rows * columns].view(rows, columns)
        return tile

    def count_sides(self, tile: Tensor, sides: Sides, dtype: torch.dtype) -> Sides:
        """Count a tile for its rows and perhaps its columns; returns those sides that need a finer screen."""
        crowded = []
        for (side, other), values in zip(sides, (tile, tile.T), strict=False):
            bounds = side.threshold_bounds(other, self.rows.dim, dtype)
            if dtype == torch.float64:
                side.add(*count_exact(values, bounds))
            elif (counts := count_tile(values, bounds)) is None:
                crowded.append((side, other))
            else:
                self._decide(counts, side, other)
        return crowded

    def _decide(self, counts: TileCounts, side: Queries, other: Block) -> None:
        above, query, item, p = counts
        tied = torch.zeros_like(above)
        threshold = side.threshold[query, p]
        gap = self._dots(side, other, query, item) - threshold
        margin = screen.dot_margin(self.rows.dim)
        sure, open_ = gap > margin, gap.abs() <= margin
        above.index_put_((query[sure], p[sure]), torch.ones_like(p[sure]), accumulate=True)
        query, item, p = query[open_], item[open_], p[open_]
        exact = self.rows.similarity(side.index[query.cpu().numpy()], other.index[item.cpu().numpy()])
        for count, chosen in zip((above, tied), compared(exact, threshold[open_]), strict=True):
            count.index_put_((query, p), chosen.long(), accumulate=True)
        side.add(above, tied)

    def _dots(self, side: Block, other: Block, query: Tensor, item: Tensor) -> Tensor:
        left, right = side.unit(self.rows, torch.float32), other.unit(self.rows, torch.float32)
        dots = torch.empty(len(query), dtype=torch.float64, device=query.device)
        for start in range(0, len(query), DOTS):
            some = slice(start, start + DOTS)
            dots[some] = (left[query[some]].double() * right[item[some]].double()).sum(dim=1)
        return dots


def count_gallery(
    rows: UnitRows,
    candidates: Candidates,
    chosen: Integers,
    positives: Thresholds,
    *,
    precision: str,
    memory: int,
    distributed: bool,
) -> tuple[Integers, Integers]:
    """Gallery items more similar than each positive (P,), and at least as similar (P,)."""
    if precision == "bfloat16":
        check_bf16(rows.device.type)
    queries, gallery = candidates.queries[chosen], candidates.gallery
    number = np.diff(positives.offsets)
    both = candidates.symmetric and len(chosen) == len(candidates.queries)
    rank, world = 0, 1
    if distributed:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    # Worker threads do not inherit the mode, and cannot write to tensors made in it.
    with torch.inference_mode(False), torch.no_grad(), screen.exact_sums():
        counts = torch.zeros(2, len(positives.similarity), dtype=torch.int64, device=rows.device)
        pairs = len(queries) * len(gallery)
        quick = precision == "bfloat16" or (
            precision == "auto" and pairs >= HUGE and screen.bfloat16_is_faster(rows.device)
        )
        # Vectors of the queries in both precisions are kept if they fit beside the tiles and the thresholds.
        keep = 6 * rows.dim * len(queries) <= memory // 2
        counter = _counter(rows.device, pairs, quick=quick)(rows, memory, keep=keep)
        settings = torch.tensor([quick, counter.wide, counter.side()], device=rows.device)
        if distributed:  # guesses may differ from process to process, but they must share one plan
            torch.distributed.broadcast(settings, 0)
        quick, most, side = bool(settings[0]), int(settings[1]), int(settings[2])
        wide = number > (0 if precision == "float64" else most)

        screened = np.flatnonzero((number > 0) & ~wide)
        if len(screened):
            blocks = query_blocks(
                rows, queries, gallery, positives, screened, side, quick=quick, distributed=distributed
            )
            rest = queries[(number == 0) | wide] if both else gallery
            shelf = [*(blocks if both else []), *plain_blocks(rest, side)]
            counter.run([
                (query, item, both and query is not item)
                for j, item in list(enumerate(shelf))[rank::world]
                for query in (blocks[: j + 1] if both else blocks)
            ])  # fmt: skip
            for query in blocks:
                filled = query.slot >= 0
                counts[0, query.slot[filled]] = query.above[filled]
                counts[1, query.slot[filled]] = (query.above + query.tied)[filled]
            del blocks, shelf
        del counter
        shard = np.array_split(gallery, world)[rank]
        for some in _alike(np.flatnonzero(wide), number, memory // 512):
            _count_float64(rows, queries[some], shard, positives, some, counts)
        if distributed:
            torch.distributed.all_reduce(counts)
    above, reach = counts.cpu().numpy()
    return above, reach


def _alike(some: Integers, number: Integers, most: int) -> Iterator[Integers]:
    """Parts of the queries: similar numbers of positives, and `most` of them together (or one query)."""
    some = some[np.argsort(number[some], kind="stable")]
    while len(some):
        area = number[some] * np.arange(1, len(some) + 1)
        stop = max(1, min(512, int(np.searchsorted(area, most, side="right"))))
        yield some[:stop]
        some = some[stop:]


def _bytes(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _counter(device: torch.device, pairs: int, *, quick: bool) -> type[Counter]:
    if device.type == "cpu" and pairs >= LARGE:
        try:
            from forerank.ranking.hard_compiled import CompiledCounter, usable
        except (ImportError, OSError):  # numba is missing, or does not work with this numpy
            return Counter
        return CompiledCounter if usable(quick=quick) else Counter
    return Counter


def _count_float64(
    rows: UnitRows,
    queries: Integers,
    gallery: Integers,
    positives: Thresholds,
    some: Integers,
    counts: Tensor,
) -> None:
    """Queries with many positives: find each item's place among the sorted thresholds, in float64."""
    number = torch.from_numpy(positives.offsets[some + 1] - positives.offsets[some])
    width = int(number.max())
    column = torch.arange(width)
    filled = column < number[:, None]  # (C, P)
    # Ascending thresholds; positives are kept descending.
    place = (torch.from_numpy(positives.offsets[some + 1])[:, None] - 1 - column)[filled]
    threshold = torch.full((len(queries), width), np.inf, dtype=torch.float64)
    threshold[filled] = torch.from_numpy(positives.similarity)[place]
    # One sorted list of both edges of every tie zone: an item's place in it answers all questions.
    over = torch.nextafter(
        threshold + TIE, torch.tensor(np.inf, dtype=torch.float64)
    )  # reached if above + TIE
    edges, order = torch.cat([over, threshold - TIE], dim=1).to(rows.device).sort(dim=1)
    query, bins = rows.float64(queries), 2 * width + 1
    base = torch.arange(len(queries), device=rows.device)[:, None] * bins
    histogram = torch.zeros(len(queries) * bins, dtype=torch.int64, device=rows.device)
    for begin in range(0, len(gallery), hard_blocks.BLOCK):
        similarity = query @ rows.float64(gallery[begin : begin + hard_blocks.BLOCK]).T
        passed = torch.searchsorted(edges, similarity, right=True)  # edges that each item reaches
        histogram += torch.bincount(passed.add_(base).flatten(), minlength=len(histogram))
    reached = histogram.view(-1, bins).flip(1).cumsum(1).flip(1)[:, 1:]  # items that reach edge 1, 2, ...
    reached = torch.empty_like(reached).scatter_(1, order, reached)
    counts[:, place.to(rows.device)] += reached.view(len(queries), 2, width).transpose(0, 1)[:, filled]
