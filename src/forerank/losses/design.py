"""The paper's design method: write down how the penalty should grow with R, get the loss.

The loss is the integral of the derivative from 0 to R: in closed form where one of a few methods finds one
(`integral.py`), else tabulated. No step is cut short by a clock, so a formula gives the same loss everywhere.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses.expression import computable, evaluate_at, read_expression

Derivative = str | Callable[[Tensor], Tensor]

LARGEST_ERROR = 1e-3  # of a numerical integral, relative to 1 + loss; worse ones are refused
FARTHEST = 1e7  # the table of a numerical integral ends here; beyond it the loss goes on straight
PANELS = 4096  # of the table, evenly spaced in log(1 + R)


@dataclass(frozen=True)
class Design:
    """A loss made from its derivative.

    >>> print(design("1/(1+R)**2").describe())
    derivative (R + 1)**(-2): decreasing, bounded by 1
    loss 1 - 1/(R + 1) (closed form): bounded by 1
    """

    derivative: str
    formula: str
    closed: bool  # whether `formula` is a closed form; otherwise the loss is tabulated
    error: float  # largest error of the loss, relative to 1 + loss
    trend: str  # of the derivative: "constant", "increasing", "decreasing", "neither"
    derivative_bound: float  # least upper bound over R >= 0; inf if there is none
    bound: float  # of the loss
    slope_of: Any = field(repr=False)  # sympy expression or callable
    value_of: Any = field(repr=False)  # sympy expression, or the table of values (PANELS + 1,)

    def slope(self, r: Tensor) -> Tensor:
        """The derivative at each R."""
        return self.slope_of(r) if callable(self.slope_of) else evaluate_at(self.slope_of, r)

    def value(self, r: Tensor) -> Tensor:
        """The loss at each R; zero at zero."""
        return evaluate_at(self.value_of, r) if self.closed else _look_up(self.value_of, self.slope, r)

    def describe(self) -> str:
        """Two lines: what is known about the derivative, and about the loss."""
        how = "closed form" if self.closed else f"numerical, error at most {self.error:.0e} of 1 + loss"
        return (
            f"derivative {self.derivative}: {self.trend}, {_bounded(self.derivative_bound)}\n"
            f"loss {self.formula} ({how}): {_bounded(self.bound)}"
        )


def design(derivative: Derivative, parameters: Mapping[str, float] | None = None) -> Design:
    """Work out the loss whose derivative in R is given, as a formula or as a function of a tensor.

    Args:
        derivative: such as "1/(1+R)**2", or a callable on float64 tensors of any shape.
        parameters: numbers for other names in the formula.
    """
    nodes = torch.expm1(_nodes())
    if callable(derivative):
        if parameters:
            raise InputError("parameters belong to a formula; a callable brings its own.")
        text, expression = getattr(derivative, "__name__", "callable"), None
        slope: Callable[[Tensor], Tensor] = derivative
    else:
        expression = read_expression(derivative, parameters)
        text = str(expression)

        def slope(r: Tensor) -> Tensor:
            return evaluate_at(expression, r)

    slopes = _checked_slopes(slope, nodes, text)
    table, errors = _tabulate(slope)
    error = max(2 * float(errors.max()), 1e-15)  # twice what was seen
    closed = None
    if expression is not None and (exact := _closed_form(expression, slopes, nodes, table, errors)):
        closed, error = exact
    if not error <= LARGEST_ERROR:
        raise InputError(
            f"the integral of {text} is known only to {error:.0e} of 1 + loss: "
            "give a derivative that is smoother, or a formula with a closed form."
        )
    formula = str(closed) if closed is not None else f"integral of {text} from 0 to R"
    return Design(
        derivative=text,
        formula=formula,
        closed=closed is not None,
        error=error,
        trend=_trend(slopes),
        derivative_bound=_least_bound(expression, slope, float(slopes.max())),
        bound=_loss_bound(closed, slope, table),
        slope_of=derivative if expression is None else expression,
        value_of=table if closed is None else closed,
    )


def _checked_slopes(slope: Callable[[Tensor], Tensor], r: Tensor, text: str) -> Tensor:
    """The derivative on a grid over R >= 0, which must be finite and never negative."""
    slopes = slope(r)
    if not isinstance(slopes, Tensor) or slopes.shape != r.shape:
        raise InputError(f"the derivative {text} must return a tensor of the shape it is given.")
    slopes = slopes.detach().to(torch.float64)
    for bad, what in ((~torch.isfinite(slopes), "not finite"), (slopes < 0, "negative")):
        if bool(bad.any()):
            where = float(r[bad][0])
            raise InputError(
                f"the derivative {text} is {what} at R = {where:.4g}: a loss needs it finite and >= 0."
            )
    return slopes


def _nodes() -> Tensor:
    return torch.linspace(0, math.log1p(FARTHEST), PANELS + 1, dtype=torch.float64)


def _tabulate(slope: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The integral at the nodes (PANELS + 1,), and the error found in each panel relative to 1 + integral."""
    from numpy.polynomial.legendre import leggauss

    points, weights = (torch.from_numpy(x) for x in leggauss(8))

    def integrals(u: Tensor) -> Tensor:
        """Over each panel of u = log(1 + R), where dR = (1 + R) du."""
        half = (u[1:] - u[:-1])[:, None] / 2
        at = u[:-1, None] + half * (1 + points)
        return (slope(torch.expm1(at)).to(torch.float64) * torch.exp(at) * weights * half).sum(1)

    nodes = _nodes()
    zero = torch.zeros(1, dtype=torch.float64)
    table = torch.cat([zero, integrals(nodes).cumsum(0)])
    finer = torch.stack([nodes[:-1], (nodes[:-1] + nodes[1:]) / 2], 1).flatten()
    exact = torch.cat([zero, integrals(torch.cat([finer, nodes[-1:]])).cumsum(0)])[1::2]
    interpolated = _look_up(table, slope, torch.expm1(finer[1::2]))
    return table, (interpolated - exact).abs() / (
        1 + exact
    )  # half-way between nodes: interpolation is worst there


def _look_up(table: Tensor, slope: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
    """Cubic Hermite interpolation of the table in u = log(1 + R): slopes at the nodes are known exactly."""
    table = table.to(r.device, r.dtype)
    step = math.log1p(FARTHEST) / PANELS
    inside = r.clamp(0, FARTHEST)
    place = torch.log1p(inside) / step
    left = place.floor().clamp(0, PANELS - 1)
    t = place - left
    index = left.long()
    ends = [torch.expm1((left + side) * step) for side in (0, 1)]
    rise = [slope(end).to(r.dtype) * (1 + end) * step for end in ends]
    low, high = table[index], table[index + 1]
    cubic = (1 + 2 * t) * (1 - t) ** 2 * low + t * (1 - t) ** 2 * rise[0]
    cubic = cubic + t * t * (3 - 2 * t) * high + t * t * (t - 1) * rise[1]
    return cubic + (r - inside) * slope(torch.full_like(r, FARTHEST))


def _closed_form(
    expression: Any, slopes: Tensor, nodes: Tensor, table: Tensor, errors: Tensor
) -> tuple[Any, float] | None:
    """The integral from 0 to R and its error relative to 1 + loss, if one is found that is correct.

    Correct is what has the derivative, never falls (a wrong branch of a primitive jumps down, and so does one
    across a pole) and is as near to the table as the table is to the integral.
    """
    import sympy

    from forerank.losses.integral import primitive

    r = next(iter(expression.free_symbols), sympy.Symbol("R"))
    found = primitive(expression, r)
    if found is None:
        return None
    if found.has(sympy.log):
        found = _logs_from_zero(found, r)
    closed = found - found.subs(r, 0)
    if not computable(closed):
        return None
    at = nodes.clone().requires_grad_()
    try:
        values = evaluate_at(closed, at)
    except ValueError:  # a constant of it is no real number
        return None
    (own_slopes,) = torch.autograd.grad(values.sum(), at)
    values = values.detach()
    doubt = torch.cat([torch.zeros(1, dtype=torch.float64), errors.cummax(0).values])
    off = (values - table).abs() / (1 + table)
    known = doubt < 1e-9  # nodes at which the table is exact enough to tell the error
    right = (
        bool((off <= 1e-9 + 4 * doubt).all())
        and bool((values.diff() >= -1e-9 * (1 + table[1:])).all())
        and bool(((own_slopes - slopes).abs()[1:] <= 1e-6 * (slopes[1:] + slopes.max())).all())
    )
    return (closed, max(2 * float(off[known].max()), 1e-16)) if right else None


def _logs_from_zero(expression: Any, r: Any) -> Any:
    """Logarithms of c + R as log(1 + R/c) + log(c): they keep the digits of a small R, and log(c) cancels."""
    import sympy

    def split(log: Any) -> Any:
        start = log.args[0].subs(r, 0)
        return sympy.log(sympy.expand(log.args[0] / start)) + sympy.log(start) if start.is_positive else log

    return expression.replace(lambda part: isinstance(part, sympy.log) and part.has(r), split)


def _trend(slopes: Tensor) -> str:
    steps = slopes.diff()
    noise = 1e-12 * torch.maximum(slopes[1:], slopes[:-1])
    if bool((steps.abs() <= noise).all()):
        return "constant"
    if bool((steps >= -noise).all()):
        return "increasing"
    return "decreasing" if bool((steps <= noise).all()) else "neither"


def _least_bound(expression: Any | None, slope: Callable[[Tensor], Tensor], largest: float) -> float:
    """The least upper bound of the derivative, from its largest value on the grid and its limit."""
    limit = _limit(expression)
    if limit is not None:
        return max(largest, limit)
    far = float(slope(torch.tensor([FARTHEST**2], dtype=torch.float64)))
    # Still growing between 1e7 and 1e14, or NaN: not known to be bounded.
    return max(largest, far) if far <= largest * (1 + 1e-3) else math.inf


def _loss_bound(closed: Any | None, slope: Callable[[Tensor], Tensor], table: Tensor) -> float:
    limit = _limit(closed)
    if limit is not None:  # the loss never falls
        return limit
    # Without a limit: the integral converges if R f(R) still falls like a power of R far out.
    far = torch.tensor([FARTHEST, FARTHEST**1.5], dtype=torch.float64)
    near, farther = (far * slope(far)).tolist()
    if near == 0:
        return float(table[-1])
    if not farther < 0.5 * near:
        return math.inf
    power = math.log(near / max(farther, sys.float_info.min)) / math.log(FARTHEST**0.5)
    return float(table[-1] + near / power)


def _limit(expression: Any | None) -> float | None:
    """The limit at infinity, if it can be read off the formula."""
    import sympy

    if expression is None:
        return None
    limit = expression.subs(dict.fromkeys(expression.free_symbols, sympy.oo))
    try:
        return None if limit is sympy.nan else float(limit)
    except (TypeError, OverflowError):
        return None


def _bounded(bound: float) -> str:
    return f"bounded by {bound:.6g}" if math.isfinite(bound) else "unbounded"
