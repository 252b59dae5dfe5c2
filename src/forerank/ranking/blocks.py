"""Counting the negatives before each positive, block by block, while the block is in cache."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from forerank.errors import InputError


class Penalty(Protocol):
    """What a positive costs, given what stands before it.

    Called with (C, P) tensors: the soft count of negatives before each positive, and the count of other
    positives before it (zeros unless the loss asks for them); and with (C, 1), the number of positives of
    the query. Returns the penalty and its derivative in each count, all (C, P); None for a derivative that
    is zero everywhere.
    """

    def __call__(
        self, negatives: Tensor, positives: Tensor, number: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class LinearTail:
    """Beyond a gap of `start`, count along a line of the given slope per unit of similarity, not the sigmoid.

    At a temperature of 0.01 a negative that stands 0.1 before a positive feels 2e-4 of the greatest pull;
    with a tail it is pulled as hard as the slope says. `jump` is added for every item that stands before at
    all. None of them may be negative.
    """

    start: float = 0.05
    slope: float = 100.0
    jump: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InputError(
                    f"the {name} of a linear tail must be a number of at least 0, not {value!r}."
                )


@dataclass(frozen=True)
class Interpolation:
    """Count hard, and differentiate through a piecewise-linear interpolation of the ranks."""

    strength: float = 4.0  # lambda: how far scores are moved along the gradient; larger is smoother
    margin: float = 0.02  # alpha: by how much scores are moved against the truth before they are ranked


@dataclass(frozen=True)
class CountSettings:
    """How counts are taken."""

    temperature: float = 0.01
    tail: LinearTail | None = None
    positives: str = "none"  # other positives before a positive: "none", "soft" or "hard" (no gradient)
    chunk_size: int | None = None  # queries in a chunk; None: as memory allows
    interpolation: Interpolation | None = None  # hard counts instead of soft ones; temperature is then 1
    normalise: bool = True  # False: the embeddings are taken as they are


@dataclass(frozen=True)
class Positives:
    """The positives of C queries."""

    scores: Tensor  # (C, P) similarity / temperature
    valid: Tensor  # (C, P) False where padded
    numbers: Tensor  # (C, 1) positives of each query
    total: int  # queries the loss is a mean of


def count_block(
    negatives: Tensor,
    of: Positives,
    penalty: Penalty,
    settings: CountSettings,
    with_gradient: bool,
    work: Tensor,
) -> tuple[Tensor, Tensor]:
    """Loss of C queries and its gradient in their scores.

    Args:
        negatives: (C, M) similarity / temperature, -inf where an item is not a negative. Overwritten: holds
            the gradient in them afterwards, if one is wanted.
        of: their positives.
        penalty: cost of a positive.
        settings: how to count.
        with_gradient: whether the gradient is wanted.
        work: memory for the sigmoids, at least M elements of it.

    Returns:
        The sum of the loss, a scalar, and the gradient in the positives' scores (C, P).
    """
    count, size = negatives.shape
    slots = of.scores.shape[1]
    group = max(1, min(slots, work.numel() // max(1, count * size)))
    loss, moved = negatives.new_zeros(()), torch.zeros_like(of.scores)
    standing = of.scores.masked_fill(~of.valid, torch.inf)  # nothing stands before a padded slot
    share = of.valid.to(negatives.dtype) / (of.numbers * of.total)  # (C, P)
    # Where one pass does not hold all positives, scores are needed to the end and gradients wait elsewhere.
    summed = negatives.new_zeros((count, 1, size) if group < slots else 0)
    for first in range(0, slots, group):
        part = slice(first, min(first + group, slots))
        taken = part.stop - first
        gaps = work[: count * taken * size].view(count, taken, size)
        torch.sub(negatives[:, None], standing[:, part, None], out=gaps)  # (C, G, M)
        before, slopes = _step(gaps, settings, with_gradient)
        among, among_slopes = _positives_before(of, standing, part, settings, with_gradient)
        # Penalties are few: in double precision they cost nothing and need no care with small differences.
        exact = torch.float32 if negatives.device.type == "mps" else torch.float64
        cost, slope, among_slope = penalty(before.to(exact), among.to(exact), of.numbers)
        loss += (cost * share[:, part]).sum().to(loss.dtype)
        if slopes is None:
            continue
        weight = slope.to(share.dtype) * share[:, part]  # (C, G)
        moved[:, part] -= weight * slopes.sum(-1)
        if group >= slots:
            torch.bmm(weight[:, None], slopes, out=negatives[:, None])
        else:
            summed.baddbmm_(weight[:, None], slopes)
        if among_slope is not None and among_slopes is not None:
            weight = among_slope.to(share.dtype) * share[:, part]
            moved[:, part] -= weight * among_slopes.sum(-1)
            moved += torch.bmm(weight[:, None], among_slopes)[:, 0]
    if group < slots:
        negatives.copy_(summed[:, 0])
    return loss, moved


def _step(gaps: Tensor, settings: CountSettings, with_slope: bool) -> tuple[Tensor, Tensor | None]:
    """The soft count of gaps / temperature over the last axis, and the slope of each; overwrites `gaps`."""
    tail = settings.tail
    if tail is None:
        heights = gaps.sigmoid_()
        count = heights.sum(-1)
        return count, torch.addcmul(heights, heights, heights, value=-1, out=heights) if with_slope else None
    start, slope = tail.start / settings.temperature, tail.slope * settings.temperature
    beyond = (gaps - start).clamp_min_(0)
    count = slope * beyond.sum(-1)
    if tail.jump:
        count += tail.jump * (gaps > 0).sum(-1)
    heights = gaps.clamp_max_(start).sigmoid_()
    count += heights.sum(-1)
    if not with_slope:
        return count, None
    curved = torch.addcmul(heights, heights, heights, value=-1, out=heights)
    return count, torch.where(beyond > 0, slope, curved)


def _positives_before(
    of: Positives, standing: Tensor, part: slice, settings: CountSettings, with_slope: bool
) -> tuple[Tensor, Tensor | None]:
    """Other positives before each positive of `part`: counts (C, G), slopes (C, G, P)."""
    if settings.positives == "none":
        return torch.zeros_like(standing[:, part]), None
    others = of.scores.masked_fill(~of.valid, -torch.inf)
    gaps = others[:, None] - standing[:, part, None]  # (C, G, P)
    places = torch.arange(gaps.shape[2], device=gaps.device)
    gaps.masked_fill_(places == places[part, None], -torch.inf)  # not before itself
    if settings.positives == "hard":
        return (gaps >= 0).sum(-1).to(gaps.dtype), None
    heights = gaps.sigmoid_()
    count = heights.sum(-1)
    return count, torch.addcmul(heights, heights, heights, value=-1, out=heights) if with_slope else None
