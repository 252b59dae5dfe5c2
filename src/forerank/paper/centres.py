"""Figure: a class with two centres, another class between them, and which loss joins the two centres."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from forerank.paper.style import COLOURS, NAMES
from forerank.report.penalties import derivative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 12  # per cluster
STEPS = 300
# Five times the paper's 0.01: there the sigmoid has no slope at the far centre, under any variant.
TEMPERATURE = 0.05
BLUE, YELLOW = "#0b3c8c", "#e5b019"


def clusters(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors (36, 3) near a pole and their classes: b1, b2 (class 0), y between (class 1)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[-0.42, -0.12], [0.42, -0.12], [0.0, 0.1]])
    flat = centres.repeat_interleave(POINTS, 0) + 0.055 * torch.randn(3 * POINTS, 2, generator=generator)
    unit = torch.cat([flat, (1 - flat.square().sum(1, keepdim=True)).sqrt()], dim=1)
    return unit.double(), torch.tensor([0] * (2 * POINTS) + [1] * POINTS)


def descend(variant: str, steps: int = STEPS) -> Tensor:
    """(steps + 1, 36, 3) where the points go when nothing but the loss moves them (Adam, lr 0.005)."""
    from forerank.losses import PNPLoss

    points, classes = clusters()
    points.requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.005)
    loss = PNPLoss(variant, temperature=TEMPERATURE)
    path = [points.detach().clone()]
    for _ in range(steps):
        optimizer.zero_grad()
        loss(points, classes).backward()
        optimizer.step()
        path.append(torch.nn.functional.normalize(points.detach(), dim=1))
    return torch.stack(path)


def apart(points: Tensor) -> float:
    """Distance between the means of b1 and b2."""
    return float((points[:POINTS].mean(0) - points[POINTS : 2 * POINTS].mean(0)).norm())


def draw(drawing: "Figure") -> None:
    """Where the points go under Ib and under Dq, and the pull on the far centre by what lies between."""
    left, middle, right = drawing.subplots(1, 3, width_ratios=[1, 1, 1.05])
    for axis, variant in ((left, "Ib"), (middle, "Dq")):
        _draw_descent(axis, variant)
    counts = np.arange(0, POINTS + 1, dtype=np.float64)
    for variant in ("O", "Iu", "Ib", "Ds", "Dq"):
        slope = derivative(variant)(counts, np.zeros_like(counts))
        right.plot(counts, slope / slope.max(), color=COLOURS[variant], marker=".", label=NAMES[variant])
    right.set(
        xlabel="yellow points before a point of the other centre",
        ylabel="pull f'(R), relative to its largest",
        title="pull on a point of the other centre",
        ylim=(0, 1.08),
    )
    right.legend(fontsize=9)
    drawing.suptitle(
        f"temperature {TEMPERATURE:g}, not the paper's 0.01, at which no variant reaches the far centre"
    )


def _draw_descent(axis: "Axes", variant: str) -> None:
    _, classes = clusters()
    path = descend(variant)
    turn = np.linspace(0, 2 * np.pi, 200)
    axis.plot(np.cos(turn), np.sin(turn), color="#c8ccd2", linewidth=1)
    for c, colour in enumerate((BLUE, YELLOW)):
        for i in torch.nonzero(classes == c)[:, 0].tolist():
            axis.plot(path[:, i, 0], path[:, i, 1], color=colour, alpha=0.25, linewidth=0.8)
        mine = classes == c
        axis.scatter(
            path[0, mine, 0], path[0, mine, 1], s=16, facecolors="none", edgecolors=colour, linewidths=0.8
        )
        axis.scatter(path[-1, mine, 0], path[-1, mine, 1], s=18, color=colour, zorder=3)
    for name, (x, y) in {"$b_1$": (-0.42, 0.1), "$b_2$": (0.42, 0.1), "$y$": (0.17, 0.2)}.items():
        axis.text(x, y, name, ha="center", fontsize=13)
    axis.set_title(
        f"{NAMES[variant]}: $b_1$ to $b_2$ from {apart(path[0]):.2f} to {apart(path[-1]):.2f}",
        color=COLOURS[variant],
    )
    axis.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    axis.set_aspect("equal")
    axis.axis("off")
