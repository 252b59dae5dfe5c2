"""The trainings of a search as a table and a plot."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forerank.metrics.registry import is_share
from forerank.metrics.registry import title as title_of
from forerank.report import charts
from forerank.report.readings import shown_value
from forerank.report.summary import Section
from forerank.report.tables import Cell, ResultTable

MOST_ROWS = 40


class TrialLike(Protocol):
    """What is shown of one training."""

    @property
    def number(self) -> int: ...
    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def figure(self) -> float | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def ended(self) -> str: ...


def trials_section(trials: Sequence[TrialLike], figure: str) -> Section:
    """All trainings of a search, the best first, and how the best figure rose with time."""
    measured = [trial for trial in trials if trial.figure is not None]
    if not measured:
        return Section("trials", "", "")
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    best_first = sorted(measured, key=lambda trial: -(trial.figure or 0.0))
    rows: list[list[Cell]] = []
    for trial in best_first[:MOST_ROWS]:
        values = [_short(trial.values.get(key)) for key in keys]
        told = shown_value(figure, trial.figure or 0.0)
        rows.append([str(trial.number + 1), told, *values, trial.steps, f"{trial.seconds:.0f}", trial.ended])
    header = [
        "trial",
        title_of(figure),
        *[key.rpartition(".")[2] for key in keys],
        "steps",
        "seconds",
        "ended",
    ]
    table = ResultTable(header, rows).to_html()
    minutes, best, total, top = list[float](), list[float](), 0.0, float("-inf")
    for trial in trials:
        total += trial.seconds / 60
        if trial.figure is not None:
            top = max(top, trial.figure)
            minutes.append(total)
            best.append(top)
    dots = [(m, t.figure) for m, t in zip(minutes, measured, strict=True) if t.figure is not None]
    share = is_share(figure)
    plot = charts.line_chart(
        f"{title_of(figure)} of the validation classes",
        [
            charts.Line("each trial", [m for m, _ in dots], [f for _, f in dots], "s0", dots=True),
            charts.Line("best so far", minutes, best, "s1"),
        ],
        x_label="minutes of training",
        y_label="percent" if share else "",
        share=share,
    )
    more = f", the best {MOST_ROWS} shown" if len(measured) > MOST_ROWS else ""
    under = (
        f'<p class="under">{len(trials)} trainings were compared on the validation classes{more}. Those that '
        "fell behind were stopped early. No figure of the test classes chose anything.</p>"
    )
    body = f'{under}<div class="charts">{plot}</div><div class="card">{table}</div>'
    return Section("trials", "Trials", body)


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.2g}" if isinstance(value, float) else str(value)
