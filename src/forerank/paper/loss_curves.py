"""Figures of the losses as functions of R: the five variants with derivatives, and Dq against AP."""

from typing import TYPE_CHECKING

import numpy as np

from forerank.paper.style import COLOURS, NAMES
from forerank.report.penalties import derivative

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMULAS = {
    "O": ("$R$", "$1$"),
    "Iu": ("$(1+R)\\,\\log(1+R)$", "$1+\\log(1+R)$"),
    "Ib": ("$(bR-\\log(1+bR))/b^2$", "$R/(1+bR)$"),
    "Ds": ("$\\log(1+R)$", "$1/(1+R)$"),
    "Dq": ("$1-(1+R)^{-\\alpha}$", "$\\alpha/(1+R)^{\\alpha+1}$"),
}


def draw_variants(drawing: "Figure", *, alpha: float = 4.0, b: float = 2.0, largest: float = 10.0) -> None:
    """A column a variant: the loss above, its derivative below.

    The losses are the ones that train (`forerank.losses`); the derivatives are the written formulas, and the
    tests hold one against the other.
    """
    import torch

    from forerank.losses.pnp import VARIANTS

    counts = np.linspace(0, largest, 401)
    axes = drawing.subplots(2, 5, sharex=True)
    for column, (variant, (loss_text, slope_text)) in enumerate(FORMULAS.items()):
        slope = derivative(variant, alpha=alpha, b=b)(counts, np.zeros_like(counts))
        top, bottom = axes[0, column], axes[1, column]
        value = VARIANTS[variant](alpha, b).value(torch.from_numpy(counts)).numpy()
        top.plot(counts, value, color=COLOURS[variant])
        bottom.plot(counts, slope, color=COLOURS[variant])
        top.set_title(f"{NAMES[variant]}\n{loss_text}")
        bottom.set_title(slope_text)
        bottom.set_xlabel("$R(i, S_N)$")
        for axis in (top, bottom):
            axis.set_ylim(bottom=0)
            axis.set_xlim(0, largest)
        if variant == "Ib":
            bottom.axhline(1 / b, color="#8a8f98", linewidth=1, linestyle="--")
            bottom.text(
                largest, 1 / b, f"bound 1/b = {1 / b:g}", ha="right", va="bottom", color="#5f6368", fontsize=9
            )
            bottom.set_ylim(0, 1.25 / b)
        if variant == "Iu":  # the paper prints this derivative; it belongs to (1+R)log(1+R) - R
            printed = derivative("Iu_exact")(counts, np.zeros_like(counts))
            bottom.plot(counts, printed, color=COLOURS[variant], linewidth=1.2, linestyle="--")
            bottom.text(
                largest, 0.6, "dashed, as printed:\n$\\log(1+R)$", ha="right", va="center", fontsize=9
            )
        if variant == "O":
            bottom.set_ylim(0, 2)
        if variant == "Dq":
            top.set_ylim(0, 1.1)
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("derivative")
    drawing.suptitle(f"Increasing derivatives (warm) and decreasing ones (cool); α = {alpha:g}, b = {b:g}")


def draw_ap_gradients(drawing: "Figure", *, alpha: float = 2.0, largest: float = 10.0) -> None:
    """AP's derivative for 0 to 3 positives before, beside Dq: as they are, and relative to their start.

    The second panel is the paper's argument: with more positives before, AP treats all R alike.
    """
    counts = np.linspace(0, largest, 401)
    dq = derivative("Dq", alpha=alpha)(counts, np.zeros_like(counts))
    greens = ("#9fd8b8", "#63bf8c", "#2a9d63", "#14613a")
    plain, relative = drawing.subplots(1, 2)
    for axis, scale in ((plain, False), (relative, True)):
        axis.plot(
            counts, dq / dq[0] if scale else dq, color=COLOURS["Dq"], label=f"{NAMES['Dq']}, α = {alpha:g}"
        )
        for positives, colour in enumerate(greens):
            slope = derivative("AP")(counts, np.full_like(counts, positives))
            axis.plot(
                counts,
                slope / slope[0] if scale else slope,
                color=colour,
                label=f"AP, $R(i,S_P)$ = {positives}",
            )
        axis.set(xlabel="$R(i, S_N)$", xlim=(0, largest), ylim=(0, None))
    plain.set(ylabel="derivative", title="derivative with respect to $R(i, S_N)$")
    relative.set(ylabel="derivative / derivative at 0", title="relative to its value at $R(i, S_N)$ = 0")
    plain.legend()
