"""The three sweeps: alpha of Dq until it breaks, b of Ib, and |P|; curves with the seeds as bands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerank.paper.study import Condition, Study
from forerank.paper.style import COLOURS, NAMES
from forerank.report.tables import Cell, ResultTable

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sweep:
    """One hyper-parameter and the values tried."""

    symbol: str
    method: str
    values: tuple[float, ...]
    default: float

    def condition(self, value: float) -> Condition:
        """The condition at a value; at the default it is the plain one, so its runs are shared."""
        if value == self.default:
            return Condition(self.method)
        if self.symbol == "|P|":
            return Condition(self.method, images_per_class=int(value))
        return Condition(self.method, options=((self.symbol, value),))


SWEEPS: dict[str, Sweep] = {
    "sweep-alpha": Sweep("alpha", "Dq", (1, 2, 4, 8, 16, 32), 4),
    "sweep-b": Sweep("b", "Ib", (0.5, 1, 2, 4, 8), 2),
    "sweep-p": Sweep("|P|", "Dq", (2, 4, 8, 16), 4),
}


def conditions(name: str) -> list[Condition]:
    """What has to be trained for a sweep."""
    return [SWEEPS[name].condition(value) for value in SWEEPS[name].values]


def curve(name: str, study: Study, metric: str = "recall@1") -> dict[float, list[float]]:
    """Value of the hyper-parameter -> the metric of each seed, in percent."""
    sweep = SWEEPS[name]
    return {value: study.measured(sweep.condition(value), metric) for value in sweep.values}


def make_table(name: str, study: Study) -> ResultTable:
    """The numbers of a curve, one line a value, with runs that broke counted."""
    sweep = SWEEPS[name]
    rows: list[list[Cell]] = []
    for value in sweep.values:
        cells: list[Cell] = [f"{value:g}"]
        for metric in ("recall@1", "map@r", "nmi"):
            found = study.measured(sweep.condition(value), metric)
            spread = f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else ""
            cells.append(f"{np.mean(found):.1f}{spread}" if found else None)
        cells += [study.broken(sweep.condition(value)), study.unlearned(sweep.condition(value))]
        rows.append(cells)
    return ResultTable(
        [sweep.symbol, "R@1", "mAP@R", "NMI", "runs that broke", "that learned nothing"],
        rows,
        title=f"{sweep.symbol} of {sweep.method}, measured on {study.on}, {study.seeds} seeds",
    )


def draw(drawing: "Figure", name: str, study: Study) -> None:
    """The curve with the seeds as a band; for alpha also where the power overflows."""
    sweep = SWEEPS[name]
    if sweep.symbol == "alpha":
        left, right = drawing.subplots(1, 2, width_ratios=[1, 1])
        draw_overflow(right)
    else:
        left = drawing.add_subplot()
    found = curve(name, study)
    draw_band(
        left,
        [v for v in sweep.values if found[v]],
        [found[v] for v in sweep.values if found[v]],
        sweep.method,
    )
    symbol = {"alpha": "α", "b": "b", "|P|": "|P|"}[sweep.symbol]
    left.set(
        xlabel=symbol, ylabel="R@1 (%)", title=f"{NAMES[sweep.method]} on {study.on}, {study.seeds} seeds"
    )
    left.set_xscale("log", base=2)
    left.set_xticks(sweep.values, [f"{value:g}" for value in sweep.values])
    left.minorticks_off()


def draw_band(axis: "Axes", places: Sequence[float], found: Sequence[Sequence[float]], method: str) -> None:
    """Mean line, band from the lowest to the highest seed, a dot for every seed."""
    colour = COLOURS[method]
    axis.fill_between(
        places, [min(f) for f in found], [max(f) for f in found], color=colour, alpha=0.18, linewidth=0
    )
    axis.plot(places, [float(np.mean(f)) for f in found], color=colour, marker="o", markersize=5)
    for place, values in zip(places, found, strict=True):
        axis.scatter([place] * len(values), values, s=10, color=colour, alpha=0.5, linewidths=0)


def largest_count(alpha: float, dtype: "torch.dtype", *, stable: bool, limit: float = 1e5) -> float:
    """The largest R up to `limit` at which Dq's derivative, by automatic differentiation, is still a number.

    `stable` is the form trained here, -expm1(-alpha log1p R); otherwise 1 - 1/(1+R)^alpha as it is written.

    >>> import torch
    >>> largest_count(18, torch.float32, stable=False) < 190
    True
    >>> largest_count(18, torch.float32, stable=True)
    100000.0
    """
    import torch

    def is_number(count: float) -> bool:
        before = torch.tensor(count, dtype=dtype, requires_grad=True)
        term = -torch.expm1(-alpha * torch.log1p(before)) if stable else 1 - 1 / (1 + before) ** alpha
        term.backward()  # type: ignore[no-untyped-call]
        return before.grad is not None and bool(torch.isfinite(before.grad))

    limit = min(limit, float(torch.finfo(dtype).max) / 2)
    if is_number(limit):
        return limit
    low, high = 0.0, limit
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if is_number(middle) else (low, middle)
    return low


def naive_reach(alpha: float) -> float:
    """The largest R at which the power as it is written still has a derivative in float32."""
    import torch

    return largest_count(alpha, torch.float32, stable=False)


def draw_overflow(axis: "Axes", batch: int = 384) -> None:
    """How many negatives may stand before a positive until the derivative stops being a number."""
    import torch

    alphas = np.arange(1, 33)
    for dtype, name, style in ((torch.float32, "float32", "-"), (torch.float16, "float16", "--")):
        naive = [largest_count(float(alpha), dtype, stable=False) for alpha in alphas]
        stable = [largest_count(float(alpha), dtype, stable=True) for alpha in alphas]
        axis.plot(alphas, naive, color=COLOURS["Iu"], linestyle=style, label=f"as written, {name}")
        axis.plot(alphas, stable, color=COLOURS["Dq"], linestyle=style, label=f"as computed here, {name}")
    axis.axhline(batch, color="#8a8f98", linewidth=1, linestyle=":")
    axis.text(9, batch, f"a batch of {batch}", ha="center", va="bottom", fontsize=9, color="#5f6368")
    axis.set_yscale("log")
    axis.set_ylim(0.7, 3e5)
    axis.set(
        xlabel="α",
        ylabel="largest R with a finite derivative",
        title="how training breaks: 1/(1+R)$^α$ overflows",
    )
    axis.legend(fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.62))


def finding(name: str, study: Study) -> list[str]:
    """What the curve says, in sentences made from its numbers."""
    found = {value: values for value, values in curve(name, study).items() if values}
    if not found:
        return []
    sweep = SWEEPS[name]
    means = {value: float(np.mean(values)) for value, values in found.items()}
    best = max(means, key=lambda value: means[value])
    said = [
        f"Measured on {study.on}: best at {sweep.symbol} = {best:g} (R@1 {means[best]:.1f}), worst at "
        f"{min(means, key=lambda value: means[value]):g} ({min(means.values()):.1f})."
    ]
    if sweep.symbol == "alpha":
        import torch

        broke = sum(study.broken(sweep.condition(value)) for value in sweep.values)
        starved = sum(study.unlearned(sweep.condition(value)) for value in sweep.values)
        reach = naive_reach(16)
        half = largest_count(4, torch.float16, stable=False)
        said.append(
            f"{broke} of {len(sweep.values) * study.seeds} runs broke. Written as 1 - 1/(1+R)^alpha, the "
            "derivative "
            f"is not a number beyond R = {reach:.0f} at alpha = 16 in float32, and beyond R = {half:.0f} at "
            "alpha = 4 "
            "in float16: (1+R)^alpha overflows and 0 x inf follows. Computed as -expm1(-alpha log1p R) it "
            "stays finite "
            "up to the limit that was tried, so here a large alpha starves the gradient instead of "
            "exploding it: "
            "any positive with a negative or two before it gets next to no pull. "
            f"{starved} runs learned nothing at all."
        )
    return said
