"""Figures of the losses as functions of R: the five variants with derivatives, and Dq against AP."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerank.paper.style import COLOURS, NAMES
from forerank.report.penalties import derivative

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# As mathematics; every other loss is drawn with the formula and the derivative of its registry entry.
FORMULAS = {
    "O": ("$R$", "$1$"),
    "Iu": ("$(1+R)\\,\\log(1+R)$", "$1+\\log(1+R)$"),
    "Ib": ("$(bR-\\log(1+bR))/b^2$", "$R/(1+bR)$"),
    "Ds": ("$\\log(1+R)$", "$1/(1+R)$"),
    "Dq": ("$1-(1+R)^{-\\alpha}$", "$\\alpha/(1+R)^{\\alpha+1}$"),
}


ALPHA, B, LARGEST = 4.0, 2.0, 10.0  # of Dq, of Ib, and the largest R that is drawn


def draw_variants(drawing: "Figure", variants: Sequence[str] = tuple(FORMULAS)) -> None:
    """One column per loss: the loss above, its derivative below; any loss of `forerank losses` can be drawn.

    Losses and derivatives are the ones that train (`forerank.losses`), with no positives before.
    """
    import torch

    from forerank.losses import find_loss

    counts = np.linspace(0, LARGEST, 401)
    axes = drawing.subplots(2, len(variants), sharex=True, squeeze=False)
    for column, variant in enumerate(variants):
        named = find_loss(variant)
        loss_text, slope_text = FORMULAS.get(variant, (named.formula, named.derivative))
        constants = {name: x for name, x in {"alpha": ALPHA, "b": B}.items() if name in named.arguments}
        negatives = torch.from_numpy(counts)
        value, slope, _ = named.create(**constants).penalty(
            negatives, torch.zeros_like(negatives), torch.ones(())
        )
        top, bottom = axes[0, column], axes[1, column]
        top.plot(counts, value, color=COLOURS[variant])
        bottom.plot(counts, slope, color=COLOURS[variant])
        top.set_title(f"{NAMES[variant]}\n{loss_text}")
        bottom.set_title(slope_text)
        bottom.set_xlabel("$R(i, S_N)$")
        for axis in (top, bottom):
            axis.set_ylim(bottom=0)
            axis.set_xlim(0, LARGEST)
        if variant == "Ib":
            bottom.axhline(1 / B, color="#8a8f98", linewidth=1, linestyle="--")
            bottom.text(
                LARGEST, 1 / B, f"bound 1/b = {1 / B:g}", ha="right", va="bottom", color="#5f6368", fontsize=9
            )
            bottom.set_ylim(0, 1.25 / B)
        if variant == "Iu":  # the paper prints this derivative; it belongs to (1+R)log(1+R) - R
            printed = derivative("Iu_exact")(counts, np.zeros_like(counts))
            bottom.plot(counts, printed, color=COLOURS[variant], linewidth=1.2, linestyle="--")
            bottom.text(
                LARGEST, 0.6, "dashed, as printed:\n$\\log(1+R)$", ha="right", va="center", fontsize=9
            )
        if variant == "O":
            bottom.set_ylim(0, 2)
        if variant == "Dq":
            top.set_ylim(0, 1.1)
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("derivative")
    drawing.suptitle(f"Increasing derivatives (warm) and decreasing ones (cool); α = {ALPHA:g}, b = {B:g}")


def draw_ap_gradients(drawing: "Figure", *, alpha: float = 2.0, largest: float = 10.0) -> None:
    """AP's derivative for 0 to 3 positives before, beside Dq: as they are, and relative to their start.

    The second panel is the paper's argument: with more positives before, AP treats all R alike.
    """
    counts = np.linspace(0, LARGEST, 401)
    dq = derivative("Dq", alpha=alpha)(counts, np.zeros_like(counts))
    greens = ("#9fd8b8", "#63bf8c", "#2a9d63", "#14613a")
    plain, relative = drawing.subplots(1, 2)
    for axis, scale in ((plain, False), (relative, True)):
        axis.plot(
            counts, dq / dq[0] if scale else dq, color=COLOURS["Dq"], label=f"{NAMES['Dq']}, α = {alpha:g}"
        )
        for positives, colour in enumerate(greens):
            slope = derivative("Smooth-AP")(counts, np.full_like(counts, positives))
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
