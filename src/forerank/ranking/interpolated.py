"""Hard ranks that can be differentiated: exact forward, interpolated backward (blackbox differentiation).

A rank is a step function of the scores, with a gradient of zero. Instead of softening the step, the scores
are moved along the loss's gradient in the ranks, by `strength` (lambda), and ranked again. The difference of
the two ranks divided by lambda is the gradient of a piecewise-linear function between the two.
"""

import torch
from torch import Tensor

from forerank.ranking.blocks import CountSettings, Interpolation, Penalty, Positives


def interpolate_block(
    negatives: Tensor, of: Positives, penalty: Penalty, settings: CountSettings, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss of C queries from hard ranks, and its interpolated gradient in their scores; see `count_block`.

    Ranks are divided by the number M of ranked items, as the authors do: lambda is in proportion to that. A
    negative that is as similar as a positive stands before it; equal positives stand in the order of their
    columns. The derivative of `penalty` in the negatives is taken as that in the rank of the positive, and
    its rank among the positives as a constant. Nothing larger than (C, M) and (C, P, P) is held.

    Returns:
        The sum of the loss, a scalar, and the gradient in the positives' scores (C, P). That in the negatives
        overwrites `negatives`.
    """
    interpolation = settings.interpolation or Interpolation()
    size = negatives.shape[1]
    sound = ~(negatives.isnan().any() | of.scores.isnan().any())
    others = negatives + interpolation.margin / 2  # (C, M), -inf where an item is not a negative
    ascending = others.sort(1).values
    standing = (of.scores - interpolation.margin / 2).masked_fill(~of.valid, -torch.inf)  # (C, P)
    before, among = _negatives_before(ascending, standing), _positives_before(standing)
    exact = torch.float32 if negatives.device.type == "mps" else torch.float64
    cost, slope, _ = penalty(before.to(exact), among.to(exact), of.numbers)
    share = of.valid.to(negatives.dtype) / (of.numbers * of.total)  # (C, P)
    # NaN in, NaN out: a comparison with NaN would count it as nothing.
    loss = (cost * share).sum().to(negatives.dtype).where(sound, torch.nan)
    if not with_gradient:
        return loss, torch.zeros_like(standing)
    step = interpolation.strength * size * slope.to(share.dtype) * share  # lambda dL / d(rank / M)
    moved = standing + step
    ranks = before + among
    ranks_after = _negatives_before(ascending, moved) + _positives_before(moved)
    scale = 1 / (interpolation.strength * size)
    # A negative's rank changes by the positives that pass it.
    passed = _positives_above(moved, others) - _positives_above(standing, others)
    negatives.copy_(passed * scale)
    return loss, ((ranks_after - ranks) * scale * of.valid).to(negatives.dtype)


def _negatives_before(ascending: Tensor, items: Tensor) -> Tensor:
    """How many of the sorted negatives (C, M) stand before each item (C, P)."""
    return ascending.shape[1] - torch.searchsorted(ascending, items.contiguous())


def _positives_before(items: Tensor) -> Tensor:
    """How many of the positives (C, P) stand before each of them."""
    places = torch.arange(items.shape[1], device=items.device)
    gaps = items[:, None] - items[:, :, None]  # (C, P, P): the other minus this one
    return ((gaps > 0) | ((gaps == 0) & (places < places[:, None]))).sum(-1)


def _positives_above(items: Tensor, others: Tensor) -> Tensor:
    """How many of the positives (C, P) are more similar than each of the others (C, M)."""
    return items.shape[1] - torch.searchsorted(items.sort(1).values, others, right=True)
