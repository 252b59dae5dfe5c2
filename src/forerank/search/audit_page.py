"""An audit as a page with pictures and as a CSV to act on."""

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from forerank.console import percent
from forerank.data import Table
from forerank.data.table import BOX_COLUMNS
from forerank.files import write_atomically
from forerank.report.shell import html_page
from forerank.report.thumbnails import MOST_BYTES, Thumbnails
from forerank.search.curation import LabelledCuration
from forerank.search.label_audit import Audit, AuditScore
from forerank.search.picture_quality import RULES

OWN_STYLE = """
.row { display: flex; flex-wrap: wrap; gap: .7rem; align-items: flex-start; padding: .9rem 0;
  border-top: 1px solid var(--rule); }
.row:first-child { border-top: 0; }
.row > p { flex: 1 1 100%; max-width: none; margin: 0; }
.shot { width: 104px; font-size: .8rem; overflow-wrap: anywhere; line-height: 1.3; margin: 0;
  color: var(--soft); }
.shot img, .shot .none { width: 104px; height: 104px; object-fit: contain; background: var(--paper);
  border: 3px solid var(--rule); border-radius: 10px; display: grid; place-items: center; }
.shot.asks img { border-color: var(--accent); }
.shot.good img { border-color: var(--good); }
.shot.bad img { border-color: var(--bad); border-style: dashed; }
.gap { width: 1px; align-self: stretch; background: var(--rule); }
"""


def write_csv(audit: Audit, path: Path) -> None:
    """Write every image, most suspicious first; correct the column `label`, then train on this table.

    Paths are absolute, so that the table can lie anywhere, and the audited table's other columns go along.
    """
    table = audit.table
    columns: dict[str, Sequence[Any]] = {
        "path": [str(file.absolute()) for file in table.files],
        "label": table.label.tolist(),
        "suspect": audit.suspect.tolist(),
        "suggestion": audit.suggestion.tolist(),
        "agreement": [f"{value:.2f}" for value in audit.agreement],
        "negatives_before": [f"{value:.1f}" for value in audit.before],
        "negatives_before_nearest": [f"{value:.0f}" for value in audit.before_nearest],
        "chance": [f"{value:.4f}" for value in audit.chance],
    }
    for name in ("split", "is_query", "is_gallery", "category", "sequence"):
        if (column := getattr(table, name)) is not None:
            columns[name] = column.tolist()
    if table.box is not None:
        columns |= dict(zip(BOX_COLUMNS, table.box.T.tolist(), strict=True))
    columns |= {name: column.tolist() for name, column in table.further.items() if name not in columns}

    def fill(file: Path) -> None:
        with file.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([column[i] for column in columns.values()] for i in audit.order())

    write_atomically(path, fill)


def write_page(
    curation: LabelledCuration, path: Path, *, title: str, checked: AuditScore | None = None, shown: int = 100
) -> None:
    """One self-contained HTML file: labels worth a look (at most `shown`), unusual pictures, split classes,
    confused pairs."""
    audit = curation.labels
    picture = Thumbnails(audit.table.files, audit.table.box, side=104)
    everything = Thumbnails(curation.table.files, curation.table.box, side=104, most_bytes=MOST_BYTES // 4)
    sections = [
        _suspects(audit, picture, min(shown, curation.claim.shown)),
        _unusual(curation, everything),
        _split(audit, picture),
        _confused(audit, picture),
    ]
    said = str(curation.claim)
    lead = (
        f"{said[0].upper()}{said[1:]}. {len(audit.split_classes):,} of "
        f"{len(audit.table.classes):,} classes lie around several centres."
    )
    notes = [f"{curation.claim.basis()}."] if curation.claim.shown else []
    notes += [f"{checked}."] if checked else []
    text = html_page(title, "".join(sections), lead=lead, notes=notes, style=OWN_STYLE)

    write_atomically(path, text)


def _framed(table: Table, picture: Thumbnails, row: int, kind: str, note: str = "") -> str:
    name, where = escape(str(table.label[row])), escape(str(table.path[row]))
    address = picture(row)
    shown = (
        f'<img src="{address}" alt="{name}" title="{where}">'
        if address
        else f'<div class="none">{where}</div>'
    )
    mark = {"good": "✓ ", "bad": "✕ ", "asks": ""}[kind]
    return f'<figure class="shot {kind}">{shown}{mark}{name}{f"<br>{escape(note)}" if note else ""}</figure>'


def _section(title: str, under: str, rows: Sequence[str], empty: str) -> str:
    body = "".join(rows) or f"<p>{escape(empty)}</p>"
    head = f'<h2>{escape(title)}</h2><p class="under">{escape(under)}</p>'
    return f'<section>{head}<div class="card">{body}</div></section>'


def _suspects(audit: Audit, picture: Thumbnails, shown: int) -> str:
    rows = []
    order = audit.order()
    for i in order[audit.suspect[order]][:shown]:
        near = "".join(
            _framed(
                audit.table, picture, j, "good" if audit.table.label[j] == audit.table.label[i] else "bad"
            )
            for j in audit.nearest[i, :6]
        )
        said = (
            f"{audit.table.path[i]}: labelled {audit.table.label[i]}, but "
            f"{audit.before_nearest[i]:,.0f} images of other classes stand before the nearest of its own; "
            f"{percent(audit.agreement[i], digits=0)} of its nearest are {audit.suggestion[i]}."
        )
        asks = _framed(audit.table, picture, int(i), "asks")
        rows.append(f'<div class="row"><p>{escape(said)}</p>{asks}<div class="gap"></div>{near}</div>')
    under = (
        "Most suspicious first, each with the images nearest to it. The CSV beside this page has every image."
    )
    return _section("Labels worth a look", under, rows, "None: every image stands near its own class.")


def _unusual(curation: LabelledCuration, picture: Thumbnails, shown: int = 8) -> str:
    rows, table = [], curation.table
    for kind in dict.fromkeys(issue.kind for issue in curation.issues):
        some = [issue for issue in curation.issues if issue.kind == kind]
        shots = "".join(_framed(table, picture, issue.row, "asks", issue.reason) for issue in some[:shown])
        said = f"{len(some):,} {kind}: {RULES[kind]}"
        rows.append(f'<div class="row"><p>{escape(said)}</p>{shots}</div>')
    for group in curation.copies[:shown]:
        kind = "bad" if group.leaks else "asks"
        shots = "".join(
            _framed(table, picture, row, kind, str(table.split[row])) for row in group.rows[:shown]
        )
        leak = ": leakage, they are in training and in the test" if group.leaks else ""
        said = f"{len(group.rows):,} near-identical pictures{leak}"
        rows.append(f'<div class="row"><p>{escape(said)}</p>{shots}</div>')
    under = f"Whatever their label; {len(curation.copies):,} groups of near-identical pictures in all."
    return _section("Unusual and near-identical pictures", under, rows, "None.")


def _split(audit: Audit, picture: Thumbnails) -> str:
    rows = []
    for split in audit.split_classes[:20]:
        gap = '<div class="gap"></div>'
        parts = gap.join(
            "".join(_framed(audit.table, picture, row, "asks") for row in centre[:3])
            for centre in split.centres[:4]
        )
        sizes = ", ".join(str(len(centre)) for centre in split.centres)
        said = f"{split.label}: {split.images} images around {len(split.centres)} centres ({sizes} images)"
        rows.append(f'<div class="row"><p>{escape(said)}</p>{parts}</div>')
    under = (
        "Images of one label that lie in separate groups with other classes between: perhaps several things."
    )
    return _section("Classes with several centres", under, rows, "None.")


def _confused(audit: Audit, picture: Thumbnails) -> str:
    rows = []
    for pair in audit.confused:
        said = (
            f"{pair.other} stands before {pair.label}: {pair.count:,} times, in the lists of "
            f"{pair.queries:,} images; the clearest case has similarity {pair.similarity:.3f}"
        )
        shots = _framed(audit.table, picture, pair.query, "asks") + _framed(
            audit.table, picture, pair.intruder, "bad"
        )
        rows.append(f'<div class="row"><p>{escape(said)}</p>{shots}</div>')
    under = (
        "Classes of which one stands before the nearest image of the other: hard, or the same thing twice."
    )
    return _section("Confusing pairs", under, rows, "None.")
