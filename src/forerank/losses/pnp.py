"""The PNP losses: only the negatives that stand before a positive cost anything."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerank.errors import InputError, unknown
from forerank.losses.base import RankingLoss

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Curve:
    """A penalty as a function of R, the number of negatives before a positive, with its derivative."""

    name: str
    formula: str
    derivative: str
    value: Function
    slope: Function


def _o(alpha: float, b: float) -> Curve:
    return Curve("O", "R", "1", lambda r: r, torch.ones_like)


def _iu(alpha: float, b: float) -> Curve:
    return Curve(
        "Iu",
        "(1 + R) log(1 + R)",
        "1 + log(1 + R)",
        lambda r: (1 + r) * torch.log1p(r),
        lambda r: 1 + torch.log1p(r),
    )


def _iu_exact(alpha: float, b: float) -> Curve:
    return Curve(
        "Iu_exact",
        "(1 + R) log(1 + R) - R",
        "log(1 + R)",
        lambda r: (1 + r) * torch.log1p(r) - r,
        torch.log1p,
    )


def _ib(alpha: float, b: float) -> Curve:
    return Curve(
        "Ib",
        "(b R - log(1 + b R)) / b^2",
        "R / (1 + b R)",
        lambda r: (b * r - torch.log1p(b * r)) / b**2,
        lambda r: r / (1 + b * r),
    )


def _ds(alpha: float, b: float) -> Curve:
    return Curve("Ds", "log(1 + R)", "1 / (1 + R)", torch.log1p, lambda r: 1 / (1 + r))


def _dq(alpha: float, b: float) -> Curve:
    # The power itself overflows: 191 ** 18 in float32, 101 ** 4 in float16.
    return Curve(
        "Dq",
        "1 - (1 + R)^-alpha",
        "alpha / (1 + R)^(alpha + 1)",
        lambda r: -torch.expm1(-alpha * torch.log1p(r)),
        lambda r: alpha * torch.exp(-(alpha + 1) * torch.log1p(r)),
    )


# The paper's five, and the integral of the derivative that it prints for Iu.
VARIANTS: dict[str, Callable[[float, float], Curve]] = {
    "O": _o,
    "Iu": _iu,
    "Iu_exact": _iu_exact,
    "Ib": _ib,
    "Ds": _ds,
    "Dq": _dq,
}


class PNPLoss(RankingLoss):
    """Penalise the negatives that stand before each positive (PNP).

    Args:
        variant: how the penalty grows with R, the soft number of negatives before a positive:
            "O" R; "Iu" (1+R) log(1+R); "Iu_exact" (1+R) log(1+R) - R; "Ib" (bR - log(1+bR)) / b²;
            "Ds" log(1+R); "Dq" 1 - (1+R)^-alpha. The D variants let go of positives with many negatives
            before them, which is what makes them robust; Dq is the paper's best.
        alpha: of Dq, at least 1.
        b: of Ib, positive.
        temperature, count_self, linear_tail, gather, chunk_size: see `RankingLoss`.

    Shape:
        embeddings (N, D), labels (N,) to a scalar.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]], requires_grad=True)
        >>> loss = PNPLoss("Dq", alpha=4)(embeddings, torch.tensor([0, 0, 1, 1]))
        >>> loss.backward()
        >>> round(loss.item(), 4), embeddings.grad.shape
        (0.9626, torch.Size([4, 2]))

    References:
        Li et al., Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances before
        Positive Ones is Enough, AAAI 2022.
    """

    def __init__(
        self,
        variant: str = "Dq",
        *,
        alpha: float = 4.0,
        b: float = 2.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if not isinstance(variant, str) or variant not in VARIANTS:
            raise unknown("PNP variant", variant, VARIANTS)
        if not alpha >= 1 or not math.isfinite(alpha):
            raise InputError(f"alpha must be at least 1, not {alpha!r}.")
        if not b > 0 or not math.isfinite(b):
            raise InputError(f"b must be a positive number, not {b!r}.")
        self.variant, self.alpha, self.b = variant, float(alpha), float(b)
        self.curve = VARIANTS[variant](self.alpha, self.b)

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        return self.curve.value(negatives), self.curve.slope(negatives), None
