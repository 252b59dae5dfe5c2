"""Blocks of queries and gallery items that are compared with each other as one tile, and how finely."""

import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.ranking import hard_screen as screen
from forerank.ranking.hard_rows import UnitRows
from forerank.ranking.hard_same import Integers, Thresholds
from forerank.ranking.hard_tile import ThresholdBounds, threshold_bounds

BLOCK = 2048  # rows and columns of a tile
SAMPLE = 128  # gallery items that tell easy queries from hard ones
# Pairs that a bfloat16 screen may leave undecided, of all pairs of a query and an item, before a float32
# product is the cheaper way. Measured on two cores.
EASY = 0.02
WIDTHS = (16, 64)  # easy queries with up to so many thresholds go together


@dataclass
class Block:
    """Rows that lie together in tiles, as gallery items."""

    index: Integers  # (n,) rows of the embeddings
    vectors: dict[torch.dtype, Tensor] = field(default_factory=dict)  # while they are needed
    residual: float = 0.0  # how far rounding to bfloat16 moved a vector of this block at most

    def __len__(self) -> int:
        return len(self.index)

    def unit(self, rows: UnitRows, dtype: torch.dtype) -> Tensor:
        """The unit vectors (n, D), kept until `vectors` is replaced; only float64 is made again each time."""
        if dtype == torch.float64:
            return rows.float64(self.index)
        vectors = self.vectors  # another thread may replace it meanwhile
        if dtype not in vectors:
            exact = vectors.get(torch.float32)
            if exact is None:
                exact = vectors.setdefault(torch.float32, rows.float32(self.index))
            if dtype == torch.bfloat16:
                rounded = exact.bfloat16()
                # In coarse steps, so that blocks share their limits. Known before anybody sees the vectors.
                self.residual = np.ceil(screen.residual(exact, rounded) / 1e-4) * 1e-4
                vectors[dtype] = rounded
        return vectors[dtype]


class Queries(Block):
    """Rows that are queries too, with the similarities of their positives as thresholds."""

    def __init__(
        self, index: Integers, positives: Thresholds, some: Integers, rows: UnitRows, dtype: torch.dtype
    ) -> None:
        super().__init__(index)
        self.dtype = dtype  # the coarsest screen that makes sense for these queries
        self.threshold, self.slot = _thresholds(positives, some, rows.device)
        self.number = (self.slot >= 0).sum(dim=1)
        self.above, self.tied = torch.zeros(2, *self.slot.shape, dtype=torch.int64, device=rows.device)
        self.lock = threading.Lock()
        self.bounds: dict[tuple[torch.dtype, float], ThresholdBounds] = {}

    def add(self, above: Tensor, tied: Tensor) -> None:
        """Add what a tile says: items above each threshold (n, P), and tied with it."""
        with self.lock:
            self.above += above
            self.tied += tied

    def threshold_bounds(self, other: "Block", dim: int, dtype: torch.dtype) -> ThresholdBounds:
        """The thresholds spread by the error of a product of that type with the other block."""
        rounding = other.residual if dtype == torch.bfloat16 else 0.0
        if (dtype, rounding) not in self.bounds:
            margin = screen.margin(dtype, dim, self.residual, rounding)
            self.bounds[dtype, rounding] = threshold_bounds(self.threshold, margin, dtype)
        return self.bounds[dtype, rounding]


def plain_blocks(index: Integers, size: int) -> list[Block]:
    """Gallery items that are no queries."""
    return [Block(index[start : start + size]) for start in range(0, len(index), size)]


def query_blocks(
    rows: UnitRows,
    queries: Integers,
    gallery: Integers,
    positives: Thresholds,
    some: Integers,
    size: int,
    *,
    quick: bool,
    distributed: bool,
) -> list[Queries]:
    """Blocks of the queries at the places `some`: easy ones first, then by their number of positives.

    `quick`: the easy ones are to be screened in bfloat16.
    """
    number = np.diff(positives.offsets)[some]
    easy, height = np.zeros(len(some), dtype=bool), np.zeros(len(some))
    if quick:
        easy, height = _judge(rows, queries, gallery, positives, some)
    # Easy queries alike in what reaches them lie together: most stretches of a tile then hold nothing at all.
    # But not few thresholds beside many: a block is as wide as its widest query.
    like = np.where(easy, np.searchsorted(WIDTHS, number), number)
    order = np.lexsort((-height, like, ~easy))
    place = torch.from_numpy(np.append(some[order], easy.sum())).to(rows.device)
    if distributed:  # guesses may differ from process to process, but they must share one plan
        torch.distributed.broadcast(place, 0)
    plan = place.cpu().numpy()
    order, edge, blocks = plan[:-1], int(plan[-1]), []
    for group, dtype in ((order[:edge], torch.bfloat16), (order[edge:], torch.float32)):
        for start in range(0, len(group), size):
            part = group[start : start + size]
            blocks.append(Queries(queries[part], positives, part, rows, dtype))
    return blocks


def _judge(
    rows: UnitRows, queries: Integers, gallery: Integers, positives: Thresholds, some: Integers
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which queries a bfloat16 screen decides well, judged by a sample of the gallery.

    Also how far their lowest threshold lies above the sample, in standard deviations.
    """
    generator = np.random.default_rng(0)
    sample = rows.float32(generator.choice(gallery, min(SAMPLE, len(gallery)), replace=False))
    moved = screen.residual(sample, sample.bfloat16())
    margin = screen.margin(torch.bfloat16, rows.dim, moved, moved)
    easy, height = np.empty(len(some), dtype=bool), np.empty(len(some))
    for start in range(0, len(some), BLOCK):
        part = some[start : start + BLOCK]
        threshold = _thresholds(positives, part, rows.device)[0].float()
        similarity = rows.float32(queries[part]) @ sample.T  # (C, S)
        undecided = torch.zeros(len(part), device=rows.device)
        for t in threshold.unbind(1):
            # Four times the window holds four times the items: a steadier guess from few.
            undecided += ((similarity - t[:, None]).abs() <= 4 * margin).float().mean(dim=1) / 4
        # Bit patterns of bfloat16 order like the numbers only from zero up.
        here = (undecided <= EASY) & (threshold[:, 0] > 2 * margin)
        spread = similarity.std(dim=1, correction=0) + margin
        easy[start : start + BLOCK] = here.cpu().numpy()
        height[start : start + BLOCK] = ((threshold[:, 0] - similarity.mean(dim=1)) / spread).cpu().numpy()
    return easy, height


def _thresholds(positives: Thresholds, some: Integers, device: torch.device) -> tuple[Tensor, Tensor]:
    """Similarities (C, P) of the positives of some queries, ascending, and their places in the flat list."""
    end = positives.offsets[some + 1]
    number = end - positives.offsets[some]
    column = np.arange(number.max())
    slot = np.where(column < number[:, None], end[:, None] - 1 - column, -1)
    threshold = np.where(slot >= 0, positives.similarity[slot], np.inf)
    return torch.from_numpy(threshold).to(device), torch.from_numpy(slot).to(device)
