"""Every method of the registry on one data set: where it began, what it reached, where it differs."""

import numpy as np

from forerank.paper import tables
from forerank.paper.methods import METHODS, VARIANTS, WITHOUT_POSITIVES
from forerank.paper.published import published_table
from forerank.paper.study import Condition, Study
from forerank.report.tables import Cell, ResultTable

NAME = "all-methods"
OURS = "Dq"  # the one variant of the PNP loss that stands beside the methods
COLUMNS = {"R@1": "recall@1", "mAP@R": "map@r"}


def all_conditions() -> list[Condition]:
    """One condition per method, in the order of the paper's table for SOP; the others follow."""
    compared = [row.partition(", batch ")[0] for row in published_table("comparison-sop").rows]
    others = [name for name in METHODS if name not in (*VARIANTS, WITHOUT_POSITIVES)]
    names = dict.fromkeys([*compared, *others])
    return [Condition(name) for name in names]


def published_recall(method: str) -> float | None:
    """R@1 on SOP as the paper prints it; None if its table for SOP does not name the method.

    >>> published_recall("Margin"), published_recall("Dq"), published_recall("Triplet")
    (72.7, 80.1, None)
    """
    rows = published_table("comparison-sop").rows
    return rows.get(method, rows.get(f"{method}, batch 112", {})).get("R@1")


def build_all_methods_table(study: Study) -> ResultTable:
    """A row per method: published on SOP, and measured here at the start and at the end."""
    body: list[list[Cell]] = []
    remarks: list[str] = []
    for condition in all_conditions():
        method = condition.method
        row: list[Cell] = [method, published_recall(method)]
        for metric in COLUMNS.values():
            start, end = study.started(condition, metric), study.measured(condition, metric)
            gain = float(np.mean(end) - np.mean(start)) if start and end else None
            row += [float(np.mean(start)) if start else None, tables.spread(end), gain]
        ended = len(study.results(condition))
        row.append(f"{ended - study.unlearned(condition)} of {ended}" if ended else None)
        note = METHODS[method].note
        row.append(len(remarks) + 1 if note else None)
        if note:
            remarks.append(f"Note {len(remarks) + 1}, {method}: {note}.")
        body.append(row)
    measured = [[f"{name} start", f"{name} reached", f"{name} gain"] for name in COLUMNS]
    return ResultTable(
        ["method", "SOP R@1, published", *measured[0], *measured[1], "seeds that improved", "note"],
        body,
        title=f"Every method, in percent. Measured on {study.on}",
        notes=[*_explanations(study), *remarks, *tables.settings(study)],
        signed=frozenset(names[2] for names in measured),
    )


def _explanations(study: Study) -> list[str]:
    """What a reader needs to read the table."""
    absent = [c.method for c in all_conditions() if published_recall(c.method) is None]
    figure = study.recipe(Condition(), 0).evaluation.choose_by
    return [
        "Start: the network before training, without a head; it differs where a method changes the pooling. "
        "Reached: the checkpoint with the best "
        f"{figure} on the validation classes. A seed improved if some checkpoint was better there than the "
        "start; otherwise the start is what was measured.",
        f"The paper's table for SOP does not name {', '.join(absent[:-1])} and {absent[-1]}.",
    ]
