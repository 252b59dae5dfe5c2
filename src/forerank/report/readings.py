"""Reading evaluations and training histories for display: names, order, intervals, differences, curves."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.metrics.intervals import class_intervals
from forerank.metrics.registry import shown
from forerank.report.charts import Line


def shown_value(metric: str, value: float, signed: bool = False) -> str:
    """A figure as the report shows it, percentages without their sign.

    >>> shown_value("recall@1", 0.8126), shown_value("dists@intra", 0.25), shown_value("map", -0.01, True)
    ('81.3', '0.250', '−1.0')
    """
    return shown(metric, value, digits=1, signed=signed, mark=False)


def figures(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of an evaluation, in its own order."""
    return {
        str(name): float(evaluation[name])
        for name in evaluation
        if isinstance(evaluation[name], int | float | np.number) and not isinstance(evaluation[name], bool)
    }


def interval(evaluation: Any, metric: str) -> tuple[float, float] | None:
    """The confidence interval of a metric, when the evaluation carries one."""
    ends = (getattr(evaluation, "intervals", None) or {}).get(metric)
    return None if ends is None else (float(ends[0]), float(ends[1]))


def first_ranks(evaluation: Any) -> NDArray[np.int64] | None:
    """(Q,) rank of the first positive of each query, from 1, when the evaluation kept them."""
    kept = getattr(evaluation, "per_query", None)
    return None if kept is None else np.asarray(kept.first_rank)


def recall_difference(before: Any, after: Any, labels: NDArray[Any] | None) -> tuple[float, float] | None:
    """95% interval of the change of recall@1, when both evaluations kept the figures of the same queries."""
    ranks = first_ranks(before), first_ranks(after)
    if (
        ranks[0] is None
        or ranks[1] is None
        or not np.array_equal(before.per_query.query, after.per_query.query)
    ):
        return None
    rows = after.per_query.query
    classes = rows if labels is None else np.asarray(labels)[rows]
    return paired_interval(ranks[0] == 1, ranks[1] == 1, classes)


def paired_interval(
    before: NDArray[np.bool_], after: NDArray[np.bool_], classes: NDArray[Any]
) -> tuple[float, float]:
    """95% bootstrap interval of the difference of two shares measured on the same queries.

    Whole classes are drawn, as for the interval of recall itself, each query with both its outcomes: what
    the two models share cancels, so this is narrower than the two intervals suggest.

    >>> paired_interval(np.zeros(50, bool), np.ones(50, bool), np.arange(50) // 5)
    (1.0, 1.0)
    """
    gain = after.astype(np.float64) - before
    low, high = class_intervals(gain[:, None], classes)[:, 0].tolist()
    return low, high


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a history record, nested names joined by a slash.

    >>> flat({"step": 3, "validation": {"recall@1": 0.5}, "note": "x"})
    {'step': 3.0, 'validation/recall@1': 0.5}
    """
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
            numbers[f"{prefix}{name}"] = float(value)
    return numbers


def curves(history: Sequence[Mapping[str, Any]], wanted: str) -> tuple[str, list[Line]]:
    """The axis and the curves of all numbers of a history whose name contains `wanted`.

    >>> axis, lines = curves([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}], "loss")
    >>> axis, lines[0].name, lines[0].y
    ('step', 'loss', [0.5, 0.4])
    """
    records = [flat(record) for record in history]
    axis = next((a for a in ("step", "epoch") if any(a in record for record in records)), "record")
    points: dict[str, tuple[list[float], list[float]]] = {}
    for number, record in enumerate(records):
        for name, value in record.items():
            # A test figure is taken once, at the end: the table has it, and nobody should choose by it.
            if wanted in name.lower() and not name.startswith("test/") and math.isfinite(value):
                x, y = points.setdefault(name, ([], []))
                x.append(record.get(axis, float(number)))
                y.append(value)
    lines = [
        Line(name, x, y, f"s{1 + i % 5}", dots=len(x) <= 40)
        for i, (name, (x, y)) in enumerate(points.items())
    ]
    return axis, lines
