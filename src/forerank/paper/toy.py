"""The toy: two-dimensional points, a small network onto the circle, four classes seen and four never seen.

The paper gives the network (two fully connected layers of 30, input and embedding two-dimensional, embedding
on the unit circle) and the sizes (four training and four test classes of 150 points), but not where the
points lie. Two geometries are used here:

- `two_centres`: every training class is two blobs, one above and one below, in its own column; the test
  classes are single blobs, upper and lower, in columns between. A loss that gathers the two blobs of a class
  loses the height, which the test classes need.
- `one_centre`: every training class is one tall blob. There is nothing to keep apart, so no loss should
  differ. It is the control. Height and spread of its test classes differ too, so it does not tell alone what
  makes the difference between the losses.
"""

import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from forerank.console import progress_bar
from forerank.files import write_atomically
from forerank.paper.statistics import Difference, paired_difference

CLASSES, SAMPLES = 4, 150
LOSSES = ("O", "Iu", "Ib", "Ds", "Dq", "Smooth-AP")
SEPARATED = 0.95  # a recall above this counts as separated classes
DRAWN = ("Ib", "Dq")  # whose embeddings are drawn, as in the paper
FILE = "toy.json"
CAVEAT = (
    "The paper does not say where its points lie. This geometry was searched for: tall classes of one centre "
    "(now the control), a ring of opposite blobs and blobs in shifted rows were tried before it. So the toy "
    "shows that the effect can happen, and not how often it does."
)


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


def train_seed(geometry: str, loss_name: str, settings: ToySettings, seed: int) -> tuple[float, list[float]]:
    """One network on one thread: R@1 on the unseen classes, and where their points land (radians)."""
    torch.set_num_threads(1)  # networks this small only wait for a second thread
    points = GEOMETRIES[geometry](torch.Generator().manual_seed(1000 + seed))
    where = angles(train_network(points, loss_name, settings, seed), points.test)
    return recall_at_1(where, labels().numpy()), [round(float(angle), 4) for angle in where]


def run_toy(settings: ToySettings, folder: Path, jobs: int | None = None) -> dict[str, Any]:
    """Train every loss on both geometries over all seeds; each seed is kept in `folder/toy.json` when it
    ends.

    Args:
        jobs: networks trained at the same time, each on one thread; None: one per core.

    Returns:
        as `read_result`.
    """
    path = folder / FILE
    kept: dict[str, Any] = {"settings": asdict(settings), "seeds": {}}
    before = _read(path)
    if before is not None and before["settings"] == kept["settings"]:
        kept = before
    wanted = [(g, loss, seed) for g in GEOMETRIES for loss in LOSSES for seed in range(settings.seeds)]
    left = [task for task in wanted if _name(*task) not in kept["seeds"]]
    workers = min(jobs or os.cpu_count() or 1, len(left))
    if left:
        context = multiprocessing.get_context("spawn")
        with progress_bar("toy", len(left)) as advance, ProcessPoolExecutor(workers, context) as pool:
            tasks = {
                pool.submit(train_seed, g, loss, settings, seed): (g, loss, seed) for g, loss, seed in left
            }
            try:
                for done in as_completed(tasks):
                    geometry, loss_name, seed = tasks[done]
                    recall, where = done.result()
                    drawn = {"angles": where} if loss_name in DRAWN else {}
                    kept["seeds"][_name(geometry, loss_name, seed)] = {"recall": recall, **drawn}
                    write_atomically(path, json.dumps(kept))
                    advance(1, note=f"{loss_name}, seed {seed}")
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    result = read_result(folder)
    assert result is not None  # everything was trained just now
    return result


def read_result(folder: Path) -> dict[str, Any] | None:
    """The toy's result if it was run to the end in `folder`.

    Returns:
        "settings"; "recall": geometry -> loss -> R@1 of unseen classes per seed; "drawn": geometry -> loss ->
        the seed whose recall is the median, and the angles of its test points.
    """
    kept = _read(folder / FILE)
    if kept is None:
        return None
    result: dict[str, Any] = {"settings": kept["settings"], "recall": {}, "drawn": {}}
    for geometry in GEOMETRIES:
        result["recall"][geometry], result["drawn"][geometry] = {}, {}
        for loss_name in LOSSES:
            names = [_name(geometry, loss_name, seed) for seed in range(kept["settings"]["seeds"])]
            if any(name not in kept["seeds"] for name in names):
                return None
            recalls = [kept["seeds"][name]["recall"] for name in names]
            median = int(np.argsort(recalls, kind="stable")[len(recalls) // 2])
            result["recall"][geometry][loss_name] = recalls
            if loss_name in DRAWN:
                drawn = {"seed": median, "angles": kept["seeds"][names[median]]["angles"]}
                result["drawn"][geometry][loss_name] = drawn
    return result


def _name(geometry: str, loss_name: str, seed: int) -> str:
    return f"{geometry}, {loss_name}, {seed}"


def _read(path: Path) -> dict[str, Any] | None:
    """What is kept in a file; None if it is absent or cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and {"settings", "seeds"} <= kept.keys() else None


def gains(result: dict[str, Any], geometry: str = "two_centres") -> list[float]:
    """By how many points of recall on the unseen classes Dq is above Ib, for each seed."""
    recall = result["recall"][geometry]
    return [100 * (dq - ib) for dq, ib in zip(recall["Dq"], recall["Ib"], strict=True)]


def effect(result: dict[str, Any], geometry: str = "two_centres") -> Difference:
    """How much better Dq separates the unseen classes than Ib, in points of recall, paired by seed."""
    differences = gains(result, geometry)
    return paired_difference(differences, np.zeros(len(differences)))


def separated(result: dict[str, Any], loss_name: str, geometry: str = "two_centres") -> int:
    """With how many seeds a loss separates the unseen classes of a geometry."""
    return sum(recall > SEPARATED for recall in result["recall"][geometry][loss_name])


def control_sentence(result: dict[str, Any]) -> str:
    """What the classes of one centre show."""
    losses = result["recall"]["one_centre"]
    counts = {loss: separated(result, loss, "one_centre") for loss in losses}
    if any(counts.values()):
        listed = ", ".join(f"{loss} {count}" for loss, count in counts.items())
        return f"Seeds of {len(losses['Dq'])} that separate the unseen classes of the control: {listed}."
    return (
        "In the control, classes of one centre, no loss separates the unseen classes with any seed, Dq "
        "neither. So the difference needs a geometry like that of two centres; that the number of centres "
        "alone makes it is not shown, because heights and spreads differ too."
    )


def _blob(
    centre: tuple[float, float], spread: tuple[float, float], count: int, generator: torch.Generator
) -> Tensor:
    return torch.tensor(centre) + torch.tensor(spread) * torch.randn(count, 2, generator=generator)
