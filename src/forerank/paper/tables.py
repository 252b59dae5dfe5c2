"""The paper's tables: which condition stands behind each row, and measured beside published."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerank.metrics.registry import from_symbol
from forerank.paper.methods import METHODS, VARIANTS, WITHOUT_POSITIVES
from forerank.paper.published import PublishedTable, published_table
from forerank.paper.study import Condition, Study
from forerank.report.tables import Cell, ResultTable

NOISE_RATES = (0.0, 0.2, 0.4)
ROBUST = ("Smooth-AP", *VARIANTS)
CENTRAL = ("O", "Dq", "Smooth-AP")  # also trained with all weights where a head stands in
# The data set that each table uses in the paper; any other one stands in for it.
NATIVE = {
    "variants-sop": "sop",
    "variants-vehicle-id": "vehicle_id",
    "comparison-sop": "sop",
    "comparison-vehicle-id": "vehicle_id",
    "comparison-inaturalist": "inaturalist",
    "robustness-sop": "sop",
    "robustness-vehicle-id": "vehicle_id",
}
GALLERIES = "ten galleries"


def rows(name: str, study: Study) -> dict[str, Condition]:
    """Row of a table -> the condition to train under."""
    published = published_table(name).rows
    if name.startswith("variants"):
        return {method: Condition(method) for method in published}
    if name.startswith("robustness"):
        return {method: Condition(method, merged=3) for method in ROBUST}
    batch = 224 if name == "comparison-inaturalist" else study.setting.compared
    conditions: dict[str, Condition] = {}
    for row in published:
        method, _, size = row.partition(", batch ")
        wanted = min(int(size), study.setting.compared) if size else batch
        # The setting's own batch is the plain condition, so that its runs are shared.
        conditions[row] = Condition(method, batch=None if wanted == study.setting.batch else wanted)
    return conditions


def conditions(name: str, study: Study) -> list[Condition]:
    """What has to be trained for a table."""
    if name == "label-noise":
        return [Condition(method, noise=rate) for rate in NOISE_RATES for method in ROBUST]
    if name == "all-weights":
        return [Condition(m, all_weights=True) for m in CENTRAL] if study.setting.all_weights else []
    needed = list(rows(name, study).values())
    if name.startswith("robustness"):  # what merging costs is part of the claim
        needed += [Condition(method) for method in ROBUST]
    return needed


@dataclass(frozen=True)
class TableEntry:
    """One number of a table: published, measured (one value per seed), and their difference.

    `galleries` are the same runs under the data set's own protocol, where it has one.
    """

    method: str
    column: str
    published: float | None
    measured: tuple[float, ...]
    galleries: tuple[float, ...] = ()
    note: str = ""

    @property
    def difference(self) -> float | None:
        if self.published is None or not self.measured:
            return None
        return float(np.mean(self.measured)) - self.published


def lines(name: str, study: Study) -> list[TableEntry]:
    """Every number of a table, row by row."""
    published = published_table(name)
    result = []
    for method, condition in rows(name, study).items():
        note = METHODS[method.partition(", batch ")[0]].note
        for column in published.columns:
            metric = metric_of(column, study, name)
            size, slash, rest = (metric or "").partition("/")
            values = study.measured(condition, metric) if metric else []
            own = study.measured(condition, f"{size}, {GALLERIES}/{rest}") if slash else []
            theirs = published.rows.get(method, {}).get(column)
            result.append(TableEntry(method, column, theirs, tuple(values), tuple(own), note))
    return result


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


def build_table(name: str, study: Study) -> ResultTable:
    """Up to four lines per method: published, measured with its spread, difference, own protocol."""
    published = published_table(name)
    by_method: dict[str, list[TableEntry]] = {}
    for line in lines(name, study):
        by_method.setdefault(line.method, []).append(line)
    body: list[list[Cell]] = []
    for method, cells in by_method.items():
        mine: list[list[Cell]] = []
        if any(cell.published is not None for cell in cells):
            mine.append(["published", *[_number(c.published, c.column) for c in cells]])
        if any(cell.measured for cell in cells):
            mine.append(["measured", *[spread(c.measured, c.column) for c in cells]])
        if any(cell.difference is not None for cell in cells):
            mine.append(["difference", *[_number(c.difference, c.column, "+") for c in cells]])
        if any(cell.galleries for cell in cells):
            mine.append([GALLERIES, *[spread(c.galleries, c.column) for c in cells]])
        # The name once, on the first of its lines.
        body += [[method if i == 0 else "", *line] for i, line in enumerate(mine)]
    return ResultTable(
        ["method", "", *published.columns],
        body,
        title=f"{published.number} of the paper: {published.title}. {_where(name, study)}",
        notes=notes(name, study, published),
    )


def build_noise_table(study: Study) -> ResultTable:
    """R@1 of each loss at each share of wrong training labels; the paper argues and prints nothing."""
    body: list[list[Cell]] = []
    for method in ROBUST:
        measured = [study.measured(Condition(method, noise=rate), "recall@1") for rate in NOISE_RATES]
        row: list[Cell] = [method, *[spread(values) for values in measured]]
        clean, worst = measured[0], measured[-1]
        row.append(_number(float(np.mean(worst) - np.mean(clean)), "R@1", "+") if clean and worst else None)
        body.append(row)
    named = {f"{m} at {r:.0%}": Condition(m, noise=r) for m in ROBUST for r in NOISE_RATES}
    return ResultTable(
        ["method", *[f"{rate:.0%} wrong" for rate in NOISE_RATES], "0% to 40%"],
        body,
        title=f"R@1 (%) with a share of wrong training labels. Measured on {study.on}; not in the paper",
        notes=[*unlearned(study, named), *settings(study)],
    )


def build_all_weights_table(study: Study) -> ResultTable:
    """The central losses with all weights trained, beside the heads that stand for them elsewhere."""
    body: list[list[Cell]] = []
    for method in CENTRAL:
        row: list[Cell] = [method]
        for condition in (Condition(method, all_weights=True), Condition(method)):
            for metric, column in (("recall@1", "R@1"), ("map@r", "mAP@R")):
                row.append(spread(study.measured(condition, metric), column))
        body.append(row)
    header = ["method", "R@1, all weights", "mAP@R, all weights", "R@1, head", "mAP@R, head"]
    title = f"All weights trained, and a head alone. Measured on {study.on}"
    rate = study.recipe(Condition(all_weights=True), 0).optimiser.lr
    note = (
        f"All weights: the recipe's own learning rate {rate} for every loss, not chosen per loss."
        if study.setting.all_weights
        else f"On {study.on} every run trains all weights: this table has nothing to add there."
    )
    return ResultTable(header, body, title=title, notes=[note, *settings(study)])


def build_redundancy_table(study: Study) -> ResultTable:
    """Smooth-AP, the same without the positives before (Dq at alpha = 1), and Dq at the usual alpha."""
    columns = {"R@1": "recall@1", "mAP@R": "map@r", "NMI": "nmi"}
    columns |= {distance: distance for distance in ("dists@intra", "dists@inter")}
    named = {
        "Smooth-AP": Condition("Smooth-AP"),
        "Smooth-AP without R_P (Dq, alpha 1)": Condition(WITHOUT_POSITIVES),
        "Dq": Condition("Dq"),
    }
    body: list[list[Cell]] = [
        [name, *[spread(study.measured(c, metric), column) for column, metric in columns.items()]]
        for name, c in named.items()
    ]
    title = f"Are the positives before a positive redundant? Measured on {study.on}; not in the paper"
    return ResultTable(["method", *columns], body, title=title, notes=settings(study))


def build_csv(name: str, study: Study) -> str:
    """Every number with all its digits, one per line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = ["method", "column", "published", "measured", "spread", "seeds", "difference", GALLERIES, "note"]
    writer.writerow(header)
    for line in lines(name, study):
        mean = float(np.mean(line.measured)) if line.measured else ""
        spread = float(np.std(line.measured, ddof=1)) if len(line.measured) > 1 else ""
        theirs = "" if line.published is None else line.published
        difference = "" if line.difference is None else line.difference
        own = float(np.mean(line.galleries)) if line.galleries else ""
        count = len(line.measured)
        writer.writerow([line.method, line.column, theirs, mean, spread, count, difference, own, line.note])
    return out.getvalue()


def notes(name: str, study: Study, published: PublishedTable) -> list[str]:
    """What stands under a table."""
    sentences = []
    if study.on != NATIVE[name]:
        sentences.append(
            f"{study.on} stands in for {NATIVE[name]}: the difference says how far the data sets lie apart, "
            "the order of the methods is what can be compared."
        )
        if any(" " in column for column in published.columns):
            sentences.append(f"The test set of {study.on} answers the columns of the large test set.")
    elif study.on == "vehicle_id":
        used = study.recipe(Condition(), 0).data.options.get("test", "large")
        sentences.append(
            f"Distances and NMI are those of the {used} test list; the paper does not say which it used. "
            f"'{GALLERIES}' is the data set's own protocol: one random image of each vehicle is the gallery, "
            "averaged over ten draws; the other lines follow the paper, where every image queries all others."
        )
    remarks: dict[str, list[str]] = {}
    for row in rows(name, study):
        method = row.partition(", batch ")[0]
        if METHODS[method].note:
            remarks.setdefault(METHODS[method].note, []).append(method)
    sentences += [f"{', '.join(dict.fromkeys(methods))}: {note}." for note, methods in remarks.items()]
    if "Dq, batch 384" in rows(name, study) and study.setting.compared < 384:
        sentences.append(f"On {study.on} the row of batch 384 is trained with {study.setting.compared}.")
    if name.startswith("robustness") and study.setting.merged:
        sentences.append(f"Merged classes are trained with batches of {study.setting.merged}: few are left.")
    sentences += unlearned(study, rows(name, study))
    if name.startswith("robustness"):
        sentences.append(
            "The paper's text names Ib, its tables Iu: both are run, and the other variants too."
        )
        sentences += _loss_by_merging(study)
    return sentences + settings(study)


def _loss_by_merging(study: Study) -> list[str]:
    parts = []
    for method in ROBUST:
        plain = study.measured(Condition(method), "recall@1")
        merged = study.measured(Condition(method, merged=3), "recall@1")
        if plain and merged:
            parts.append(f"{method} {np.mean(merged) - np.mean(plain):+.1f}")
    return [f"R@1 against unmerged classes: {', '.join(parts)}."] if parts else []


def unlearned(study: Study, named: Mapping[str, Condition]) -> list[str]:
    """A sentence about runs that only show what they started from."""
    idle = {row: count for row, condition in named.items() if (count := study.unlearned(condition))}
    listed = ", ".join(f"{row} ({count})" for row, count in idle.items())
    return [f"Runs that learned nothing and show the network before training: {listed}."] if idle else []


def settings(study: Study) -> list[str]:
    """How the runs were trained, in one sentence."""
    recipe = study.recipe(Condition(), 0)
    length = f"{recipe.schedule.steps} steps" if recipe.schedule.steps else f"{recipe.schedule.epochs} epochs"
    rate = "chosen per method" if study.chosen else f"{recipe.optimiser.lr:g}"
    held = f"{recipe.data.validation:.0%} of the training classes do not train and choose the checkpoint"
    if recipe.evaluation.choose_on == "test":
        held = "the checkpoint was chosen on the test classes, so these numbers are optimistic"
    seeds = f"{study.seeds} seeds for the losses that claims compare, {study.other_seeds} for the rest"
    return [
        f"Settings: {recipe.model.backbone}, embedding {recipe.model.embedding_dim}, {recipe.mode} training, "
        f"{length}, {recipe.optimiser.algorithm}, learning rate {rate}, "
        f"weight decay {recipe.optimiser.weight_decay:g}, batch {recipe.batch.batch_size} unless the row "
        "says "
        f"otherwise, |P| = {recipe.batch.images_per_class}, {seeds}; ± is the standard deviation over seeds; "
        f"{held}."
    ]


def _where(name: str, study: Study) -> str:
    return f"Measured on {study.on}" + (
        "" if study.on == NATIVE[name] else f", standing in for {NATIVE[name]}"
    )


def _number(value: float | None, column: str, sign: str = "") -> str | None:
    if value is None:
        return None
    return f"{value:{sign}.{_digits(column)}f}".replace("-", "−")


def spread(values: Sequence[float], column: str = "R@1") -> str | None:
    """The mean of the seeds and their standard deviation, with the digits of a column of the paper.

    >>> spread([70.0, 72.0]), spread([]), spread([0.5], "dists@intra")
    ('71.0 ± 1.4', None, '0.500')
    """
    if not values:
        return None
    digits = _digits(column)
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def _digits(column: str) -> int:
    return 3 if column.startswith("dists") else 1
