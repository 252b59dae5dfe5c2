"""How the figures of the paper look: one colour per loss, and every figure saved as PNG and SVG."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Decreasing derivatives are cool, increasing ones warm, so that the two families can be told at a glance.
PAPERS_COLOURS = {
    "PNP-O": "#5f6368",
    "PNP-Iu": "#d1495b",
    "PNP-Ib": "#e8871e",
    "PNP-Ds": "#3f88c5",
    "PNP-Dq": "#0b3c8c",
    "Smooth-AP": "#2a9d63",
}
# Every other loss takes one of these by its place in the registry.
OTHER_COLOURS = ("#7b4fa3", "#00838f", "#a0522d", "#c2185b", "#6b8e23", "#455a64")


class OfEachLoss(dict[str, str]):
    """Something of each loss by its name, from the registry when it is first asked for."""

    def __init__(self, find: Callable[[str], str]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, name: str) -> str:
        self[name] = self.find(name)
        return self[name]


def _colour(name: str) -> str:
    from forerank.losses import find_loss, known_losses

    known = find_loss(name).name
    others = [other for other in known_losses() if other not in PAPERS_COLOURS]
    return PAPERS_COLOURS.get(known) or OTHER_COLOURS[others.index(known) % len(OTHER_COLOURS)]


def _label(name: str) -> str:
    from forerank.losses import find_loss

    loss = find_loss(name)
    return loss.label or loss.name


COLOURS = OfEachLoss(_colour)
NAMES = OfEachLoss(_label)  # for axes and legends
CLASS_COLOURS = ("#0b3c8c", "#e8871e", "#2a9d63", "#d1495b")


@contextmanager
def figure(width: float, height: float) -> Iterator["Figure"]:
    """An empty figure in this style, with no window and no global state touched.

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
