"""The soft count: how many stand before an item, differentiable, in memory that grows with one side of the
batch.

For a query with similarities s, R(i, S) = sum over j in S of sigmoid((s_j - s_i) / temperature). A ranking
loss is a penalty on R of each positive, averaged over the positives of a query and over the queries that
have one.

Peers hold a (B, B, B) tensor of differences. Here queries are taken in chunks: a chunk's similarities (C, M)
are one matrix product, its positives are compared with its negatives in blocks that stay in cache, and the
gradient of the chunk is folded into the gradient of the embeddings at once. Nothing of size (B, B) is ever
held, and because the gradient is made in the forward pass, similarities are computed once.
"""

import math
import threading
from typing import Any

import torch
from torch import Tensor

from forerank.ranking.blocks import CountSettings, LinearTail, Penalty, Positives, count_block
from forerank.ranking.classes import ClassColumns, QueryChunk
from forerank.ranking.interpolated import interpolate_block
from forerank.ranking.precision import whole_products

__all__ = ["CountSettings", "LinearTail", "Penalty", "ranked_loss", "soft_count"]

# Bytes of a chunk's similarities and of a block's sigmoids. On a CPU a block should stay in the cache.
CHUNK_BYTES, BLOCK_BYTES = 16 << 20, 4 << 20
ACCELERATOR_BYTES = 256 << 20
# Leave out the columns that no query of a chunk can feel if at most this share is left.
WORTHWHILE, SAMPLE = 0.7, 16  # looked at first: every 16th query
# The most that columns left out may add to an R together: what float64 cannot tell from nothing in 1 + R.
# Float32's would be too much: a steep penalty still sees it.
LEFT_OUT = 2.0**-54


def soft_count(items: Tensor, others: Tensor, temperature: float = 0.01) -> Tensor:
    """R(i, S) written out: how many of `others` (..., N) stand before each of `items` (..., P), softly.

    Holds a (..., P, N) tensor and goes through autograd: for understanding, figures and tests. Losses use
    `ranked_loss`, which gives the same numbers in far less memory.

    >>> soft_count(torch.tensor([0.5]), torch.tensor([0.9, 0.5, 0.1]))
    tensor([1.5000])
    """
    return torch.sigmoid((others.unsqueeze(-2) - items.unsqueeze(-1)) / temperature).sum(-1)


def ranked_loss(
    embeddings: Tensor,
    classes: ClassColumns,
    penalty: Penalty,
    settings: CountSettings,
    *,
    references: Tensor | None = None,
    rank_batch: bool = True,
) -> Tensor:
    """The mean penalty of a batch: over positives of a query, then over queries that have a positive.

    The ranked set of M items is the batch itself (if `rank_batch`) followed by `references` (if given).

    Args:
        embeddings: (N, D), of any length; they are normalised here.
        classes: which columns of the ranked set belong to the class of which query.
        penalty: the cost of a positive, from its counts.
        settings: temperature, tail, chunking.
        references: (K, D) further items to rank, with or without gradient.
        rank_batch: whether the batch itself is ranked.

    Returns:
        A scalar: float64 if any input is, else float32. It can be differentiated once.
    """
    wanted = (
        torch.is_grad_enabled() and embeddings.requires_grad,
        torch.is_grad_enabled() and references is not None and references.requires_grad,
    )
    arguments = (embeddings, references, classes, penalty, settings, rank_batch, wanted)
    loss: Tensor = _RankedLoss.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss


class _RankedLoss(torch.autograd.Function):
    """Makes the gradient beside the value, so that backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        references: Tensor | None,
        classes: ClassColumns,
        penalty: Penalty,
        settings: CountSettings,
        rank_batch: bool,
        wanted: tuple[bool, bool],
    ) -> Tensor:
        ctx.dtypes = (embeddings.dtype, None if references is None else references.dtype)
        with torch.autocast(embeddings.device.type, enabled=False), whole_products(embeddings.device.type):
            dtype = torch.promote_types(embeddings.dtype, torch.float32)
            if references is not None:
                dtype = torch.promote_types(dtype, references.dtype)
            units, lengths = _normalise(embeddings, dtype, settings)
            parts = [(units, lengths)] if rank_batch else []
            parts += [_normalise(references, dtype, settings)] if references is not None else []
            ranked = parts[0][0] if len(parts) == 1 else torch.cat([unit for unit, _ in parts])
            own = len(units) if rank_batch else 0
            # Columns that need a gradient come first: a bank of stored embeddings costs no backward product.
            live = len(ranked) if wanted[1] else own if wanted[0] else 0
            ranked_grad = torch.zeros_like(ranked[:live])
            # What is both query and ranked gathers both gradients in one place.
            query_grad = ranked_grad[:own] if rank_batch else torch.zeros_like(units)
            into = (query_grad if wanted[0] else None, ranked_grad if live else None)
            loss = _count(units, ranked, classes, penalty, settings, *into)
            saved = (
                _through_normalisation(query_grad, units, lengths) if wanted[0] else None,
                _through_normalisation(ranked_grad[own:], *parts[-1]) if wanted[1] else None,
            )
        ctx.save_for_backward(*saved)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Scaled before it is rounded to half precision: loss scaling then does what it is for.
        scaled = [
            None if saved is None else (saved * grad).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        if torch.is_grad_enabled():  # create_graph=True: it is wanted as a function
            scaled = [None if one is None else _once(one) for one in scaled]
        return (*scaled, None, None, None, None, None)


class _OnlyOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError("a ranking loss can be differentiated once, not twice.")


def _once(gradient: Tensor) -> Tensor:
    """The gradient, which refuses to be differentiated rather than pass for a constant."""
    guarded: Tensor = _OnlyOnce.apply(gradient.detach().requires_grad_())  # type: ignore[no-untyped-call]
    return guarded


def _normalise(vectors: Tensor, dtype: torch.dtype, settings: CountSettings) -> tuple[Tensor, Tensor | None]:
    """Unit vectors (N, D) and lengths (N, 1) in the given precision. A zero vector stays zero."""
    wide = vectors.detach().to(dtype)
    if not settings.normalise:
        return wide, None
    lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    if lengths.numel() == 0:
        return wide, lengths
    shortest, longest = torch.aminmax(lengths)
    plain = (shortest > torch.finfo(dtype).tiny ** 0.25) & (longest < math.inf)
    if wide.device.type == "cpu" and plain:
        return wide / lengths, lengths
    # Squares have overflowed or lost digits; or there is a zero vector, or NaN, which stays NaN.
    largest = wide.abs().amax(1, keepdim=True)
    scaled = wide / largest.masked_fill(largest == 0, 1)
    shares = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    units, careful = scaled / shares.masked_fill(shares == 0, 1), shares * largest
    if wide.device.type == "cpu":
        return units, careful
    # An accelerator computes both ways sooner than the host learns which one is needed.
    return torch.where(plain, wide / lengths, units), torch.where(plain, lengths, careful)


def _through_normalisation(grad: Tensor, units: Tensor, lengths: Tensor | None) -> Tensor:
    """The gradient in vectors from that in their unit vectors, in place; a zero vector gets none."""
    if lengths is None:
        return grad
    along = torch.linalg.vecdot(grad, units).unsqueeze(1)  # (N, 1)
    return grad.addcmul_(along, units, value=-1).div_(lengths.masked_fill(lengths == 0, math.inf))


def _count(
    queries: Tensor,
    ranked: Tensor,
    classes: ClassColumns,
    penalty: Penalty,
    settings: CountSettings,
    query_grad: Tensor | None,
    ranked_grad: Tensor | None,
) -> Tensor:
    """The loss; adds its gradient in queries (N, D) and in the first ranked items to the tensors given."""
    loss = queries.new_zeros(())
    total = len(classes.numbers)
    if total == 0:
        # Nothing to rank, but NaN in, NaN out: a fault upstream must not pass for a perfect batch.
        return loss + 0 * queries.sum()

    on_cpu = queries.device.type == "cpu"
    size, row_bytes = len(ranked), len(ranked) * queries.element_size()
    chunk = settings.chunk_size or max(1, (CHUNK_BYTES if on_cpu else ACCELERATOR_BYTES) // row_bytes)
    chunk = min(chunk, total)
    block_bytes = BLOCK_BYTES if on_cpu else ACCELERATOR_BYTES
    block_size = max(1, min(block_bytes // row_bytes, chunk * classes.numbers[0])) * size
    # One chunk that ranks the batch against itself: G X + G' X = (G + G') X is one product instead of two.
    symmetric = ranked is queries and classes.in_order and chunk == size and query_grad is not None
    area = chunk * size
    memory = _take_memory(area + max(block_size, area if symmetric else 0), queries)
    similarity, block = memory[:area].view(chunk, size), memory[area:][:block_size]
    scale = 1 / settings.temperature
    wanted = query_grad is not None or ranked_grad is not None
    out_of_reach = math.log(size) - math.log(LEFT_OUT)

    for first in range(0, total, chunk):
        last = min(first + chunk, total)
        asking = classes.of_queries(first, last)
        mine = queries[first:last] if classes.in_order else queries[asking.rows]  # (C, D)
        scores = similarity[: last - first]  # (C, M), in temperatures
        torch.addmm(scores, mine, ranked.t(), beta=0, alpha=scale, out=scores)
        positive = scores.gather(1, asking.positives)  # (C, P)
        scores.scatter_(1, asking.own_class, -math.inf)  # sigmoid(-inf) = 0: only negatives are left to count
        # All negatives so far behind the last positive add less than LEFT_OUT to its R.
        reach = positive.masked_fill(~asking.valid, math.inf).amin(1, keepdim=True) - out_of_reach
        kept = _columns_in_reach(scores, reach, asking) if on_cpu else None
        items, places = ranked, asking.positives
        if kept is not None:
            items, places = ranked[kept], torch.searchsorted(kept, asking.positives)
            scores = scores[:, kept]

        moved = torch.zeros_like(positive)
        taken = max(1, block.numel() // (scores.shape[1] * positive.shape[1]))
        for top in range(0, last - first, taken):
            rows = slice(top, min(top + taken, last - first))
            slots = classes.numbers[first + top]  # the most that any query of this block has
            of = Positives(
                positive[rows, :slots], asking.valid[rows, :slots], asking.numbers[rows], classes.total
            )
            if settings.interpolation is None:
                cost, gradient = count_block(scores[rows], of, penalty, settings, wanted, block)
            else:
                cost, gradient = interpolate_block(scores[rows], of, penalty, settings, wanted)
            moved[rows, :slots] = gradient
            loss += cost
        if not wanted:
            continue
        gradient = scores.scatter_add_(1, places, moved)  # dL / d scores
        if symmetric and kept is None and query_grad is not None:
            both = torch.add(gradient, gradient.t(), out=memory[area:][:area].view_as(gradient))
            query_grad.addmm_(both, ranked, alpha=scale)
            continue
        if query_grad is not None and classes.in_order:
            query_grad[first:last].addmm_(gradient, items, alpha=scale)
        elif query_grad is not None:
            query_grad.index_add_(0, asking.rows, gradient @ items, alpha=scale)
        if ranked_grad is not None and kept is None:
            ranked_grad.addmm_(gradient[:, : len(ranked_grad)].t(), mine, alpha=scale)
        elif ranked_grad is not None and kept is not None:
            live = int((kept < len(ranked_grad)).sum())
            ranked_grad.index_add_(0, kept[:live], gradient[:, :live].t() @ mine, alpha=scale)
    _give_back_memory(memory)
    return loss


def _columns_in_reach(scores: Tensor, reach: Tensor, asking: QueryChunk) -> Tensor | None:
    """Columns (sorted) where some query counts anything, if leaving out the others pays; else None.

    Scores out of reach become -inf. The gradient in a column of those is zero: the backward products can do
    without it.
    """
    if int((scores[::SAMPLE] < reach[::SAMPLE]).sum()) < (1 - WORTHWHILE) * scores[::SAMPLE].numel():
        return None
    idle = scores < reach  # NaN is not idle, so that it reaches the loss
    scores.masked_fill_(idle, -math.inf)
    used = idle.logical_not_().any(0)
    used[asking.positives] = True
    return used.nonzero()[:, 0] if int(used.sum()) < WORTHWHILE * len(used) else None


_spare = threading.local()


def _take_memory(count: int, like: Tensor) -> Tensor:
    """Uninitialised memory of `count` elements; on a CPU what the last call left, if it is enough.

    Fresh memory costs a page fault every 4 KiB, a fifth of the whole loss at B = 1,024. Accelerators'
    allocators keep memory themselves. It is taken away while in use, so that threads and nested calls do not
    share it.
    """
    kept: Tensor | None = _spare.__dict__.pop(str(like.dtype), None) if like.device.type == "cpu" else None
    return kept[:count] if kept is not None and kept.numel() >= count else like.new_empty(count)


def _give_back_memory(memory: Tensor) -> None:
    whole = memory if memory._base is None else memory._base
    fits = whole.numel() * whole.element_size() <= 2 * (CHUNK_BYTES + BLOCK_BYTES)
    if whole.device.type == "cpu" and fits and not whole.is_inference():
        setattr(_spare, str(whole.dtype), whole)
