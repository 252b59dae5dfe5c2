"""The three sweeps: alpha of Dq until it breaks, b of Ib, and |P|; curves with the seeds as bands."""

from collections.abc import Mapping, Sequence
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
    """One hyper-parameter and the values tried; `default` is what a recipe has without naming it."""

    symbol: str
    method: str
    values: tuple[float, ...]
    default: float | None = None

    def condition(self, value: float) -> Condition:
        """The condition at a value; at the default it is the plain one, so its runs are shared."""
        if value == self.default:
            return Condition(self.method)
        if self.symbol == "|P|":
            return Condition(self.method, images_per_class=int(value))
        return Condition(self.method, options=((self.symbol, value),))


SWEEPS: dict[str, Sweep] = {
    "sweep-alpha": Sweep("alpha", "Dq", (1, 2, 4, 8, 16, 32), 4),
    "sweep-b": Sweep("b", "Ib", (0.5, 1, 2, 4, 8)),
    "sweep-p": Sweep("|P|", "Dq", (2, 4, 8, 16), 4),
}


# The power as the paper writes it, 1 - 1/(1+R)^alpha, at values where it overflows in float32.
NAIVE_ALPHAS = (24.0, 32.0)


def naive_condition(alpha: float, *, naive: bool = True) -> Condition:
    """Dq at an alpha with the power as the paper writes it, or, at the same alpha, as it is computed here."""
    stable = SWEEPS["sweep-alpha"].condition(alpha)
    return Condition("Dq", options=(("alpha", alpha), ("naive", True))) if naive else stable


def conditions(name: str) -> list[Condition]:
    """What has to be trained for a sweep."""
    return [SWEEPS[name].condition(value) for value in SWEEPS[name].values]


def curve(name: str, study: Study, metric: str = "recall@1") -> dict[float, list[float]]:
    """Value of the hyper-parameter -> the metric of each seed, in percent."""
    sweep = SWEEPS[name]
    return {value: study.measured(sweep.condition(value), metric) for value in sweep.values}


def build_table(name: str, study: Study) -> ResultTable:
    """The numbers of a curve, one line per value, with runs that broke counted."""
    sweep = SWEEPS[name]
    return _runs_table(
        sweep.symbol,
        {f"{value:g}": sweep.condition(value) for value in sweep.values},
        study,
        f"{sweep.symbol} of {sweep.method}, measured on {study.on}",
    )


def build_crash_table(study: Study) -> ResultTable:
    """Dq with the power as the paper prints it, and with the same function as it is computed here."""
    named = {
        f"{alpha:g}, {'as printed' if naive else 'as computed here'}": naive_condition(alpha, naive=naive)
        for alpha in NAIVE_ALPHAS
        for naive in (True, False)
    }
    return _runs_table("alpha", named, study, f"Does a large alpha break training? Measured on {study.on}")


def _runs_table(symbol: str, named: Mapping[str, Condition], study: Study, title: str) -> ResultTable:
    rows: list[list[Cell]] = []
    for text, condition in named.items():
        cells: list[Cell] = [text]
        for metric in ("recall@1", "map@r", "nmi"):
            measured = study.measured(condition, metric)
            spread = f" ± {np.std(measured, ddof=1):.1f}" if len(measured) > 1 else ""
            cells.append(f"{np.mean(measured):.1f}{spread}" if measured else None)
        cells += [len(study.results(condition)), study.broken(condition), study.unlearned(condition)]
        rows.append(cells)
    return ResultTable(
        [symbol, "R@1", "mAP@R", "NMI", "runs", "of them broke", "learned nothing"], rows, title=title
    )


def draw(drawing: "Figure", name: str, study: Study) -> None:
    """The curve of every study with the seeds as a band; for alpha also where the power overflows."""
    sweep = SWEEPS[name]
    studies = (study, *study.beside)
    axes = drawing.subplots(1, len(studies) + (sweep.symbol == "alpha"), squeeze=False)[0]
    if sweep.symbol == "alpha":
        draw_overflow(axes[-1])
    for axis, one in zip(axes, studies, strict=False):
        measured = {value: values for value, values in curve(name, one).items() if values}
        draw_band(axis, list(measured), list(measured.values()), sweep.method)
        symbol = {"alpha": "α", "b": "b", "|P|": "|P|"}[sweep.symbol]
        axis.set(xlabel=symbol, ylabel="R@1 (%)", title=f"{NAMES[sweep.method]} on {one.on}")
        axis.set_xscale("log", base=2)
        axis.set_xticks(sweep.values, [f"{value:g}" for value in sweep.values])
        axis.minorticks_off()


def draw_band(
    axis: "Axes", places: Sequence[float], measured: Sequence[Sequence[float]], method: str
) -> None:
    """Mean line, band from the lowest to the highest seed, a dot for every seed."""
    colour = COLOURS[method]
    axis.fill_between(
        places, [min(f) for f in measured], [max(f) for f in measured], color=colour, alpha=0.18, linewidth=0
    )
    axis.plot(places, [float(np.mean(f)) for f in measured], color=colour, marker="o", markersize=5)
    for place, values in zip(places, measured, strict=True):
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
    measured = {value: values for value, values in curve(name, study).items() if values}
    if not measured:
        return []
    sweep = SWEEPS[name]
    means = {value: float(np.mean(values)) for value, values in measured.items()}
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    sentences = [
        f"Measured on {study.on}: best at {sweep.symbol} = {best:g} (R@1 {means[best]:.1f}), worst at "
        f"{worst:g} ({means[worst]:.1f})."
    ]
    return sentences


def crash_finding(study: Study) -> tuple[str, ...]:
    """What the runs with the printed power say, and what those with the stable one say."""
    import torch

    stable = [naive_condition(alpha, naive=False) for alpha in NAIVE_ALPHAS]
    half = largest_count(4, torch.float16, stable=False)
    broke = ", ".join(
        f"{study.broken(naive_condition(a))} of {len(study.results(naive_condition(a)))} at alpha {a:g}"
        for a in NAIVE_ALPHAS
    )
    return (
        f"With the power as it is printed, 1 - 1/(1+R)^alpha, training breaks: {broke}. Its derivative is "
        "not "
        f"a number beyond R = {naive_reach(24):.0f} at alpha = 24 in float32, and beyond R = {half:.0f} at "
        "alpha = 4 in float16: (1+R)^alpha overflows, and infinity times 0 follows.",
        "Computed as -expm1(-alpha log1p R), the same function stays finite: "
        f"{sum(study.broken(c) for c in stable)} of {sum(len(study.results(c)) for c in stable)} runs "
        "broke. A large alpha then weakens the gradient instead: a positive with a few negatives "
        "before "
        f"it is hardly moved. {sum(study.unlearned(c) for c in stable)} runs learned nothing at all.",
    )
