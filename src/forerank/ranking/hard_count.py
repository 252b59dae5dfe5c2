"""Counting the whole gallery against the similarity of each positive, tile by tile.

A cheap product screens each tile of queries and gallery items; what its error bound cannot decide is decided
in float64, so the counts never depend on the precision, the tiles or the number of processes. Where queries
and gallery are the same rows a tile serves both its sides, and half of the product is never computed.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from forerank.ranking import hard_screen as screen
from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import TIE, Candidates, Integers, Positives
from forerank.ranking.hard_threads import in_parts
from forerank.ranking.hard_tile import MULTIPLE, Limits, Verdict, count_dense, count_sparse, limits

BLOCK = 2048
SAMPLE = 256  # gallery items that tell easy queries from hard ones
# What an item costs that reaches a query's lowest threshold, and one that a bfloat16 screen leaves undecided,
# in the time that screening one pair takes; a query is easy if that pays on average. Measured on two cores.
REACHED, UNDECIDED, EASY = 6.0, 100.0, 1.5
WIDE = 32  # a query with more positives is counted in float64 outright


@dataclass
class Block:
    """Rows that lie together in tiles; as queries they carry thresholds, as gallery items none are needed."""

    index: Integers  # (n,) rows of the embeddings
    threshold: Tensor | None = None  # (C, P) float64, padding +inf; None: only gallery items
    slot: Tensor | None = None  # (C, P) place of each in the flat list of positives, padding -1
    easy: bool = False
    vectors: dict[torch.dtype, Tensor] = field(default_factory=dict)  # while they are needed
    residual: float = 0.0  # how far rounding to bfloat16 moved a vector of this block at most
    bounds: dict[tuple[torch.dtype, float], Limits] = field(default_factory=dict)


class Counter:
    """The counts being added up, and how pairs are compared."""

    def __init__(self, rows: UnitRows, positives: Positives, area: int, *, quick: bool) -> None:
        self.rows, self.quick = rows, quick
        self.similarity = torch.from_numpy(positives.similarity).to(rows.device)
        self.counts = torch.zeros(2, len(positives.similarity), dtype=torch.int64, device=rows.device)
        # Products are written here over and over: fresh memory would cost a fifth of the time.
        self.buffer = torch.empty(2, area, device=rows.device)

    def vectors(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Unit vectors of a block, with zero rows at the end to a multiple of MULTIPLE."""
        if dtype not in block.vectors:
            made = torch.zeros(padded(len(block.index)), self.rows.dim, dtype=dtype, device=self.rows.device)
            if dtype == torch.bfloat16:
                exact = self.vectors(block, torch.float32)
                made.copy_(exact)
                # In coarse steps, so that blocks share their limits.
                block.residual = np.ceil(screen.residual(exact, made) / 1e-4) * 1e-4
            else:
                made[: len(block.index)] = self.rows.float32(block.index)
            block.vectors[dtype] = made
        return block.vectors[dtype]

    def limits(self, queries: Block, items: Block, dtype: torch.dtype) -> Limits:
        """The queries' thresholds spread by the margin of the screen."""
        key = (dtype, items.residual if dtype == torch.bfloat16 else 0.0)
        if key not in queries.bounds:
            assert queries.threshold is not None
            if dtype == torch.bfloat16:
                margin = screen.bfloat16_margin(self.rows.dim, queries.residual, items.residual)
            else:
                margin = screen.product_margin(self.rows.dim)
            queries.bounds[key] = limits(queries.threshold, margin, dtype)
        return queries.bounds[key]

    def count(self, queries: Block, items: Block, *, both: bool) -> None:
        """Count the tile for the queries and, if `both`, for the items as queries too."""
        quick = self.quick and queries.easy and (items.easy or not both)
        dtype = torch.bfloat16 if quick else torch.float32
        left, right = self.vectors(queries, dtype), self.vectors(items, dtype)
        area = len(left) * len(right)
        tile, spare = self.buffer.view(dtype)[:, :area].view(2, len(left), len(right)).unbind(0)
        if quick:
            torch.mm(left, right.T, out=tile)
        else:
            screen.product32(left, right, tile, spare)
        # Rows of padding are no items: below every threshold.
        tile[len(queries.index) :] = -2
        tile[:, len(items.index) :] = -2
        self._take(tile, queries, items, dtype, along=1)
        if both:
            self._take(tile, items, queries, dtype, along=0)

    def _take(self, tile: Tensor, queries: Block, items: Block, dtype: torch.dtype, along: int) -> None:
        bounds = self.limits(queries, items, dtype)
        verdict = (count_sparse if queries.easy else count_dense)(tile, bounds, along)
        assert queries.slot is not None
        filled = queries.slot >= 0
        self.counts[:, queries.slot[filled]] += verdict.sure[filled]
        if len(verdict.query):
            self._recount(verdict, queries, items, refine=dtype == torch.bfloat16)

    def _recount(self, verdict: Verdict, queries: Block, items: Block, *, refine: bool) -> None:
        assert queries.slot is not None
        slot = queries.slot[verdict.query, verdict.threshold]
        query, item = verdict.query, verdict.item
        if refine:
            value = self._dots(
                self.vectors(queries, torch.float32), self.vectors(items, torch.float32), query, item
            )
            gap = value.double() - self.similarity[slot]
            margin = screen.dot_margin(self.rows.dim)
            self._add(slot[gap > margin], (0, 1))
            open_ = gap.abs() <= margin
            slot, query, item = slot[open_], query[open_], item[open_]
        exact = self.rows.similarity(queries.index[query.cpu().numpy()], items.index[item.cpu().numpy()])
        gap = exact - self.similarity[slot]
        self._add(slot[gap > TIE], (0,))
        self._add(slot[gap >= -TIE], (1,))

    def _add(self, slot: Tensor, rows: tuple[int, ...]) -> None:
        for row in rows:
            self.counts[row].index_add_(0, slot, torch.ones_like(slot))

    def _dots(self, left: Tensor, right: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if left.device.type != "cpu":
            pieces = [slice(start, start + 65536) for start in range(0, len(i), 65536)]
            return torch.cat([(left[i[s]] * right[j[s]]).sum(dim=1) for s in pieces])
        a, b, ia, jb = left.numpy(), right.numpy(), i.numpy(), j.numpy()
        return torch.from_numpy(in_parts(lambda s: np.einsum("nd,nd->n", a[ia[s]], b[jb[s]]), len(ia), 512))


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
    queries, gallery = candidates.queries[chosen], candidates.gallery
    number = np.diff(positives.offsets)
    wide = number > (0 if precision == "float64" else WIDE)
    both = candidates.symmetric and len(chosen) == len(candidates.queries)
    quick = precision == "bfloat16" or (precision == "auto" and screen.bfloat16_is_faster(rows.device))
    area = min(BLOCK, padded(len(queries))) * min(BLOCK, padded(len(gallery)))
    counter = Counter(rows, positives, area, quick=quick)
    # Vectors of the queries in both precisions are kept if they fit beside the tiles and the thresholds.
    keep = 6 * rows.dim * len(queries) <= memory // 2
    rank, world = 0, 1
    if distributed:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    screened = np.flatnonzero((number > 0) & ~wide)
    with screen.exact_sums():
        if len(screened):
            blocks = _query_blocks(rows, queries, gallery, positives, screened)
            rest = queries[(number == 0) | wide] if both else gallery
            shelf = [*(blocks if both else []), *_plain_blocks(rest)]
            for j, item in list(enumerate(shelf))[rank::world]:
                for query in blocks[: j + 1] if both else blocks:
                    counter.count(query, item, both=both and query is not item and item.threshold is not None)
                    if not keep and query is not item:
                        query.vectors.clear()
                if not (keep and both):
                    item.vectors.clear()
        shard = np.array_split(gallery, world)[rank]
        for start in range(0, len(queries), 512):
            some = np.flatnonzero(wide[start : start + 512]) + start
            if len(some):
                _count_float64(rows, queries[some], shard, positives, some, counter.counts)
    if distributed:
        torch.distributed.all_reduce(counter.counts)
    return counter.counts[0].cpu().numpy(), counter.counts[1].cpu().numpy()


def padded(count: int) -> int:
    """The next multiple of MULTIPLE."""
    return -(-count // MULTIPLE) * MULTIPLE


def _plain_blocks(index: Integers) -> list[Block]:
    return [Block(index[start : start + BLOCK]) for start in range(0, len(index), BLOCK)]


def _query_blocks(
    rows: UnitRows, queries: Integers, gallery: Integers, positives: Positives, screened: Integers
) -> list[Block]:
    """Easy queries first, then the others by their number of positives, so that blocks are alike."""
    number = np.diff(positives.offsets)
    generator = np.random.default_rng(0)
    sample = rows.float32(generator.choice(gallery, min(SAMPLE, len(gallery)), replace=False))
    moved = screen.residual(sample, sample.bfloat16())
    margin = screen.bfloat16_margin(rows.dim, moved, moved)
    easy = np.empty(len(screened), dtype=bool)
    for start in range(0, len(screened), BLOCK):
        some = screened[start : start + BLOCK]
        threshold = _thresholds(positives, some, rows.device)[0][: len(some)]
        similarity = rows.float32(queries[some]) @ sample.T  # (C, S)
        lowest = threshold.min(dim=1, keepdim=True).values - margin
        cost = REACHED * (similarity >= lowest).float().mean(dim=1)
        for t in threshold.float().unbind(1):
            # Four times the window holds four times the items: a steadier guess from few.
            near = (similarity - t[:, None]).abs() <= 4 * margin
            cost += UNDECIDED / 4 * near.float().mean(dim=1)
        easy[start : start + BLOCK] = (cost <= EASY).cpu().numpy()
    order = screened[np.lexsort((number[screened], ~easy))]
    edges = int(easy.sum())
    blocks = []
    for group, is_easy in ((order[:edges], True), (order[edges:], False)):
        for start in range(0, len(group), BLOCK):
            some = group[start : start + BLOCK]
            blocks.append(Block(queries[some], *_thresholds(positives, some, rows.device), is_easy))
    return blocks


def _thresholds(positives: Positives, some: Integers, device: torch.device) -> tuple[Tensor, Tensor]:
    """Similarities (C, P) of the positives of some queries, and their places in the flat list of all."""
    begin = positives.offsets[some]
    number = positives.offsets[some + 1] - begin
    column = np.arange(number.max())
    slot = np.full((padded(len(some)), len(column)), -1, dtype=np.int64)
    slot[: len(some)] = np.where(column < number[:, None], begin[:, None] + column, -1)
    threshold = np.where(slot >= 0, positives.similarity[slot], np.inf)
    return torch.from_numpy(threshold).to(device), torch.from_numpy(slot).to(device)


def _count_float64(
    rows: UnitRows, queries: Integers, gallery: Integers, positives: Positives, some: Integers, counts: Tensor
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
    edges, order = torch.cat([threshold + TIE, threshold - TIE], dim=1).to(rows.device).sort(dim=1)
    query, bins = rows.float64(queries), 2 * width + 1
    base = torch.arange(len(queries), device=rows.device)[:, None] * bins
    histogram = torch.zeros(len(queries) * bins, dtype=torch.int64, device=rows.device)
    for begin in range(0, len(gallery), BLOCK):
        similarity = query @ rows.float64(gallery[begin : begin + BLOCK]).T
        passed = torch.searchsorted(edges, similarity, right=True)  # edges that each item reaches
        histogram += torch.bincount(passed.add_(base).flatten(), minlength=len(histogram))
    reached = histogram.view(-1, bins).flip(1).cumsum(1).flip(1)[:, 1:]  # items that reach edge 1, 2, ...
    reached = torch.empty_like(reached).scatter_(1, order, reached)
    counts[:, place.to(rows.device)] += reached.view(len(queries), 2, width).transpose(0, 1)[:, filled]
