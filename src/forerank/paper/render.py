"""Turn what was trained into tables and figures on disk."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerank.files import write_atomically
from forerank.paper import (
    all_methods,
    ap_surface,
    centres,
    examples,
    loss_curves,
    penalties,
    style,
    sweeps,
    tables,
    toy,
    toy_figure,
)
from forerank.paper.experiments import EXPERIMENTS
from forerank.paper.published import statement
from forerank.paper.study import Study
from forerank.report.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Product:
    """The result of an experiment: tables, a figure, and what a reader should know.

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
        about = {"name": self.name, "title": self.title, "reference": self.reference}
        return {**about, "tables": tables, "figure": figure, "notes": list(self.notes)}


def _plain(cell: Any) -> Any:
    value = cell.item() if hasattr(cell, "item") else cell  # numpy's numbers
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(name: str, study: Study) -> Product:
    """Build the table or figure from the runs that are there, and write it under `study.folder`."""
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
    _write(product, study, time.perf_counter() - began)
    return product


def rendered(name: str, study: Study) -> dict[str, Any] | None:
    """What was written of an experiment: title, reference, tables as HTML, figure, notes, seconds."""
    path = study.folder / "rendered" / f"{name}.json"
    if not path.is_file():
        return None
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def time_taken(name: str, study: Study) -> str:
    """How long a result took: its training runs, shared ones included, and its table or figure."""
    values = rendered(name, study)
    if values is None:
        return "not there yet"
    count, seconds = int(values["runs"]["count"]), values["runs"]["seconds"]
    if not count:
        return f"{values['seconds']:.1f} s."
    return (
        f"{count} training runs of {seconds / count:.0f} s on average, shared ones included; "
        f"table or figure {values['seconds']:.1f} s."
    )


# Name -> size of the figure in inches, what draws it, what stands under it.
_FORMULAS: dict[str, tuple[tuple[float, float], Callable[["Figure"], None], str]] = {
    "ap-surface": (
        (10, 4.2),
        ap_surface.draw,
        "The loss of one positive is zero only on the line R(i, S_N) = 0, whatever R(i, S_P) is. Going down "
        "the "
        "gradient, a positive moves on a circle around (-1, 0): part of every step goes into having more "
        "positives "
        "before it, which by itself changes nothing.",
    ),
    "penalties": (
        (9, 8.4),
        penalties.draw,
        "Every positive charges f'(R) to each negative before it; a negative pays the sum. Under O all "
        "arrows are "
        "equal; Ib charges most for the last positive, Dq almost nothing for it. For a ranking of your own: "
        "forerank paper ranking RUN --query N.",
    ),
    "loss-variants": (
        (13, 4.8),
        loss_curves.draw_variants,
        "The paper prints log(1+R) as the derivative of Iu; the loss that it prints, and its code, have 1 + "
        "log(1+R). "
        "Both are drawn; the printed derivative is the loss Iu_exact here.",
    ),
    "centres": (
        (12, 4.2),
        centres.draw,
        "Not a sketch: 36 unit vectors on the sphere, seen from above, moved by nothing but the real loss; "
        "hollow "
        f"where they start, full where they end. The temperature is {centres.TEMPERATURE:g} here, and not "
        "the paper's "
        "0.01: at 0.01 the sigmoid has no slope at a centre this far away, and no variant, increasing or "
        "decreasing, "
        "pulls on it. What the paper draws can only happen while the centres are nearer or the temperature "
        "is higher.",
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
    studies = (study, *study.beside)
    panels = len(studies) + (name == "sweep-alpha")
    drawn_tables = tuple(sweeps.build_table(name, one) for one in studies)
    notes = [
        f"The paper: {statement(name)}",
        *(text for one in studies for text in sweeps.finding(name, one)),
    ]
    notes += tables.settings(study)
    return _figure(
        name, study, (5.3 * panels, 3.9), lambda f: sweeps.draw(f, name, study), drawn_tables, tuple(notes)
    )


def _toy(study: Study) -> Product:
    result = toy.run_toy(toy.ToySettings(), study.folder)
    notes = (f"The paper: {statement('toy')}", *toy_figure.finding(result))
    table = toy_figure.build_table(result)
    return _figure("toy", study, (13, 6.6), lambda f: toy_figure.draw(f, result), (table,), notes)


def _examples(study: Study) -> Product:
    shown = [examples.choose_examples(one) for one in (study, *study.beside)]
    size = (11.0 * len(shown), 1.06 * len(examples.PLACES) + 0.8)
    notes = tuple(text for one in (study, *study.beside) for text in examples.notes(one))
    return _figure("retrieval-examples", study, size, lambda f: examples.draw(f, shown), notes=notes)


def _table(name: str, study: Study) -> Product:
    about = EXPERIMENTS[name]
    ours = {
        "label-noise": tables.build_noise_table,
        "redundancy": tables.build_redundancy_table,
        "alpha-crash": sweeps.build_crash_table,
        "all-weights": tables.build_all_weights_table,
        all_methods.NAME: all_methods.build_all_methods_table,
    }
    if name in ours:
        table = ours[name](study)
        csv = table.to_csv()
    else:
        table, csv = tables.build_table(name, study), tables.build_csv(name, study)
    notes: tuple[str, ...] = ()
    if name == "label-noise":
        notes = (f"The paper: {statement('noise')}",)
    elif name == "alpha-crash":
        notes = (f"The paper: {statement('sweep-alpha')}", *sweeps.crash_finding(study))
    return Product(name, about.title, about.reference, (table,), notes=notes, csv=csv)


def _figure(
    name: str,
    study: Study,
    size: tuple[float, float],
    draw: Callable[["Figure"], None],
    drawn_tables: tuple[ResultTable, ...] = (),
    notes: tuple[str, ...] = (),
) -> Product:
    about = EXPERIMENTS[name]
    with style.figure(*size) as drawing:
        draw(drawing)
        png, _ = style.save(drawing, study.folder / "figures", name)
    return Product(name, about.title, about.reference, drawn_tables, png, notes)


def _write(product: Product, study: Study, seconds: float) -> None:
    """Write the tables as Markdown, CSV and HTML, and what the page needs as JSON."""
    if product.tables:
        for extension, text in (
            ("md", "\n\n".join(table.to_markdown() for table in product.tables) + "\n"),
            ("html", "\n".join(table.to_html() for table in product.tables) + "\n"),
            ("csv", product.csv or product.tables[0].to_csv()),
        ):
            write_atomically(study.folder / "tables" / f"{product.name}.{extension}", text)
    results = [run.result() for run in EXPERIMENTS[product.name].plan(study)]
    ended = [result for result in results if result is not None]
    values = {
        "title": product.title,
        "reference": product.reference,
        "tables": [table.to_html() for table in product.tables],
        "figure": product.figure.name if product.figure else None,
        "notes": list(product.notes),
        "seconds": seconds,
        "runs": {"count": len(ended), "seconds": sum(float(result["seconds"]) for result in ended)},
    }
    write_atomically(
        study.folder / "rendered" / f"{product.name}.json", json.dumps(values, ensure_ascii=False)
    )
