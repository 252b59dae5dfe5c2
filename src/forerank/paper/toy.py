"""The toy: two-dimensional points, a small network onto the circle, four classes seen and four never seen.

The paper gives the network (two fully connected layers of 30, input and embedding two-dimensional, embedding
on the unit circle) and the sizes (four training and four test classes of 150 points), but not where the
points lie. Two places are tried here:

- `two_centres`: every training class is two blobs, one above and one below, in its own column; the test
  classes are single blobs, upper and lower, in columns between. Whoever gathers the two blobs of a class
  throws away the height, which the test classes need.
- `one_centre`: every training class is one tall blob. There is nothing to keep apart, so no loss should
  differ. It is the control: it says whether the effect comes from having several centres.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from forerank.console import progress
from forerank.files import write_atomically
from forerank.paper.statistics import Difference, paired_difference
from forerank.paper.style import CLASS_COLOURS, COLOURS, NAMES
from forerank.report.tables import Cell, ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES, SAMPLES = 4, 150
SEEN_COLOURS = (
    "#b3a58c",
    "#8fa9b5",
    "#c3a3bd",
    "#9db58a",
)  # muted: training classes are not the test classes
LOSSES = ("O", "Iu", "Ib", "Ds", "Dq", "Smooth-AP")


@dataclass(frozen=True)
class ToySettings:
    """Everything that decides the toy's numbers."""

    seeds: int = 20
    steps: int = 300
    images_per_class: int = 12
    learning_rate: float = 0.01
    weight_decay: float = 4e-4
    alpha: float = 4.0
    b: float = 2.0
    temperature: float = 0.01


@dataclass(frozen=True)
class Points:
    """Training and test points (600, 2), sorted by class, 150 each."""

    train: Tensor
    test: Tensor


def two_centres(generator: torch.Generator) -> Points:
    """Training classes of two blobs each, 3 apart in height; test classes at one height each."""
    train = [
        _blob((column - 1.5, height), (0.12, 0.12), SAMPLES // 2, generator)
        for column in range(CLASSES)
        for height in (-1.5, 1.5)
    ]
    test = [
        _blob((column, height), (0.12, 0.12), SAMPLES, generator)
        for column in (-1.0, 1.0)
        for height in (-1.5, 1.5)
    ]
    return Points(torch.cat(train), torch.cat(test))


def one_centre(generator: torch.Generator) -> Points:
    """Training classes of one tall blob each; test classes upper and lower in columns between."""
    train = [_blob((column - 1.5, 0.0), (0.12, 0.6), SAMPLES, generator) for column in range(CLASSES)]
    test = [
        _blob((column, height), (0.12, 0.12), SAMPLES, generator)
        for column in (-1.0, 1.0)
        for height in (-0.7, 0.7)
    ]
    return Points(torch.cat(train), torch.cat(test))


GEOMETRIES: dict[str, Callable[[torch.Generator], Points]] = {
    "two_centres": two_centres,
    "one_centre": one_centre,
}


def labels() -> Tensor:
    """(600,) class of each point."""
    return torch.arange(CLASSES).repeat_interleave(SAMPLES)


def train_network(points: Points, loss_name: str, settings: ToySettings, seed: int) -> nn.Sequential:
    """The paper's network trained on the points with one loss; all randomness from `seed`."""
    from forerank.losses import PNPLoss, SmoothAPLoss

    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 2))
    with torch.no_grad():  # torch's own default initialisation, drawn from our generator
        for parameter, fan_in in zip(network.parameters(), (2, 2, 30, 30, 30, 30), strict=True):
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) / fan_in**0.5)
    loss = (
        SmoothAPLoss(temperature=settings.temperature)
        if loss_name == "Smooth-AP"
        else PNPLoss(loss_name, alpha=settings.alpha, b=settings.b, temperature=settings.temperature)
    )
    optimizer = torch.optim.Adam(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    batch_labels = torch.arange(CLASSES).repeat_interleave(settings.images_per_class)
    for _ in range(settings.steps):
        drawn = [
            c * SAMPLES + torch.randperm(SAMPLES, generator=generator)[: settings.images_per_class]
            for c in range(CLASSES)
        ]
        optimizer.zero_grad()
        loss(network(points.train[torch.cat(drawn)]), batch_labels).backward()
        optimizer.step()
    return network


def angles(network: nn.Sequential, points: Tensor) -> NDArray[np.float64]:
    """(N,) where each point lands on the circle, in radians."""
    with torch.no_grad():
        embedded = network(points).double()
    return torch.atan2(embedded[:, 1], embedded[:, 0]).numpy()


def recall_at_1(angle: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """Share of points whose nearest other point on the circle is of the same class.

    Counted on angles in float64: classes fallen onto one spot are too close for a float32 cosine to rank.

    >>> recall_at_1(np.array([0.0, 0.1, 3.0, 3.1]), np.array([0, 0, 1, 1]))
    1.0
    """
    apart = np.abs(np.angle(np.exp(1j * (angle[:, None] - angle[None, :]))))
    np.fill_diagonal(apart, np.inf)
    return float((label[apart.argmin(axis=1)] == label).mean())


def run(settings: ToySettings, folder: Path) -> dict[str, Any]:
    """Train every loss on both geometries over all seeds; kept in `folder/toy.json`, taken up from there.

    Returns:
        "settings"; "recall": geometry -> loss -> R@1 of unseen classes, one a seed; "drawn": one seed.
    """
    path = folder / "toy.json"
    result: dict[str, Any] = {"settings": asdict(settings), "recall": {}, "drawn": {}}
    before = _read(path)
    if before is not None and before["settings"] == result["settings"]:
        result = before
    truth = labels().numpy()
    wanted = [(geometry, loss) for geometry in GEOMETRIES for loss in LOSSES]
    left = [(g, loss) for g, loss in wanted if loss not in result["recall"].get(g, {})]
    for geometry, loss_name in progress(left, "toy"):
        found, where = [], []
        for seed in range(settings.seeds):
            points = GEOMETRIES[geometry](torch.Generator().manual_seed(1000 + seed))
            where.append(angles(train_network(points, loss_name, settings, seed), points.test))
            found.append(recall_at_1(where[-1], truth))
        median = int(np.argsort(found)[len(found) // 2])
        result["recall"].setdefault(geometry, {})[loss_name] = found
        result["drawn"].setdefault(geometry, {})[loss_name] = {
            "seed": median,
            "angles": [round(float(a), 5) for a in where[median]],
        }
        write_atomically(path, json.dumps(result))
    return result


def kept(folder: Path) -> dict[str, Any] | None:
    """The toy's result if it was run to the end in `folder`."""
    result = _read(folder / "toy.json")
    if result is None:
        return None
    whole = all(loss in result["recall"].get(geometry, {}) for geometry in GEOMETRIES for loss in LOSSES)
    return result if whole else None


def _read(path: Path) -> dict[str, Any] | None:
    """What is kept in a file; one that is not there or cannot be read holds nothing worth keeping."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and {"settings", "recall", "drawn"} <= result.keys() else None


def effect(result: dict[str, Any], geometry: str = "two_centres") -> Difference:
    """How much better Dq separates the unseen classes than Ib, in points of recall, paired by seed."""
    recall = result["recall"][geometry]
    return paired_difference([100 * r for r in recall["Dq"]], [100 * r for r in recall["Ib"]])


def draw(drawing: "Figure", result: dict[str, Any]) -> None:
    """As in the paper: the data, both embeddings on the circle; beside them the recall of every seed."""
    rows = drawing.subplots(2, 4, width_ratios=[1.15, 1, 1, 1.25])
    titles = {"two_centres": "two centres a class", "one_centre": "control: one centre a class"}
    for row, geometry in zip(rows, GEOMETRIES, strict=True):
        recall = result["recall"][geometry]
        _draw_points(row[0], GEOMETRIES[geometry](torch.Generator().manual_seed(1000)))
        row[0].set_title(titles[geometry])
        for axis, loss_name in ((row[1], "Ib"), (row[2], "Dq")):
            shown = result["drawn"][geometry][loss_name]
            _draw_circle(axis, np.asarray(shown["angles"]))
            axis.set_title(
                f"{NAMES[loss_name]}: unseen classes\nR@1 {recall[loss_name][shown['seed']]:.2f} "
                f"(median seed, {shown['seed']})",
                fontsize=10,
            )
        _draw_recalls(row[3], recall)


def _draw_points(axis: "Axes", points: Points) -> None:
    for c, colour in enumerate(CLASS_COLOURS):
        mine = slice(c * SAMPLES, (c + 1) * SAMPLES)
        axis.scatter(
            points.train[mine, 0], points.train[mine, 1], s=9, color=SEEN_COLOURS[c], alpha=0.6, linewidths=0
        )
        axis.scatter(
            points.test[mine, 0], points.test[mine, 1], s=12, marker="x", color=colour, linewidths=0.9
        )
    axis.scatter([], [], s=20, color="#5f6368", alpha=0.5, label="training class")
    axis.scatter([], [], s=20, marker="x", color="#5f6368", label="test class")
    axis.legend(loc="center", fontsize=8, bbox_to_anchor=(0.5, -0.22), ncols=2)
    axis.set_aspect("equal")


def _draw_circle(axis: "Axes", angle: NDArray[np.float64]) -> None:
    turn = np.linspace(0, 2 * np.pi, 200)
    axis.plot(np.cos(turn), np.sin(turn), color="#c8ccd2", linewidth=1)
    for c, colour in enumerate(CLASS_COLOURS):
        mine = angle[c * SAMPLES : (c + 1) * SAMPLES]
        radius = 1 + 0.09 * (c - 1.5)  # each class on its own ring, so that overlapping ones stay visible
        axis.scatter(
            radius * np.cos(mine), radius * np.sin(mine), s=12, marker="x", color=colour, linewidths=0.9
        )
    axis.set_aspect("equal")
    axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    axis.axis("off")


def _draw_recalls(axis: "Axes", recall: dict[str, Sequence[float]]) -> None:
    spread = np.random.default_rng(0)
    for place, loss_name in enumerate(LOSSES):
        found = np.asarray(recall[loss_name])
        sideways = place + spread.uniform(-0.18, 0.18, len(found))
        axis.scatter(sideways, found, s=14, color=COLOURS[loss_name], alpha=0.55, linewidths=0)
        axis.plot([place - 0.3, place + 0.3], [found.mean()] * 2, color=COLOURS[loss_name], linewidth=2.5)
    axis.set_xticks(range(len(LOSSES)), [NAMES[name].removeprefix("PNP-") for name in LOSSES], fontsize=9)
    axis.set(ylim=(0.2, 1.05), ylabel="R@1 on unseen classes", title=f"{len(found)} seeds, bar = mean")


def _blob(
    centre: tuple[float, float], spread: tuple[float, float], count: int, generator: torch.Generator
) -> Tensor:
    return torch.tensor(centre) + torch.tensor(spread) * torch.randn(count, 2, generator=generator)


def make_table(result: dict[str, Any]) -> ResultTable:
    """R@1 on unseen classes of every loss in both geometries."""
    rows: list[list[Cell]] = []
    for loss_name in LOSSES:
        row: list[Cell] = [loss_name]
        for geometry in GEOMETRIES:
            found = np.asarray(result["recall"][geometry][loss_name])
            row += [
                f"{found.mean():.2f} ± {found.std(ddof=1):.2f}",
                f"{int((found > 0.95).sum())} of {len(found)}",
            ]
        rows.append(row)
    header = ["loss"]
    for geometry in GEOMETRIES:
        name = geometry.replace("_", " ")
        header += [f"{name}: R@1", f"{name}: seeds above 0.95"]
    return ResultTable(header, rows, title="Recall@1 on the four unseen classes")


def finding(result: dict[str, Any]) -> tuple[str, ...]:
    """What was found, in sentences made from the numbers."""
    difference, control = effect(result), effect(result, "one_centre")
    recall = result["recall"]["two_centres"]
    separated = {name: sum(r > 0.95 for r in recall[name]) for name in ("Ib", "Dq")}
    count = len(recall["Dq"])
    settings = result["settings"]
    return (
        f"Classes of two centres: Dq separates the unseen classes (R@1 above 0.95) with {separated['Dq']} "
        f"of {count} "
        f"seeds, Ib with {separated['Ib']}. R@1, Dq minus Ib, in points: {difference}.",
        f"Control, classes of one centre: {control}. "
        + (
            "No difference: the effect comes from having several centres, not from keeping variance as such."
            if control.sign == 0
            else "There is a difference here too."
        ),
        "The paper does not say where its points lie; this geometry was searched for. Others tried "
        "beforehand: tall "
        "classes (the control), a ring of opposite blobs and blobs in shifted rows, where Dq leads too and "
        "Ib fails less often.",
        f"Settings: layers 2-30-30-2 with tanh, onto the circle; {settings['steps']} steps of Adam, lr "
        f"{settings['learning_rate']:g}, 4 x {settings['images_per_class']} points a batch, alpha "
        f"{settings['alpha']:g}, "
        f"b {settings['b']:g}, temperature {settings['temperature']:g}; data and network drawn anew for "
        "each seed.",
    )
