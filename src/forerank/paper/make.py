"""Turn what was trained into tables and figures on disk."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerank.files import write_atomically
from forerank.paper import ap_surface, centres, examples, loss_curves, penalties, style, sweeps, tables, toy
from forerank.paper.experiments import experiment
from forerank.paper.published import statement
from forerank.paper.study import Study
from forerank.report.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Product:
    """What an experiment left: tables, a figure, and what a reader should know.

    `figure` is the PNG; an SVG of the same name lies beside it. `csv` has every digit where the
    table rounds.
    """

    name: str
    title: str
    reference: str
    tables: tuple[ResultTable, ...] = ()
    figure: Path | None = None
    notes: tuple[str, ...] = ()
    csv: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain values, an empty cell or one that is not a number as None."""
        tables = [
            {
                "title": table.title,
                "header": list(table.header),
                "rows": [[_plain(cell) for cell in row] for row in table.rows],
                "notes": list(table.notes),
            }
            for table in self.tables
        ]
        figure = None if self.figure is None else str(self.figure)
        told = {"name": self.name, "title": self.title, "reference": self.reference}
        return {**told, "tables": tables, "figure": figure, "notes": list(self.notes)}


def _plain(cell: Any) -> Any:
    value = cell.item() if hasattr(cell, "item") else cell  # numpy's numbers
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make(name: str, study: Study) -> Product:
    """Make the table or figure from the runs that are there, and write it under `study.folder`."""
    began = time.perf_counter()
    if name in _FORMULAS:
        product = _formula(name, study)
    elif name in sweeps.SWEEPS:
        product = _sweep(name, study)
    elif name == "toy":
        product = _toy(study)
    elif name == "retrieval-examples":
        product = _examples(study)
    else:
        product = _table(name, study)
    _remember(product, study, time.perf_counter() - began)
    return product


def made(name: str, study: Study) -> dict[str, Any] | None:
    """What was remembered of an experiment: title, reference, tables as HTML, figure, notes, seconds."""
    path = study.folder / "made" / f"{name}.json"
    if not path.is_file():
        return None
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def made_in(name: str, study: Study) -> str:
    """How long a result took: its training runs, shared ones included, and its making."""
    values = made(name, study)
    if values is None:
        return "not made yet"
    count, seconds = int(values["runs"]["count"]), values["runs"]["seconds"]
    runs = (
        f"{count} training runs of {seconds / max(count, 1):.0f} s each, shared ones included; "
        if count
        else ""
    )
    return f"{runs}made in {values['seconds']:.1f} s."


_FORMULAS: dict[str, tuple[tuple[float, float], Callable[["Figure"], None], str]] = {
    "ap-surface": (
        (10, 4.2),
        ap_surface.draw,
        "The loss of one positive is zero only on the line R(i, S_N) = 0, whatever R(i, S_P) is. Going down "
        "the "
        "gradient, a positive moves on a circle round (-1, 0): part of every step goes into having more "
        "positives "
        "before it, which by itself changes nothing.",
    ),
    "penalties": (
        (9, 8.4),
        penalties.draw,
        "Every positive charges f'(R) to each negative before it; a negative pays the sum. Under O each "
        "arrow is "
        "alike; Ib charges most for the last positive, Dq almost nothing for it. For a ranking of your own: "
        "forerank paper ranking RUN --query N.",
    ),
    "loss-variants": (
        (13, 4.8),
        loss_curves.draw_variants,
        "The paper prints log(1+R) as the derivative of Iu; the loss it prints, and its code, have 1 + "
        "log(1+R). "
        "Both are drawn; the printed derivative is the loss Iu_exact here.",
    ),
    "centres": (
        (12, 3.9),
        centres.draw,
        "Not a sketch: 36 unit vectors on the sphere, seen from above, moved by nothing but the real loss; "
        "hollow "
        "where they start, full where they end. The temperature is 0.05 here: at the usual 0.01 no variant "
        "pulls on "
        "a centre this far away, because the sigmoid has no slope there.",
    ),
    "ap-gradients": (
        (9.5, 3.8),
        loss_curves.draw_ap_gradients,
        "With three positives before, AP's derivative starts at a quarter and falls by half only at R = 1.7; "
        "Dq with alpha = 2 has fallen by half at R = 0.26.",
    ),
}


def _formula(name: str, study: Study) -> Product:
    size, draw, note = _FORMULAS[name]
    return _figure(name, study, size, draw, notes=(note,))


def _sweep(name: str, study: Study) -> Product:
    size = (10.5, 3.9) if name == "sweep-alpha" else (5.4, 3.9)
    table = sweeps.make_table(name, study)
    notes = [f"The paper: {statement(name)}", *sweeps.finding(name, study), *tables.settings(study)]
    return _figure(name, study, size, lambda f: sweeps.draw(f, name, study), (table,), tuple(notes))


def _toy(study: Study) -> Product:
    result = toy.run(toy.ToySettings(), study.folder)
    notes = (f"The paper: {statement('toy')}", *toy.finding(result))
    return _figure("toy", study, (13, 6.6), lambda f: toy.draw(f, result), (toy.make_table(result),), notes)


def _examples(study: Study) -> Product:
    found = examples.find(study)
    return _figure(
        "retrieval-examples",
        study,
        (11, 1.06 * len(found.query) + 0.5),
        lambda f: examples.draw(f, found),
        notes=examples.notes(study),
    )


def _table(name: str, study: Study) -> Product:
    about = experiment(name)
    noise = name == "label-noise"
    table = tables.make_noise_table(study) if noise else tables.make_table(name, study)
    csv = table.to_csv() if noise else tables.make_csv(name, study)
    notes = (f"The paper: {statement('noise')}",) if noise else ()
    return Product(name, about.title, about.reference, (table,), notes=notes, csv=csv)


def _figure(
    name: str,
    study: Study,
    size: tuple[float, float],
    draw: Callable[["Figure"], None],
    found: tuple[ResultTable, ...] = (),
    notes: tuple[str, ...] = (),
) -> Product:
    about = experiment(name)
    with style.figure(*size) as drawing:
        draw(drawing)
        png, _ = style.save(drawing, study.folder / "figures", name)
    return Product(name, about.title, about.reference, found, png, notes)


def _remember(product: Product, study: Study, seconds: float) -> None:
    """Write the tables as Markdown, CSV and HTML, and keep what the page needs."""
    if product.tables:
        for extension, text in (
            ("md", "\n\n".join(table.to_markdown() for table in product.tables) + "\n"),
            ("html", "\n".join(table.to_html() for table in product.tables) + "\n"),
            ("csv", product.csv or product.tables[0].to_csv()),
        ):
            write_atomically(study.folder / "tables" / f"{product.name}.{extension}", text)
    values = {
        "title": product.title,
        "reference": product.reference,
        "tables": [table.to_html() for table in product.tables],
        "figure": product.figure.name if product.figure else None,
        "notes": list(product.notes),
        "seconds": seconds,
        "runs": _training_seconds(product.name, study),
    }
    write_atomically(study.folder / "made" / f"{product.name}.json", json.dumps(values, ensure_ascii=False))


def _training_seconds(name: str, study: Study) -> dict[str, float]:
    """How many runs an experiment rests on and how long they took to train, shared ones included."""
    results = [run.result() for run in study.plan(experiment(name).conditions(study))]
    ended = [result for result in results if result is not None]
    return {"count": len(ended), "seconds": sum(float(result["seconds"]) for result in ended)}
