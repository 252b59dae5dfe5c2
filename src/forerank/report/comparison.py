"""Several runs beside each other: one page with tables, curves, and differences paired query by query."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerank.errors import InputError
from forerank.files import write_atomically
from forerank.metrics import Evaluation
from forerank.metrics.intervals import class_intervals
from forerank.metrics.registry import is_better, is_share
from forerank.metrics.registry import title as title_of
from forerank.report import charts, readings
from forerank.report.shell import html_page

if TYPE_CHECKING:
    from forerank.data import Table

DRAWS = 2000


@dataclass(frozen=True)
class ComparedRun:
    """One run: its test images, what was measured on them with figures of each query, and its history."""

    name: str
    table: "Table"
    evaluation: Evaluation
    history: Sequence[Mapping[str, Any]] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricDifference:
    """A figure of a run minus that of the first, on the same queries, with its 95% interval."""

    metric: str
    difference: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Paired:
    """The differences of one run to the first; or, in `reason`, why they cannot be paired."""

    name: str
    differences: tuple[MetricDifference, ...] = ()
    reason: str = ""


def pair_runs(runs: Sequence[ComparedRun], *, seed: int = 0) -> list[Paired]:
    """Every further run against the first, query by query, resampling whole classes.

    What two models share (hard queries, easy classes) cancels in a pair: so the interval of the difference
    is narrower than the intervals of the two figures suggest. It needs the same test images, labels and
    queries; where they differ the reason is given and nothing is computed.
    """
    if len(runs) < 2:
        raise InputError("a comparison needs two runs or more.")
    return [_pair(runs[0], other, seed) for other in runs[1:]]


def _pair(first: ComparedRun, other: ComparedRun, seed: int) -> Paired:
    if reason := _differ(first, other):
        return Paired(other.name, reason=reason)
    before, after = _by_query(first), _by_query(other)
    if not np.array_equal(before["query"], after["query"]):
        return Paired(other.name, reason="their queries with a positive differ")
    shared = [m for m in readings.figures(first.evaluation) if m in readings.figures(other.evaluation)]
    gains: dict[str, NDArray[np.float64]] = {}
    for metric in shared:
        values = [_values(metric, each) for each in (before, after)]
        if values[0] is not None and values[1] is not None:
            gains[metric] = values[1] - values[0]
    classes = first.table.label[before["row"]]
    ends = class_intervals(np.stack([*gains.values()], axis=1), classes, draws=DRAWS, seed=seed)
    differences = [
        MetricDifference(metric, float(gain.mean()), float(ends[0, i]), float(ends[1, i]))
        for i, (metric, gain) in enumerate(gains.items())
    ]
    return Paired(other.name, tuple(differences))


def _keys(table: "Table") -> NDArray[np.str_]:
    """(N,) what tells an image from the others: its file and, where there is one, its box."""
    files = [str(Path(file).absolute()) for file in table.files]
    boxes = [""] * len(files) if table.box is None else [str(box.tolist()) for box in table.box]
    return np.array([f"{file} {box}" for file, box in zip(files, boxes, strict=True)])


def _differ(first: ComparedRun, other: ComparedRun) -> str:
    """Why two test sets are not the same; empty if they are."""
    one, two = first.table, other.table
    if len(one) != len(two):
        return f"their test sets differ: {len(one):,} and {len(two):,} images"
    keys = _keys(one), _keys(two)
    order = np.argsort(keys[0], kind="stable"), np.argsort(keys[1], kind="stable")
    strangers = int((keys[0][order[0]] != keys[1][order[1]]).sum())
    if strangers:
        return "their test sets differ: they hold different images"
    for column, what in (("label", "labels"), ("is_query", "queries"), ("is_gallery", "galleries")):
        changed = int((getattr(one, column)[order[0]] != getattr(two, column)[order[1]]).sum())
        if changed:
            return f"their test sets differ: {what} of {changed:,} images"
    return ""


def _by_query(run: ComparedRun) -> dict[str, NDArray[Any]]:
    """The figures of each query, in the order of the images' names, which all runs share."""
    each = run.evaluation.per_query
    if each is None:
        raise InputError(f"the evaluation of {run.name} did not keep the figures of each query.")
    place = np.empty(len(run.table), np.int64)
    place[np.argsort(_keys(run.table), kind="stable")] = np.arange(len(run.table))
    order = np.argsort(place[each.query], kind="stable")
    return {
        "query": place[each.query][order],
        "row": each.query[order],
        "first_rank": each.first_rank[order],
        "average_precision": each.average_precision[order],
    }


def _values(metric: str, each: Mapping[str, NDArray[Any]]) -> NDArray[np.float64] | None:
    """(Q,) a metric of each query, where it follows from what is kept; None for the others."""
    if metric.startswith("recall@"):
        return (each["first_rank"] <= int(metric.partition("@")[2])).astype(np.float64)
    if metric == "map":
        return each["average_precision"].astype(np.float64)
    return 1.0 / each["first_rank"] if metric == "mrr" else None


def comparison_dict(runs: Sequence[ComparedRun], paired: Sequence[Paired]) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    return {
        "runs": [
            {
                "name": run.name,
                "metrics": readings.figures(run.evaluation),
                "intervals": {name: list(ends) for name, ends in run.evaluation.intervals.items()},
                "counts": run.evaluation.counts,
            }
            for run in runs
        ],
        "baseline": runs[0].name,
        "paired": [
            {
                "name": one.name,
                "reason": one.reason or None,
                "differences": [{**asdict(d), "clear": d.clear} for d in one.differences],
            }
            for one in paired
        ],
    }


def write_comparison(path: Path, runs: Sequence[ComparedRun], paired: Sequence[Paired]) -> None:
    """Write the page; it is one file, whole or absent."""
    parts = [
        ("figures", "All figures", _figures(runs)),
        ("paired", f"Differences to {runs[0].name}", _differences(paired)),
        ("curves", "Training", _curves(runs)),
        ("settings", "Where the recipes differ", _recipes(runs)),
    ]
    parts = [part for part in parts if part[2]]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in parts)
    body = "".join(f'<section id="{a}"><h2>{escape(t)}</h2>{html}</section>' for a, t, html in parts)
    sizes = {f"{run.table.name}, {len(run.table):,} images" for run in runs}
    lead = f"{len(runs)} runs on the test part of {' and of '.join(sorted(sizes))}."
    notes = [f"{one.name} and {runs[0].name} are not paired: {one.reason}" for one in paired if one.reason]
    write_atomically(path, html_page("Comparison of runs", body, lead=lead, links=links, notes=notes))


def _style(i: int) -> str:
    return f"s{i % 6}"


def _figures(runs: Sequence[ComparedRun]) -> str:
    read = [readings.figures(run.evaluation) for run in runs]
    names = list(dict.fromkeys(metric for one in read for metric in one))
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    rows = []
    for metric in names:
        cells = []
        for run, one in zip(runs, read, strict=True):
            ends = readings.interval(run.evaluation, metric)
            small = (
                ""
                if ends is None
                else f"<small>{' to '.join(readings.shown_value(metric, e) for e in ends)}</small>"
            )
            cells.append(f"<td>{readings.shown_value(metric, one.get(metric, float('nan')))}{small}</td>")
        rows.append(f'<tr><th scope="row">{escape(title_of(metric))}</th>{"".join(cells)}</tr>')
    table = f"<table><thead><tr><th>metric</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    lines, dots = [], []
    for i, (run, one) in enumerate(zip(runs, read, strict=True)):
        at = sorted((int(m[7:]), value) for m, value in one.items() if m.startswith("recall@"))
        lines.append(charts.Line(run.name, [k for k, _ in at], [v for _, v in at], _style(i), dots=True))
        low, high = readings.interval(run.evaluation, "recall@1") or (None, None)
        if "recall@1" in one:
            dots.append(charts.Interval(run.name, one["recall@1"], low, high, _style(i)))
    drawn = charts.intervals("Recall@1 with 95% confidence intervals", dots) if dots else ""
    drawn += charts.line_chart("Recall@k", lines, x_label="k", y_label="percent", share=True, log_x=True)
    under = '<p class="under">Shares in percent. Small print: 95% confidence intervals of each run alone.</p>'
    card = f'<div class="card"><div class="scroll">{table}</div></div>'
    return f'{under}{card}<div class="charts">{drawn}</div>'


def _differences(paired: Sequence[Paired]) -> str:
    usable = [one for one in paired if one.differences]
    if not usable:
        return '<p class="under">No run has the same test set as the first: see the notes above.</p>'
    metrics = list(dict.fromkeys(d.metric for one in usable for d in one.differences))
    head = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in usable)
    rows = []
    for metric in metrics:
        cells = []
        for one in usable:
            change = next((d for d in one.differences if d.metric == metric), None)
            if change is None:
                cells.append("<td>–</td>")
                continue
            ends = " to ".join(readings.shown_value(metric, end, True) for end in (change.low, change.high))
            kind = ("up" if is_better(metric, change.difference, 0) else "down") if change.clear else ""
            unclear = "" if change.clear else "<small>no clear difference</small>"
            value = readings.shown_value(metric, change.difference, True)
            cells.append(f'<td class="{kind}">{value}<small>{ends}</small>{unclear}</td>')
        unit = " (points)" if is_share(metric) else ""
        rows.append(f'<tr><th scope="row">{escape(title_of(metric))}{unit}</th>{"".join(cells)}</tr>')
    table = f"<table><thead><tr><th>metric</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    under = (
        "Paired: the same queries of both runs are compared, and whole classes are drawn anew for the 95% "
        "interval. The interval of one comparison; of many comparisons some differ by luck."
    )
    return f'<p class="under">{under}</p><div class="card"><div class="scroll">{table}</div></div>'


def _curves(runs: Sequence[ComparedRun]) -> str:
    drawn = ""
    for wanted, title, label, share in (
        ("loss", "Loss", "loss", False),
        ("validation/recall@1", "Validation recall@1", "percent", True),
        ("validation/map@r", "Validation mAP@R", "percent", True),
    ):
        lines, axis = [], "step"
        for i, run in enumerate(runs):
            axis, curves = readings.curves(run.history, wanted)
            lines += [charts.Line(run.name, one.x, one.y, _style(i), one.dots) for one in curves[:1]]
        drawn += charts.line_chart(title, lines, x_label=axis, y_label=label, share=share)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _recipes(runs: Sequence[ComparedRun]) -> str:
    """A table of the settings that are not the same in all runs."""
    flat = [_flat(run.recipe) for run in runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    unlike = [key for key in keys if len({one.get(key, "–") for one in flat}) > 1]
    if not unlike:
        return ""
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f"<td>{escape(one.get(key, '–'))}</td>" for one in flat)
        + "</tr>"
        for key in unlike
    )
    table = f"<table><thead><tr><th>setting</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="card"><div class="scroll">{table}</div></div>'


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """
    >>> _flat({"loss": {"name": "PNP-Dq"}, "seed": 0})
    {'loss.name': 'PNP-Dq', 'seed': '0'}
    """
    values: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            values |= _flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = str(value)
    return values
