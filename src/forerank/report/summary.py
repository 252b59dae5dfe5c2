"""The numbers of a run: before and after, every metric, the curves of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from numpy.typing import NDArray

from forerank.metrics.registry import find_metric, is_better, is_share
from forerank.metrics.registry import title as title_of
from forerank.metrics.result import category_table, html_table
from forerank.report import charts, readings


@dataclass(frozen=True)
class Section:
    """A part of the page: without a title it is not listed, without a body it is left out."""

    anchor: str
    title: str
    body: str  # HTML


def headline(
    evaluations: Mapping[str, Any], labels: NDArray[Any] | None, catalogue: float | None = None
) -> Section:
    """Recall@1 before and after, large, with intervals and the difference; also the whole catalogue's."""
    if not evaluations:
        return Section("headline", "", "")
    (first, before), *_, (last, after) = [*evaluations.items()] * 2  # one evaluation is both
    metric = (
        "recall@1" if "recall@1" in readings.figures(after) else next(iter(readings.figures(after)), None)
    )
    if metric is None:
        return Section("headline", "", "")
    numbers = _number(last, after, metric, "after")
    change = ""
    if len(evaluations) > 1 and metric in readings.figures(before):
        numbers = (
            f'{_number(first, before, metric, "before")}<span class="arrow" aria-label="to">→</span>{numbers}'
        )
        change = _change(before, after, metric, labels)
    rows = []
    for i, (name, evaluation) in enumerate(evaluations.items()):
        value = readings.figures(evaluation).get(metric)
        if value is not None:
            low, high = readings.interval(evaluation, metric) or (None, None)
            style = "s1" if i == len(evaluations) - 1 else "s0"
            rows.append(charts.Interval(name, value, low, high, style))
    dots = (
        charts.intervals("with 95% confidence intervals", rows)
        if any(r.low is not None for r in rows)
        else ""
    )
    meaning = " (percent of queries whose nearest image is right)" if metric == "recall@1" else ""
    what = f'<p class="what">{escape(title_of(metric))}{meaning}</p>'
    whole = ""
    if catalogue is not None:
        of_all = readings.shown_value("recall@1", catalogue)
        whole = f'<p class="what">In the whole catalogue, all classes searched together: <b>{of_all}%</b></p>'
    left = f'<div>{what}<div class="numbers">{numbers}</div>{change}{whole}</div>'
    return Section("headline", "", f'<div class="headline card">{left}<div>{dots}</div></div>')


def _number(name: str, evaluation: Any, metric: str, kind: str) -> str:
    value = readings.shown_value(metric, readings.figures(evaluation)[metric])
    spread = readings.interval(evaluation, metric)
    ends = "" if spread is None else f"<br>{' to '.join(readings.shown_value(metric, e) for e in spread)}"
    unit = "<small>%</small>" if is_share(metric) else ""
    return f'<div class="number {kind}"><b>{value}{unit}</b><span>{escape(name)}{ends}</span></div>'


def _change(before: Any, after: Any, metric: str, labels: NDArray[Any] | None) -> str:
    difference = readings.figures(after)[metric] - readings.figures(before)[metric]
    says, kind = "", "up" if is_better(metric, difference, 0) else "down" if difference else ""
    spread = readings.recall_difference(before, after, labels) if metric == "recall@1" else None
    if spread is not None:
        ends = " to ".join(readings.shown_value(metric, end, True) for end in spread)
        unclear = spread[0] <= 0 <= spread[1]
        says = f" <small>95% interval {ends}{': no clear difference' if unclear else ''}</small>"
        kind = "" if unclear else kind
    unit = " points" if is_share(metric) else ""
    return f'<div class="change {kind}">{readings.shown_value(metric, difference, True)}{unit}{says}</div>'


def metrics(evaluations: Mapping[str, Any]) -> Section:
    """The table of all figures and the recall curve."""
    if not evaluations:
        return Section("metrics", "", "")
    read = {name: readings.figures(evaluation) for name, evaluation in evaluations.items()}
    names = list(dict.fromkeys(metric for one in read.values() for metric in one))
    first, *_, last = [*read] * 2
    several = len(read) > 1
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in read)
    head += '<th scope="col" class="difference">difference</th>' if several else ""
    rows = []
    for metric in names:
        cells = []
        for name, one in read.items():
            spread = readings.interval(evaluations[name], metric)
            ends = (
                ""
                if spread is None
                else f"<small>{' to '.join(readings.shown_value(metric, e) for e in spread)}</small>"
            )
            cells.append(f"<td>{readings.shown_value(metric, one.get(metric, float('nan')))}{ends}</td>")
        if several:
            change = read[last].get(metric, float("nan")) - read[first].get(metric, float("nan"))
            judged = (
                abs(change) > 5e-4 and find_metric(metric)[0].better
            )  # a distance is neither good nor bad
            kind = ("up" if is_better(metric, change, 0) else "down") if judged else ""
            value = readings.shown_value(metric, change, True)
            cells.append(f'<td class="difference {kind}">{value}</td>')
        rows.append(f'<tr><th scope="row">{escape(title_of(metric))}</th>{"".join(cells)}</tr>')
    table = f"<table><thead><tr><th>metric</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    note = '<p class="under">Shares in percent. Small print: 95% confidence intervals.</p>'
    curve = _recall_curve(read)
    kind = "figures several" if len(read) > 2 else "figures"
    card = f'<div class="card"><div class="scroll">{table}</div></div>'
    body = f'{note}<div class="charts {kind}">{card}{curve}</div>'
    return Section("metrics", "All figures", body)


def categories(evaluations: Mapping[str, Any]) -> Section:
    """Figures per category of the last evaluation, worst first, if it has them."""
    last = [*evaluations.values()][-1] if evaluations else None
    each = getattr(last, "categories", None)
    if not each:
        return Section("categories", "", "")
    under = (
        '<p class="under">Queries of each category against the whole gallery, the worst category first.</p>'
    )
    table = html_table(*category_table(each))
    body = f'{under}<div class="card"><div class="scroll">{table}</div></div>'
    return Section("categories", "By category", body)


def _recall_curve(read: Mapping[str, Mapping[str, float]]) -> str:
    lines = []
    for i, (name, one) in enumerate(read.items()):
        at = sorted((int(metric[7:]), value) for metric, value in one.items() if metric.startswith("recall@"))
        style = "s1" if i == len(read) - 1 else f"s{0 if i == 0 else 1 + i}"
        lines.append(charts.Line(name, [k for k, _ in at], [v for _, v in at], style, dots=True))
    if max((len(line.x) for line in lines), default=0) < 2:
        return ""
    return charts.line_chart("Recall@k", lines, x_label="k", y_label="percent", share=True, log_x=True)


@dataclass(frozen=True)
class CheckpointChoice:
    """How the checkpoint was chosen.

    Attributes:
        figure: the validation figure that chose it, such as "map@r".
        step: where that figure was best; 0 is the model from before training.
        before: the figure of that model, if it was measured.
    """

    figure: str
    step: int
    before: float | None = None


def training(history: Sequence[Mapping[str, Any]], choice: CheckpointChoice | None) -> Section:
    """Loss and validation figures over the steps, the checkpoint marked in the figure that chose it."""
    axis, losses = readings.curves(history, "loss")
    drawn = charts.line_chart("Loss", losses, x_label=axis, y_label="loss")
    rows, mark = list(history), None
    if choice is not None:
        if choice.before is not None:
            rows.insert(0, {"step": 0, "validation": {choice.figure: choice.before}})
        axis, chosen = readings.curves(rows, f"validation/{choice.figure}")
        best = [y for line in chosen for x, y in zip(line.x, line.y, strict=True) if x == choice.step]
        if best:
            value = readings.shown_value(choice.figure, best[0])
            mark = (float(choice.step), f"kept: step {choice.step:,}, {value}")
        title = f"{title_of(choice.figure)}, by which the checkpoint is chosen"
        share = is_share(choice.figure)
        unit = "percent" if share else find_metric(choice.figure)[0].unit
        drawn += charts.line_chart(title, chosen, x_label=axis, y_label=unit, share=share, mark=mark)
    if choice is None or not choice.figure.startswith("recall"):
        axis, recalls = readings.curves(history, "recall")
        drawn += charts.line_chart("Validation recall", recalls, x_label=axis, y_label="percent", share=True)
    under = '<p class="under">As in metrics.jsonl. Long curves are averaged; the band is their spread.</p>'
    return Section("training", "Training", f'{under}<div class="charts">{drawn}</div>' if drawn else "")
