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
from typing import Any

import torch
from torch import Tensor

from forerank.ranking.blocks import CountSettings, LinearTail, Penalty, Positives, count_block
from forerank.ranking.classes import ClassColumns

__all__ = ["CountSettings", "LinearTail", "Penalty", "ranked_loss", "soft_count"]

# Bytes of a chunk's similarities and of a block's sigmoids. On a CPU a block should stay in the cache.
CHUNK_BYTES, BLOCK_BYTES = 32 << 20, 4 << 20
ACCELERATOR_BYTES = 256 << 20


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
        A scalar: float64 for float64 input, else float32. It can be differentiated once.
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
        query_grad: Tensor | None = None
        reference_grad: Tensor | None = None
        with torch.autocast(embeddings.device.type, enabled=False):
            units, lengths = _normalise(embeddings)
            parts = [(units, lengths)] if rank_batch else []
            parts += [_normalise(references)] if references is not None else []
            ranked = parts[0][0] if len(parts) == 1 else torch.cat([unit for unit, _ in parts])
            own = len(units) if rank_batch else 0
            # Columns that need a gradient come first: a bank of stored embeddings costs no backward product.
            live = len(ranked) if wanted[1] else own if wanted[0] else 0
            loss, query_grad, ranked_grad = _count(units, ranked, classes, penalty, settings, wanted[0], live)
            if query_grad is not None:
                if rank_batch:
                    query_grad += ranked_grad[:own]
                query_grad = _through_normalisation(query_grad, units, lengths)
            if wanted[1]:
                reference_grad = _through_normalisation(ranked_grad[own:], *parts[-1])
        ctx.save_for_backward(query_grad, reference_grad)
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


def _normalise(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (N, D) and lengths (N, 1), at least in single precision. A zero vector stays zero."""
    wide = vectors.detach().to(torch.promote_types(vectors.dtype, torch.float32))
    lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    return wide / torch.where(lengths == 0, 1, lengths), lengths


def _through_normalisation(grad: Tensor, units: Tensor, lengths: Tensor) -> Tensor:
    """The gradient in vectors from that in their unit vectors; a zero vector gets none."""
    grad = torch.addcmul(grad, (grad * units).sum(1, keepdim=True), units, value=-1)
    return grad.div_(torch.where(lengths == 0, torch.inf, lengths))


def _count(
    queries: Tensor,
    ranked: Tensor,
    classes: ClassColumns,
    penalty: Penalty,
    settings: CountSettings,
    query_wanted: bool,
    live: int,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Loss, its gradient in the queries (N, D), and in the first `live` ranked items (live, D)."""
    loss = queries.new_zeros(())
    query_grad = torch.zeros_like(queries) if query_wanted else None
    ranked_grad = ranked.new_zeros(live, ranked.shape[1])
    total = len(classes.numbers)
    if total == 0:
        # Nothing to rank, but NaN in, NaN out: a fault upstream must not pass for a perfect batch.
        return loss + 0 * queries.sum(), query_grad, ranked_grad

    row_bytes = len(ranked) * queries.element_size()
    on_cpu = queries.device.type == "cpu"
    chunk = settings.chunk_size or max(1, (CHUNK_BYTES if on_cpu else ACCELERATOR_BYTES) // row_bytes)
    chunk = min(chunk, total)
    budget = BLOCK_BYTES if on_cpu else ACCELERATOR_BYTES
    # Reused by every chunk: fresh memory of this size costs more than filling it.
    similarity = queries.new_empty(chunk, len(ranked))
    gradient = torch.empty_like(similarity) if query_wanted or live else None

    for first in range(0, total, chunk):
        last = min(first + chunk, total)
        found = classes.of_queries(first, last)
        scaled = queries[found.rows] / settings.temperature  # (C, D)
        scores = torch.mm(scaled, ranked.t(), out=similarity[: last - first])  # (C, M)
        positive = scores.gather(1, found.positives)  # (C, P)
        scores.scatter_(1, found.own_class, -math.inf)  # sigmoid(-inf) = 0: only negatives are left to count
        moved = torch.empty_like(positive)
        block = max(1, budget // (row_bytes * positive.shape[1]))
        for top in range(0, last - first, block):
            rows = slice(top, min(top + block, last - first))
            slots = classes.numbers[first + top]  # the most that any query of this block has
            of = Positives(
                positive[rows, :slots], found.valid[rows, :slots], found.numbers[rows], classes.total
            )
            into = None if gradient is None else gradient[rows]
            cost, moved[rows, :slots] = count_block(scores[rows], of, penalty, settings, into, budget)
            moved[rows, slots:] = 0
            loss += cost
        if gradient is None:
            continue
        folded = gradient[: last - first].scatter_add_(1, found.positives, moved)  # dL / d scores
        if query_grad is not None:
            query_grad[found.rows] = (folded @ ranked).div_(settings.temperature)
        if live:
            ranked_grad.addmm_(folded[:, :live].t(), scaled)
    return loss, query_grad, ranked_grad
