"""Figure: what each negative of a ranked list is charged by the positives after it (the paper's arrows)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerank.metrics import positive_charges, ranking_penalties
from forerank.paper.style import COLOURS, NAMES
from forerank.report.penalties import derivative
from forerank.report.ranking_figure import draw_arrows

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

POSITIVE, NEGATIVE = "#2a9d63", "#d1495b"
# The ranked list that is drawn: + a positive, - a negative, nearest first.
EXAMPLE = "-++-+--+"


def draw(drawing: "Figure", ranking: str = EXAMPLE, variants: Sequence[str] = ("O", "Ib", "Dq")) -> None:
    """One row per variant: the list with an arrow from every positive to every negative before it.

    An arrow is as wide and dark as f'(R) of the positive it comes from, relative to the strongest arrow of
    the row; the number under a negative is the sum of its arrows.
    """
    positive = np.array([mark == "+" for mark in ranking])
    similarity = -np.arange(len(ranking), dtype=np.float64)
    axes = drawing.subplots(len(variants), 1, squeeze=False)[:, 0]
    for axis, variant in zip(axes, variants, strict=True):
        slope = derivative(variant)
        charge = positive_charges(similarity, positive, slope)
        penalty = ranking_penalties(similarity, positive, slope)
        draw_arrows(axis, positive, charge, COLOURS[variant], height=0.42)
        for place, is_positive in enumerate(positive):
            colour = POSITIVE if is_positive else NEGATIVE
            axis.add_patch(_square(place, colour))
            axis.text(
                place, 0, "+" if is_positive else "–", ha="center", va="center", color=colour, fontsize=18
            )
            below = f"R = {int((~positive[:place]).sum())}" if is_positive else f"pays {penalty[place]:.3g}"
            axis.text(place, -0.62, below, ha="center", va="center", fontsize=9, color=colour)
        axis.text(-1.15, 0, "query", ha="center", va="center")
        axis.add_patch(_square(-1.15, "#5f6368"))
        axis.set(xlim=(-1.8, len(ranking) - 0.4), ylim=(-0.85, 2.0))
        axis.set_title(f"{NAMES[variant]}: f'(R) per arrow", loc="left", color=COLOURS[variant])
        axis.axis("off")


def _square(place: float, colour: str) -> "FancyBboxPatch":
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        (place - 0.32, -0.34),
        0.64,
        0.68,
        boxstyle="round,pad=0,rounding_size=0.08",
        fill=False,
        ec=colour,
        lw=2,
    )
