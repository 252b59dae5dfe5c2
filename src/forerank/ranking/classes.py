"""Which items of a ranked set share a query's class: any class sizes, any order, no (B, B) mask."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class QueryChunk:
    """The columns that matter to C queries, in the ranked set of M items."""

    rows: Tensor  # (C,) which queries
    own_class: Tensor  # (C, W) columns of the query's class; short rows repeat a column
    positives: Tensor  # (C, P) columns of its positives; short rows repeat a column
    valid: Tensor  # (C, P) False where a row of `positives` is padding
    numbers: Tensor  # (C, 1) positives of each query


@dataclass(frozen=True)
class ClassColumns:
    """Own-class columns for every query that has a positive, queries with most positives first.

    Neighbouring queries then have nearly the same number of positives, so that little is padded.
    """

    rows: Tensor  # (Q,) queries with at least one positive
    numbers: list[int]  # their numbers of positives, descending
    sizes: Tensor  # (Q,) own-class items in the ranked set
    starts: Tensor  # (Q,) where the class begins in `order`
    skipped: Tensor  # (Q,) place of the query itself in its class, to be left out; past the end for nothing
    order: Tensor  # (M,) columns of the ranked set, sorted by class
    skips: bool  # whether every query leaves itself out of its class
    in_order: bool  # whether `rows` are simply 0..Q-1
    total: int  # queries the loss is a mean of; more than Q where other processes hold the rest

    @classmethod
    def build(
        cls,
        query_codes: Tensor,
        ranked_codes: Tensor,
        *,
        own_columns: Tensor | None = None,
        count_self: bool = False,
        keep: slice | Tensor = slice(None),
        device: torch.device | None = None,
    ) -> "ClassColumns":
        """From class codes 0..K-1 of queries (N,) and ranked items (M,).

        Best from codes on the host: sizes and numbers are values, and each that is read from an accelerator
        makes the host wait for it.

        Args:
            query_codes: (N,) int64.
            ranked_codes: (M,) int64.
            own_columns: (N,) the column that is the query itself, where the batch is ranked against itself.
            count_self: whether that column is a positive.
            keep: the queries to be taken here; the others count in the mean but are another process's work.
            device: where the embeddings are; default where the codes are.
        """
        device = query_codes.device if device is None else device
        largest = max((int(codes.max()) for codes in (query_codes, ranked_codes) if len(codes)), default=-1)
        counts = torch.bincount(ranked_codes, minlength=largest + 1)  # (K,)
        order = torch.argsort(ranked_codes, stable=True)
        class_starts = counts.cumsum(0) - counts
        sizes, starts = counts[query_codes], class_starts[query_codes]
        skipped = sizes
        if own_columns is not None and not count_self:
            places = torch.empty_like(order)
            places[order] = torch.arange(len(order), device=order.device)
            skipped = places[own_columns] - starts
        numbers = sizes - (skipped < sizes).to(sizes.dtype)
        # A query needs a positive other than itself.
        eligible = sizes > (0 if own_columns is None else 1)
        total = int(eligible.sum())
        rows = torch.arange(len(query_codes), device=query_codes.device)[keep]
        rows = rows[torch.argsort(numbers[rows], descending=True, stable=True)]
        rows = rows[eligible[rows]]
        in_order = torch.equal(rows, torch.arange(len(rows), device=rows.device))
        of_rows: list[int] = numbers[rows].tolist()
        skips = own_columns is not None and not count_self
        rows, sizes, starts, skipped, order = (
            part.to(device, non_blocking=True)
            for part in (rows, sizes[rows], starts[rows], skipped[rows], order)
        )
        return cls(rows, of_rows, sizes, starts, skipped, order, skips, in_order, total)

    def of_queries(self, first: int, last: int) -> QueryChunk:
        """The columns of queries `first` to `last` (exclusive) of `rows`."""
        sizes, starts, skipped = (x[first:last, None] for x in (self.sizes, self.starts, self.skipped))
        width = self.numbers[first] + self.skips  # the first has most
        slots = torch.arange(width, device=sizes.device)
        own_class = self.order[starts + torch.minimum(slots, sizes - 1)]
        slots = slots[: self.numbers[first]]
        numbers = sizes - (skipped < sizes).to(sizes.dtype)
        # Past the query itself, every slot moves on by one.
        positives = self.order[starts + torch.minimum(slots + (slots >= skipped), sizes - 1)]
        return QueryChunk(self.rows[first:last], own_class, positives, slots < numbers, numbers)
