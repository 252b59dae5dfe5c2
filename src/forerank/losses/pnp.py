"""The PNP losses: only the negatives that stand before a positive cost anything."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from forerank.errors import InputError, unknown
from forerank.losses.arguments import SoftenedWithTail, check_number
from forerank.losses.base import RankingLoss
from forerank.losses.named import NamedLoss

if TYPE_CHECKING:
    from forerank.losses.design import Derivative, Design

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


def _dq_as_written(alpha: float) -> Curve:
    """The power as the paper writes it, in float32, and the derivative that autograd makes of it."""

    def value(r: Tensor) -> Tensor:
        return 1 - 1 / (1 + r.float()) ** alpha

    def slope(r: Tensor) -> Tensor:
        with torch.enable_grad():
            at = r.detach().float().requires_grad_()
            return torch.autograd.grad(value(at).sum(), at)[0]

    return Curve("Dq", "1 - 1 / (1 + R)^alpha", "alpha / (1 + R)^(alpha + 1)", value, slope)


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
            "Ds" log(1+R); "Dq" 1 - (1+R)^-alpha. The D variants give up positives with many negatives
            before them, which makes them robust; Dq is the paper's best.
        alpha: of Dq, at least 1.
        b: of Ib, positive.
        naive: compute the power of Dq as the paper writes it, 1 - 1 / (1+R)^alpha in float32, to see what
            that does: where alpha (1+R)^(alpha-1) is above 3.4e38 the cost is 1 but its gradient is 0 * inf,
            NaN. With alpha = 24 that is R > 40, with 32 R > 14: an untrained batch of 112 has such R. The
            default computes the same number from alpha log(1+R), which cannot overflow.
        shared: temperature, count_self, linear_tail, gather, chunk_size; see `RankingLoss`.

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
        naive: bool = False,
        **shared: Unpack[SoftenedWithTail],
    ) -> None:
        super().__init__(**shared)
        if not isinstance(variant, str) or variant not in VARIANTS:
            raise unknown("PNP variant", variant, VARIANTS)
        self.variant = variant
        self.alpha, self.b = check_number("alpha", alpha, least=1), check_number("b", b, above=0)
        self.naive = bool(naive)
        if self.naive and variant != "Dq":
            raise InputError(f"naive is about the power in Dq: PNP-{variant} has none, so leave naive out.")
        self.design: Design | None = None

    @classmethod
    def from_derivative(
        cls,
        derivative: "Derivative",
        *,
        parameters: Mapping[str, float] | None = None,
        **shared: Unpack[SoftenedWithTail],
    ) -> "PNPLoss":
        """The loss whose derivative in R is given: the paper's design method.

        Args:
            derivative: a formula such as "1/(1+R)**2", or a callable on float64 tensors. It must be finite
                and not negative for R >= 0. A formula may use R, `parameters`, pi and elementary functions;
                it is never run as code. `loss.design` says what came of it: closed form or numerical with its
                error, increasing or decreasing, bounded or not.
            parameters: numbers for other names in the formula.
            shared: temperature, count_self, linear_tail, gather, chunk_size; see `RankingLoss`.

        >>> loss = PNPLoss.from_derivative("b/(1 + R)", parameters={"b": 3})
        >>> print(loss.design.describe())
        derivative 3/(R + 1): decreasing, bounded by 3
        loss 3*log(R + 1) (closed form): unbounded
        """
        from forerank.losses.design import design

        loss = cls(**shared)
        loss.variant, loss.design = "designed", design(derivative, parameters)
        return loss

    @property
    def curve(self) -> Curve:
        """The penalty as a function of R, with its derivative."""
        if self.naive:
            return _dq_as_written(self.alpha)
        if self.design is None:
            return VARIANTS[self.variant](self.alpha, self.b)
        design = self.design
        return Curve("designed", design.formula, design.derivative, design.value, design.slope)

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        curve = self.curve
        return curve.value(negatives), curve.slope(negatives), None

    def extra_repr(self) -> str:
        numbers = {"Dq": f", alpha={self.alpha:g}", "Ib": f", b={self.b:g}"}.get(self.variant, "")
        shown = f"variant={self.variant}{numbers}{', naive' if self.naive else ''}"
        if self.design is not None:
            shown += f", derivative={self.design.derivative}, loss={self.design.formula}"
        return f"{shown}, {super().extra_repr()}"


def _named(variant: str) -> NamedLoss:
    curve = VARIANTS[variant](4.0, 2.0)
    letter, _, rest = variant.partition("_")
    label = f"PNP-{letter[0]}$_{letter[1]}$" if len(letter) == 2 else f"PNP-{letter}"
    label += f" {rest}" if rest else ""
    return NamedLoss(f"PNP-{variant}", partial(PNPLoss, variant), curve.formula, curve.derivative, label)


LOSSES = (
    *(_named(variant) for variant in VARIANTS),
    NamedLoss("PNP", PNPLoss.from_derivative, "integral of the derivative", "your own, such as 1/(1+R)**2"),
)
