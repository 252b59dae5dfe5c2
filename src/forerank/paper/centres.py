"""Figure: one class with two centres and another class between them; who pulls the centres together?"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from forerank.paper.style import COLOURS, NAMES
from forerank.report.penalties import derivative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 12  # a cluster
BLUE, YELLOW = "#0b3c8c", "#e5b019"


def clusters(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors (36, 3) near the pole of the sphere and their classes: b1, b2 (class 0), y between (class 1)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[-0.42, -0.12], [0.42, -0.12], [0.0, 0.1]])
    flat = centres.repeat_interleave(POINTS, 0) + 0.055 * torch.randn(3 * POINTS, 2, generator=generator)
    unit = torch.cat([flat, (1 - flat.square().sum(1, keepdim=True)).sqrt()], dim=1)
    return unit.double(), torch.tensor([0] * (2 * POINTS) + [1] * POINTS)


def push(variant: str, temperature: float = 0.02) -> Tensor:
    """(36, 2) where one step of descent of the loss moves each point, seen from above the pole."""
    from forerank.losses import PNPLoss

    points, classes = clusters()
    points.requires_grad_()
    PNPLoss(variant, temperature=temperature)(points, classes).backward()  # type: ignore[no-untyped-call]
    assert points.grad is not None
    return -points.grad[:, :2]


def pull_between_centres(variant: str) -> float:
    """Share of all the pull on positives that goes to pairs from different centres, by hard counts.

    A pair (query, positive) with R negatives before it is pulled together by f'(R) for each of the R.
    """
    points, classes = clusters()
    similarity = (points @ points.T).numpy()
    label, centre = classes.numpy(), np.arange(len(classes)) // POINTS
    within = between = 0.0
    slope = derivative(variant)
    for q in np.flatnonzero(label == 0):
        for i in np.flatnonzero((label == 0) & (np.arange(len(label)) != q)):
            count = np.float64((similarity[q][label == 1] > similarity[q, i]).sum())
            pull = float(count * slope(count, np.float64(0)))
            if centre[q] == centre[i]:
                within += pull
            else:
                between += pull
    return between / (within + between)


def draw(drawing: "Figure") -> None:
    """Descent directions under Ib and Dq, and the pull on the far centre as a function of what lies between."""
    left, middle, right = drawing.subplots(1, 3, width_ratios=[1, 1, 1.05])
    for axis, variant in ((left, "Ib"), (middle, "Dq")):
        _draw_push(axis, variant)
    counts = np.arange(0, POINTS + 1, dtype=np.float64)
    for variant in ("O", "Iu", "Ib", "Ds", "Dq"):
        slope = derivative(variant)(counts, np.zeros_like(counts))
        right.plot(counts, slope / slope.max(), color=COLOURS[variant], marker=".", label=NAMES[variant])
    right.set(
        xlabel="yellow points before a point of the other centre",
        ylabel="pull f'(R), relative to its largest",
        title="the farther centre is pulled…",
        ylim=(0, 1.08),
    )
    right.legend(fontsize=9)


def _draw_push(axis: "Axes", variant: str) -> None:
    points, classes = clusters()
    moves = push(variant)
    moves = moves / moves.norm(dim=1).max() * 0.3  # the longest arrow of a panel has a fixed length
    flat = points[:, :2]
    for c, colour in enumerate((BLUE, YELLOW)):
        mine = classes == c
        axis.scatter(*flat[mine].T, s=18, color=colour, zorder=3)
        axis.quiver(
            *flat[mine].T, *moves[mine].T, angles="xy", scale_units="xy", scale=1, width=0.004, color=colour, alpha=0.6
        )
    for name, (x, y) in {"$b_1$": (-0.42, -0.36), "$b_2$": (0.42, -0.36), "$y$": (0.0, 0.34)}.items():
        axis.text(x, y, name, ha="center", fontsize=13)
    between = flat[:POINTS].mean(0) - flat[POINTS : 2 * POINTS].mean(0)
    closing = float((moves[POINTS : 2 * POINTS].mean(0) - moves[:POINTS].mean(0)) @ between / between.norm())
    axis.set_title(f"{NAMES[variant]}: the centres {'close' if closing > 0 else 'part'}", color=COLOURS[variant])
    axis.set(xlim=(-0.8, 0.8), ylim=(-0.5, 0.5), xticks=[], yticks=[])
    axis.set_aspect("equal")
