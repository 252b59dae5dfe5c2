"""A figure of a loss and its derivative beside the paper's five."""

from pathlib import Path

import torch

from forerank.losses.pnp import VARIANTS, Curve, PNPLoss

PAPERS_FIVE = ("O", "Iu", "Ib", "Ds", "Dq")


ALPHA, B = 4.0, 2.0  # of Dq and of Ib


def plot_losses(out: str | Path, designed: PNPLoss | None = None, *, farthest: float = 10.0) -> Path:
    """Write a figure of the paper's losses and derivatives in R, and of a designed one in front of them.

    Args:
        out: file to write; its ending says the format (.png, .svg, .pdf).
        designed: a loss made by `PNPLoss.from_derivative`.
        farthest: draw R from 0 to this.

    Returns:
        The path written.
    """
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    r = torch.linspace(0, farthest, 400, dtype=torch.float64)
    curves: list[Curve] = [VARIANTS[name](ALPHA, B) for name in PAPERS_FIVE]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    value_axes, slope_axes = figure.subplots(1, 2)
    for curve in curves:
        numbers = {"Dq": f" (alpha = {ALPHA:g})", "Ib": f" (b = {B:g})"}.get(curve.name, "")
        value_axes.plot(r, curve.value(r), label=f"PNP-{curve.name}{numbers}")
        slope_axes.plot(r, curve.slope(r))
    top, top_slope = value_axes.get_ylim()[1], slope_axes.get_ylim()[1]
    if designed is not None:
        value_axes.plot(r, designed.curve.value(r), "k", lw=2.5, label=f"yours: {designed.curve.derivative}")
        slope_axes.plot(r, designed.curve.slope(r), "k", lw=2.5)
        # The unbounded ones would flatten yours.
        top = max(min(top, 2 * float(designed.curve.value(r).max())), 3.0)
        top_slope = max(top_slope, 1.05 * float(designed.curve.slope(r).max()))
    value_axes.set(title="loss", xlabel="R, negatives before the positive", ylim=(0, top))
    slope_axes.set(title="derivative", xlabel="R, negatives before the positive", ylim=(0, top_slope))
    value_axes.legend(fontsize="small")
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
