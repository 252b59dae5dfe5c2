"""Figure: the loss of one positive under AP, over how many positives and negatives stand before it."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ap_term(
    positives_before: NDArray[np.float64], negatives_before: NDArray[np.float64]
) -> NDArray[np.float64]:
    """1 - (1 + R_P) / (1 + R_P + R_N), elementwise.

    >>> ap_term(np.array([0.0, 3.0]), np.array([0.0, 4.0])).tolist()
    [0.0, 0.5]
    """
    return negatives_before / (1 + positives_before + negatives_before)


def draw(drawing: "Figure", largest: float = 10.0) -> None:
    """The surface, and the same seen from above with the paths of steepest descent.

    The gradient is proportional to (-R_N, 1 + R_P): going down it, (1 + R_P)² + R_N² stays the same, so every
    path is an arc of a circle round (-1, 0). It ends on R_N = 0, wherever on that line it arrives.
    """
    axis = np.linspace(0, largest, 81)
    positives, negatives = np.meshgrid(axis, axis)
    loss = ap_term(positives, negatives)

    surface = drawing.add_subplot(1, 2, 1, projection="3d")
    surface.plot_surface(positives, negatives, loss, cmap="viridis", rcount=40, ccount=40, linewidth=0)
    surface.view_init(elev=24, azim=-128)
    surface.set(xlabel="$R(i, S_P)$", ylabel="$R(i, S_N)$", title="$L_{AP}$ of one positive")
    surface.set_zlabel("$L_{AP}$")
    surface.set_box_aspect(None, zoom=0.88)

    above = drawing.add_subplot(1, 2, 2)
    filled = above.contourf(positives, negatives, loss, levels=np.linspace(0, 0.95, 20), cmap="viridis")
    drawing.colorbar(filled, ax=above, label="$L_{AP}$", ticks=[0, 0.25, 0.5, 0.75])
    for radius in (3.0, 5.0, 7.0, 9.0, 11.0):
        start = np.arccos(min(1.0, 1 / radius)) if radius <= largest else np.arcsin(largest / radius)
        angle = np.linspace(start, 0, 60)
        path = np.stack([radius * np.cos(angle) - 1, radius * np.sin(angle)])
        path = path[:, (path[0] >= 0) & (path[0] <= largest)]
        above.plot(*path, color="white", linewidth=1.4)
        tip, before = tuple(path[:, -1]), tuple(path[:, -3])
        above.annotate("", tip, before, arrowprops={"arrowstyle": "-|>", "color": "white"})
    above.axhline(0, color="#e8871e", linewidth=5, clip_on=False, zorder=5)
    above.text(
        largest * 0.97,
        largest * 0.93,
        "orange: $L_{AP} = 0$ only where $R(i, S_N) = 0$",
        ha="right",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "boxstyle": "round"},
        fontsize=9,
    )
    above.set(
        xlabel="$R(i, S_P)$, positives before",
        ylabel="$R(i, S_N)$, negatives before",
        title="from above, with paths of steepest descent",
        xlim=(0, largest),
        ylim=(0, largest),
    )
    above.grid(False)
