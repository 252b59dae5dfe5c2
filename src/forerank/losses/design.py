"""The paper's design method: write down how the penalty should grow with R, get the loss.

The loss is the integral of the derivative from 0 to R: in closed form where sympy finds one, else tabulated.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses.expression import computable, evaluate, read_expression

T = TypeVar("T")
Derivative = str | Callable[[Tensor], Tensor]

PATIENCE = 3.0  # seconds that sympy may look for one closed form
FARTHEST = 1e7  # the table of a numerical integral ends here; beyond it the loss goes on straight
PANELS = 4096  # of the table, evenly spaced in log(1 + R)


@dataclass(frozen=True)
class Design:
    """A loss made from its derivative.

    >>> print(design("1/(1+R)**2").describe())
    derivative (R + 1)**(-2): decreasing, bounded by 1
    loss R/(R + 1) (closed form): bounded by 1
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
        return self.slope_of(r) if callable(self.slope_of) else evaluate(self.slope_of, r)

    def value(self, r: Tensor) -> Tensor:
        """The loss at each R; zero at zero."""
        return evaluate(self.value_of, r) if self.closed else _look_up(self.value_of, self.slope, r)

    def describe(self) -> str:
        """Two lines for a person: what was found out about the derivative and about the loss."""
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
            return evaluate(expression, r)

    slopes = _checked_slopes(slope, nodes, text)
    table, error = _tabulate(slope, text)
    closed = None if expression is None else _closed_form(expression, nodes, table)
    formula = str(closed) if closed is not None else f"integral of {text} from 0 to R"
    return Design(
        derivative=text,
        formula=formula,
        closed=closed is not None,
        error=1e-15 if closed is not None else error,
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


def _tabulate(slope: Callable[[Tensor], Tensor], text: str) -> tuple[Tensor, float]:
    """The integral at the nodes, and the largest error found between them, relative to 1 + integral."""
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
    found = _look_up(table, slope, torch.expm1(finer[1::2]))
    # Twice what was seen half-way between nodes, where the interpolation is worst.
    return table, max(2 * float(((found - exact).abs() / (1 + exact)).max()), 1e-15)


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


def _closed_form(expression: Any, nodes: Tensor, table: Tensor) -> Any | None:
    """The integral from 0 to R if sympy finds one that can be computed and agrees with the numerical one."""
    import sympy

    r = next(iter(expression.free_symbols), sympy.Symbol("R", nonnegative=True))

    u = sympy.Symbol("u", positive=True)  # 1 + R: powers of it are what sympy would multiply out, at length
    shifted = expression.subs(r, u - 1)

    def integrate(what: Any, variable: Any, **options: Any) -> Any:
        found = sympy.integrate(what, variable, **options)
        if found.has(sympy.Integral, sympy.Piecewise):
            raise ValueError("no closed form")
        found = found.subs(u, r + 1)
        return found - found.subs(r, 0)

    attempts = (
        lambda: integrate(shifted, u, manual=True),
        lambda: integrate(expression, r, manual=True),
        lambda: integrate(shifted, u),
    )
    found = (_within(PATIENCE, attempt) for attempt in attempts)
    primitive = next((one for one in found if one is not None), None)
    if primitive is None:
        return None
    shorter = _within(PATIENCE, lambda: sympy.simplify(primitive))
    for candidate in (shorter, primitive):
        if candidate is not None and computable(candidate):
            values = evaluate(candidate, nodes)
            if bool(((values - table).abs() <= 1e-9 * (1 + table)).all()):
                return candidate
    return None


def _trend(slopes: Tensor) -> str:
    steps = slopes.diff()
    noise = 1e-12 * float(slopes.abs().max())
    if bool((steps.abs() <= noise).all()):
        return "constant"
    if bool((steps >= -noise).all()):
        return "increasing"
    return "decreasing" if bool((steps <= noise).all()) else "neither"


def _least_bound(expression: Any | None, slope: Callable[[Tensor], Tensor], largest: float) -> float:
    """The least upper bound of the derivative, from its largest value on the grid and its limit."""
    near, far = slope(torch.tensor([FARTHEST, FARTHEST**2], dtype=torch.float64)).tolist()
    if not far <= near * (1 + 1e-3):  # still growing between 1e7 and 1e14; NaN: not known to be bounded
        return math.inf
    limit = _limit(expression)
    return max(largest, far if limit is None else limit)


def _loss_bound(closed: Any | None, slope: Callable[[Tensor], Tensor], table: Tensor) -> float:
    limit = _limit(closed)
    if limit is not None:
        return max(limit, float(table[-1]))
    # Without a limit: the integral converges if R f(R) still falls like a power of R far out.
    far = torch.tensor([FARTHEST, FARTHEST**1.5], dtype=torch.float64)
    near, farther = (far * slope(far)).tolist()
    if not farther < 0.5 * near and near > 1e-9:
        return math.inf
    return float(table[-1]) + float(near)


def _limit(expression: Any | None) -> float | None:
    """The limit at infinity, if sympy finds it in time."""
    import sympy

    if expression is None:
        return None
    if not expression.free_symbols:
        return float(expression)
    (r,) = expression.free_symbols
    found = _within(PATIENCE, lambda: sympy.limit(expression, r, sympy.oo))
    try:
        return None if found is None else float(found)
    except TypeError:
        return None


def _bounded(bound: float) -> str:
    return f"bounded by {bound:.6g}" if math.isfinite(bound) else "unbounded"


class _OutOfTimeError(BaseException):
    """Not an Exception, so that no `except Exception` inside sympy catches it."""


def _within(seconds: float, work: Callable[[], T]) -> T | None:
    """The result of pure-Python work, or None if it takes too long or fails; in any thread, no signals."""
    deadline = time.monotonic() + seconds
    before = sys.getprofile()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if time.monotonic() > deadline:
            sys.setprofile(before)
            raise _OutOfTimeError

    sys.setprofile(watch)
    try:
        return work()
    except (
        _OutOfTimeError,
        ArithmeticError,
        NotImplementedError,
        ValueError,
        TypeError,
        RecursionError,
        AttributeError,
    ):
        return None
    finally:
        sys.setprofile(before)
