"""How the figures of this room look: one colour a loss, and every figure saved as PNG and SVG."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Decreasing derivatives are cool, increasing ones warm, so that the two families can be told at a glance.
COLOURS = {
    "O": "#5f6368",
    "Iu": "#d1495b",
    "Ib": "#e8871e",
    "Ds": "#3f88c5",
    "Dq": "#0b3c8c",
    "Smooth-AP": "#2a9d63",
}
# What the paper calls each, for axes and legends.
NAMES = {
    "O": "PNP-O",
    "Iu": "PNP-I$_u$",
    "Ib": "PNP-I$_b$",
    "Ds": "PNP-D$_s$",
    "Dq": "PNP-D$_q$",
    "Smooth-AP": "Smooth-AP",
}
CLASS_COLOURS = ("#0b3c8c", "#e8871e", "#2a9d63", "#d1495b")


@contextmanager
def figure(width: float, height: float) -> Iterator["Figure"]:
    """An empty figure in the room's style, with no window and no global state touched.

    >>> with figure(4, 3) as f:
    ...     _ = f.add_subplot().plot([0, 1], [0, 1])
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e6ea",
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.edgecolor": "#8a8f98",
        "legend.frameon": False,
        "lines.linewidth": 2.0,
        "figure.facecolor": "white",
        "svg.fonttype": "path",
        "svg.hashsalt": "forerank",  # the same figure gives the same file
    }
    with mpl.rc_context(settings):
        yield Figure(figsize=(width, height), layout="constrained")


def save(drawing: "Figure", folder: Path, name: str) -> list[Path]:
    """Write `name.png` and `name.svg` into `folder`; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    drawing.savefig(paths[0], dpi=144, metadata={"Software": None})
    drawing.savefig(paths[1], metadata={"Date": None})
    return paths
