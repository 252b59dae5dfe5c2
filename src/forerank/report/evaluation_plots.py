"""Plots of one evaluation: recall curve, similarities of both kinds of pairs, ranks of first positives."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerank.errors import InputError
from forerank.metrics import Evaluation
from forerank.metrics.histograms import SimilarityHistogram
from forerank.metrics.registry import figures_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSITIVE, NEGATIVE = "#2166ac", "#b2182b"


def write_plots(evaluation: Evaluation, histogram: SimilarityHistogram, folder: Path) -> list[Path]:
    """Write recall.png, similarities.png and ranks.png into a folder; their paths.

    Args:
        evaluation: made with ``per_query=True``.
        histogram: from `forerank.metrics.histograms.similarity_histogram`.
    """
    if evaluation.per_query is None:
        raise InputError("plots need the ranks of each query: evaluate with per_query=True.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    first = evaluation.per_query.first_rank
    written = []
    for name in ("recall", "similarities", "ranks"):
        # A figure of its own, not pyplot: nothing global, safe in threads and without a display.
        figure = Figure(figsize=(6, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        if name == "recall":
            recall_curve(axes, evaluation)
        elif name == "similarities":
            similarity_curves(axes, histogram)
        else:
            rank_histogram(axes, first)
        axes.spines[["top", "right"]].set_visible(False)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=150)
        written.append(path)
    return written


def recall_curve(axes: "Axes", evaluation: Evaluation) -> None:
    """Recall at every k, not only those of the table, with the table's intervals."""
    assert evaluation.per_query is not None
    first = np.sort(evaluation.per_query.first_rank)
    ranks, counts = np.unique(first, return_counts=True)
    most = max([int(name[7:]) for name in evaluation if name.startswith("recall@")] + [10])
    share = np.cumsum(counts) / len(first)
    if ranks[0] > 1:
        ranks, share = np.concatenate(([1], ranks)), np.concatenate(([0.0], share))
    axes.step(
        np.append(ranks, max(most, ranks[-1])), np.append(share, share[-1]), where="post", color=POSITIVE
    )
    recalls = {name: int(name[7:]) for name in evaluation.intervals if name.startswith("recall@")}
    for name, k in recalls.items():
        low, high = evaluation.intervals[name]
        axes.errorbar(k, evaluation[name], [[evaluation[name] - low], [high - evaluation[name]]],
                      fmt="o", color=POSITIVE, capsize=3)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(0.9, most)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("k")
    axes.set_ylabel("recall@k")
    shown = {name: evaluation[name] for name in ("recall@1",) if name in evaluation}
    axes.set_title(figures_line(shown) or "recall")


def similarity_curves(axes: "Axes", histogram: SimilarityHistogram) -> None:
    """Both kinds of pairs, each adding up to one."""
    width = np.diff(histogram.edges)
    for values, colour, name in (
        (histogram.negatives, NEGATIVE, "negatives"),
        (histogram.positives, POSITIVE, "positives"),
    ):
        axes.stairs(values / width, histogram.edges, color=colour, fill=True, alpha=0.45, label=name)
    seen = np.flatnonzero(histogram.negatives + histogram.positives)
    if len(seen):
        axes.set_xlim(histogram.edges[seen[0]], histogram.edges[seen[-1] + 1])
    axes.set_xlabel("cosine similarity")
    axes.set_ylabel("density of pairs")
    axes.legend(frameon=False)


def rank_histogram(axes: "Axes", first_rank: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
    """Where first positives stand: 1, 2, 3-4, 5-8, ... so that the tail can be seen."""
    edges = [1]
    while edges[-1] <= first_rank.max():
        edges.append(edges[-1] * 2)
    # Bins [1], [2], [3, 4], [5, 8], ...: after the first, each ends at a power of two.
    uppers = np.array(edges)
    counts = np.bincount(np.searchsorted(uppers, first_rank), minlength=len(uppers))
    lowers = np.concatenate(([1], uppers[:-1] + 1))
    names = [str(a) if a == b else f"{a}-{b}" for a, b in zip(lowers, uppers, strict=True)]
    used = int(np.flatnonzero(counts)[-1]) + 1
    axes.bar(names[:used], counts[:used], color=POSITIVE)
    axes.tick_params(axis="x", rotation=45)
    axes.set_yscale("log" if counts.max() > 50 * max(1, counts[counts > 0].min()) else "linear")
    axes.set_xlabel("rank of the first positive")
    axes.set_ylabel("queries")
