"""Figure and table of the toy: the data, the unseen classes on the circle, the recall of every seed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerank.paper.statistics import LEVEL, MARGINS, paired_difference
from forerank.paper.style import CLASS_COLOURS, COLOURS, NAMES
from forerank.paper.toy import (
    CAVEAT,
    DRAWN,
    GEOMETRIES,
    LOSSES,
    SAMPLES,
    SEPARATED,
    Points,
    control_sentence,
    effect,
    gains,
    separated,
)
from forerank.report.tables import Cell, ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Muted, because the training classes are not the test classes.
SEEN_COLOURS = ("#b3a58c", "#8fa9b5", "#c3a3bd", "#9db58a")


def draw(drawing: "Figure", result: dict[str, Any]) -> None:
    """As in the paper: the data, both embeddings on the circle; beside them the recall of every seed."""
    rows = drawing.subplots(2, 4, width_ratios=[1.15, 1, 1, 1.25])
    titles = {"two_centres": "two centres per class", "one_centre": "control: one centre per class"}
    for row, geometry in zip(rows, GEOMETRIES, strict=True):
        recall = result["recall"][geometry]
        _draw_points(row[0], GEOMETRIES[geometry](torch.Generator().manual_seed(1000)))
        row[0].set_title(titles[geometry])
        for axis, loss_name in zip(row[1:3], DRAWN, strict=True):
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
        recalls = np.asarray(recall[loss_name])
        sideways = place + spread.uniform(-0.18, 0.18, len(recalls))
        axis.scatter(sideways, recalls, s=14, color=COLOURS[loss_name], alpha=0.55, linewidths=0)
        axis.plot([place - 0.3, place + 0.3], [recalls.mean()] * 2, color=COLOURS[loss_name], linewidth=2.5)
    axis.set_xticks(range(len(LOSSES)), [NAMES[name].removeprefix("PNP-") for name in LOSSES], fontsize=9)
    axis.set(ylim=(0.2, 1.05), ylabel="R@1 on unseen classes", title=f"{len(recalls)} seeds, bar = mean")


def build_table(result: dict[str, Any]) -> ResultTable:
    """R@1 on unseen classes of every loss in both geometries."""
    rows: list[list[Cell]] = []
    for loss_name in LOSSES:
        row: list[Cell] = [loss_name]
        for geometry in GEOMETRIES:
            recalls = np.asarray(result["recall"][geometry][loss_name])
            row += [
                f"{recalls.mean():.2f} ± {recalls.std(ddof=1):.2f}",
                f"{int((recalls > SEPARATED).sum())} of {len(recalls)}",
            ]
        rows.append(row)
    header = ["loss"]
    for geometry in GEOMETRIES:
        name = geometry.replace("_", " ")
        header += [f"{name}: R@1", f"{name}: seeds above {SEPARATED:g}"]
    return ResultTable(header, rows, title="Recall@1 on the four unseen classes")


def finding(result: dict[str, Any]) -> tuple[str, ...]:
    """What was measured, in sentences made from the numbers."""
    difference, control = effect(result), effect(result, "one_centre")
    more = paired_difference(gains(result), gains(result, "one_centre"))
    count, settings = difference.count, result["settings"]
    if control.p_within(MARGINS["recall@1"]) < LEVEL:
        beside = f"no difference there, within {MARGINS['recall@1']:g} points"
    elif min(control.p_above(), control.p_below()) < LEVEL:
        beside = "a difference there too"
    else:
        beside = "undecided there"
    return (
        f"Classes of two centres: Dq separates the unseen classes (R@1 above {SEPARATED:g}) with "
        f"{separated(result, 'Dq')} of {count} seeds, Ib with {separated(result, 'Ib')}. R@1, Dq minus "
        f"Ib, in points: {difference}.",
        f"Control, classes of one centre, Dq minus Ib: {control}, {beside}. With two centres the difference "
        f"is larger by {more} points{'' if more.p_above() < LEVEL else ', which decides nothing'}. "
        + control_sentence(result),
        CAVEAT,
        f"Settings: layers 2-30-30-2 with tanh, onto the circle; {settings['steps']} steps of Adam, learning "
        "rate "
        f"{settings['learning_rate']:g}, 4 x {settings['images_per_class']} points per batch, alpha "
        f"{settings['alpha']:g}, b {settings['b']:g}, temperature {settings['temperature']:g}; data and "
        "network are "
        "drawn anew for each seed.",
    )
