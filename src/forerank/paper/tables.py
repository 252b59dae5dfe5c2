"""The paper's tables: which condition stands behind each row, and measured beside published."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerank.metrics.registry import from_symbol
from forerank.paper.methods import METHODS, VARIANTS
from forerank.paper.published import PublishedTable, published_table
from forerank.paper.study import Condition, Study
from forerank.report.tables import Cell, ResultTable

NOISE_RATES = (0.0, 0.1, 0.2, 0.4)
ROBUST = ("Smooth-AP", *VARIANTS)
# Data set each table belongs to in the paper; anything else is a stand-in.
NATIVE = {
    "variants-sop": "sop",
    "variants-vehicle-id": "vehicle_id",
    "comparison-sop": "sop",
    "comparison-vehicle-id": "vehicle_id",
    "comparison-inaturalist": "inaturalist",
    "robustness-sop": "sop",
    "robustness-vehicle-id": "vehicle_id",
}
BEST_B = {"sop": 4.0, "vehicle_id": 1.0}  # the paper reports Ib at its best b


def rows(name: str, study: Study) -> dict[str, Condition | None]:
    """Row of a table -> the condition to train under; None where nothing here implements the method."""
    published = published_table(name).rows
    if name.startswith("variants"):
        return {method: variant(method, study) for method in published}
    if name.startswith("robustness"):
        return {method: replace_merged(variant(method, study), 3) for method in ROBUST}
    batch = 224 if name == "comparison-inaturalist" else study.setting.compared
    found: dict[str, Condition | None] = {}
    for row in published:
        method, _, size = row.partition(", batch ")
        if not METHODS[method].runs:
            found[row] = None
        else:
            wanted = min(int(size), study.setting.compared) if size else batch
            # The setting's own batch is the plain condition, so that its runs are shared.
            found[row] = Condition(method, batch=None if wanted == study.setting.batch else wanted)
    return found


def conditions(name: str, study: Study) -> list[Condition]:
    """What has to be trained for a table."""
    if name == "label-noise":
        return [Condition(method, noise=rate) for rate in NOISE_RATES for method in ROBUST]
    found = [condition for condition in rows(name, study).values() if condition is not None]
    if name.startswith("robustness"):  # the loss against unmerged classes is part of the claim
        found += [variant(method, study) for method in ROBUST]
    return found


@dataclass(frozen=True)
class Line:
    """One number of a table: published, measured (one value a seed), and their difference."""

    method: str
    column: str
    published: float | None
    measured: tuple[float, ...]
    note: str = ""

    @property
    def difference(self) -> float | None:
        if self.published is None or not self.measured:
            return None
        return float(np.mean(self.measured)) - self.published


def lines(name: str, study: Study) -> list[Line]:
    """Every number of a table, row by row."""
    published = published_table(name)
    found = []
    for method, condition in rows(name, study).items():
        note = METHODS[method.partition(", batch ")[0]].note
        for column in published.columns:
            metric = metric_of(column, study, name)
            values = study.measured(condition, metric) if condition and metric else []
            theirs = published.rows.get(method, {}).get(column)
            found.append(Line(method, column, theirs, tuple(values), note))
    return found


def metric_of(column: str, study: Study, name: str) -> str | None:
    """The metric of a run that answers a column of the paper; None where this data set has no such test.

    VehicleID has three test sets. Where another data set stands in, its one test set answers the columns of
    the large one, and the others stay empty.
    """
    size, _, rest = column.partition(" ")
    if rest:
        if study.on == NATIVE[name]:
            return f"{size}/{from_symbol(rest)}"
        return from_symbol(rest) if size == "large" else None
    return from_symbol(column)


def make_table(name: str, study: Study) -> ResultTable:
    """Three lines a method: published, measured with its spread over seeds, difference."""
    published = published_table(name)
    by_method: dict[str, list[Line]] = {}
    for line in lines(name, study):
        by_method.setdefault(line.method, []).append(line)
    body: list[list[Cell]] = []
    for method, cells in by_method.items():
        mine: list[list[Cell]] = []
        if any(cell.published is not None for cell in cells):
            mine.append(["published", *[_number(c.published, c.column) for c in cells]])
        if any(cell.measured for cell in cells):
            mine.append(["measured", *[_spread(c.measured, c.column) for c in cells]])
        if any(cell.difference is not None for cell in cells):
            mine.append(["difference", *[_number(c.difference, c.column, "+") for c in cells]])
        # The name once, on the first of its lines.
        body += [[method if i == 0 else "", *line] for i, line in enumerate(mine)]
    return ResultTable(
        ["method", "", *published.columns],
        body,
        title=f"{published.number} of the paper: {published.title}. {_where(name, study)}",
        notes=notes(name, study, published),
    )


def make_noise_table(study: Study) -> ResultTable:
    """R@1 of each loss at each share of wrong training labels; the paper argues and prints nothing."""
    body: list[list[Cell]] = []
    for method in ROBUST:
        clean = study.measured(Condition(method), "recall@1")
        row: list[Cell] = [method]
        for rate in NOISE_RATES:
            row.append(_spread(tuple(study.measured(Condition(method, noise=rate), "recall@1")), "R@1"))
        worst = study.measured(Condition(method, noise=NOISE_RATES[-1]), "recall@1")
        row.append(_number(float(np.mean(worst) - np.mean(clean)), "R@1", "+") if clean and worst else None)
        body.append(row)
    return ResultTable(
        ["method", *[f"{rate:.0%} wrong" for rate in NOISE_RATES], "0% to 40%"],
        body,
        title=f"R@1 (%) with a share of wrong training labels. Measured on {study.on}; not in the paper",
        notes=[
            *unlearned(
                study, {f"{m} at {r:.0%}": Condition(m, noise=r) for m in ROBUST for r in NOISE_RATES}
            ),
            *settings(study),
        ],
    )


def make_csv(name: str, study: Study) -> str:
    """Every number with all its digits, one a line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "column", "published", "measured", "spread", "seeds", "difference", "note"])
    for line in lines(name, study):
        mean = float(np.mean(line.measured)) if line.measured else ""
        spread = float(np.std(line.measured, ddof=1)) if len(line.measured) > 1 else ""
        theirs = "" if line.published is None else line.published
        difference = "" if line.difference is None else line.difference
        count = len(line.measured)
        writer.writerow([line.method, line.column, theirs, mean, spread, count, difference, line.note])
    return out.getvalue()


def notes(name: str, study: Study, published: PublishedTable) -> list[str]:
    """What stands under a table."""
    found = []
    if study.on != NATIVE[name]:
        found.append(
            f"{study.on} stands in for {NATIVE[name]}: the difference says how far the data sets lie apart, "
            "the order of the methods is what can be compared."
        )
        if any(" " in column for column in published.columns):
            found.append(f"The test set of {study.on} answers the columns of the large test set.")
    remarks: dict[str, list[str]] = {}
    for row in rows(name, study):
        method = row.partition(", batch ")[0]
        if METHODS[method].note:
            remarks.setdefault(METHODS[method].note, []).append(method)
    found += [f"{', '.join(methods)}: {note}." for note, methods in remarks.items()]
    if name.startswith("comparison"):
        if "Dq, batch 384" in rows(name, study) and study.setting.compared < 384:
            found.append(f"On {study.on} the row of batch 384 is trained with {study.setting.compared}.")
        if study.setting.quick and study.seeds > 1:
            found.append("Other people's losses are trained with one seed on this data set, ours with all.")
        found.append(
            "Baselines run with their package's default options; nobody tuned them, or ours, for this."
        )
    found += unlearned(study, {row: c for row, c in rows(name, study).items() if c is not None})
    if name.startswith("robustness"):
        found.append("The paper's text names Ib, its tables Iu: both are run, and the other variants too.")
        found += _loss_by_merging(study)
    return found + settings(study)


def _loss_by_merging(study: Study) -> list[str]:
    parts = []
    for method in ROBUST:
        plain = study.measured(variant(method, study), "recall@1")
        merged = study.measured(replace_merged(variant(method, study), 3), "recall@1")
        if plain and merged:
            parts.append(f"{method} {np.mean(merged) - np.mean(plain):+.1f}")
    return [f"R@1 against unmerged classes: {', '.join(parts)}."] if parts else []


def unlearned(study: Study, conditions: Mapping[str, Condition]) -> list[str]:
    """A sentence about runs that only show what they started from."""
    idle = {row: count for row, condition in conditions.items() if (count := study.unlearned(condition))}
    told = ", ".join(f"{row} ({count})" for row, count in idle.items())
    return [f"Runs that learned nothing and show the network as it came: {told}."] if idle else []


def settings(study: Study) -> list[str]:
    recipe = study.recipe(Condition(), 0)
    length = f"{recipe.schedule.steps} steps" if recipe.schedule.steps else f"{recipe.schedule.epochs} epochs"
    return [
        f"Settings: {recipe.model.backbone}, embedding {recipe.model.embedding_dim}, {recipe.mode} training, "
        f"{length}, {recipe.optimiser.algorithm} lr {recipe.optimiser.lr:g}, "
        f"weight decay {recipe.optimiser.weight_decay:g}, batch {recipe.batch.batch_size} unless the row "
        "says "
        f"otherwise, |P| = {recipe.batch.images_per_class}, {study.seeds} seeds; "
        f"± is the standard deviation over seeds."
    ]


def variant(method: str, study: Study) -> Condition:
    """A variant at the paper's batch of 112; Ib at the b the paper found best on its own data set."""
    if method == "Ib" and study.on in BEST_B:
        return Condition("Ib", options=(("b", BEST_B[study.on]),))
    return Condition(method)


def replace_merged(condition: Condition, group: int) -> Condition:
    """The same condition with every `group` training classes merged."""
    return Condition(
        condition.method,
        condition.batch,
        condition.images_per_class,
        group,
        condition.noise,
        condition.options,
    )


def _where(name: str, study: Study) -> str:
    return f"Measured on {study.on}" + (
        "" if study.on == NATIVE[name] else f", standing in for {NATIVE[name]}"
    )


def _number(value: float | None, column: str, sign: str = "") -> str | None:
    if value is None:
        return None
    digits = 3 if column.startswith("dists") else 1
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def _spread(values: tuple[float, ...], column: str) -> str | None:
    if not values:
        return None
    digits = 3 if column.startswith("dists") else 1
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def best_first(values: Mapping[str, float]) -> list[str]:
    """Names in falling order of their value.

    >>> best_first({"O": 1.0, "Dq": 3.0, "Ds": 2.0})
    ['Dq', 'Ds', 'O']
    """
    return sorted(values, key=lambda name: -values[name])
