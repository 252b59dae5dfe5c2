"""Tables of results, published numbers beside measured ones, as Markdown, CSV and HTML."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from numbers import Integral, Real

from forerank.errors import InputError

Cell = str | int | float | None


@dataclass(frozen=True)
class ResultTable:
    """A table whose first column names things and whose other cells are numbers or text.

    Args:
        header: column names.
        rows: cells; None is an empty cell (not measured, not published).
        title: caption.
        digits: decimals of floating numbers, as shown; the CSV keeps all.
        notes: lines under the table (settings, time, source).
        signed: names of columns whose numbers are shown with their sign.

    Example:
        >>> table = ResultTable.compare(
        ...     "method", {"PNP-Dq": {"R@1": 81.1}}, {"PNP-Dq": {"R@1": 80.6}}, columns=["R@1"])
        >>> print(table.to_markdown())
        | method | R@1 published | R@1 measured | R@1 difference |
        |:--|--:|--:|--:|
        | PNP-Dq | 81.1 | 80.6 | −0.5 |
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    digits: int = 1
    notes: Sequence[str] = ()
    signed: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise InputError(
                    f"row {row[0] if row else ''!r} has {len(row)} cells, the header {len(self.header)}."
                )

    @classmethod
    def compare(
        cls,
        name: str,
        published: Mapping[str, Mapping[str, float | None]],
        measured: Mapping[str, Mapping[str, float | None]],
        *,
        columns: Sequence[str],
        title: str = "",
        digits: int = 1,
        notes: Sequence[str] = (),
    ) -> "ResultTable":
        """Published, measured and their difference for every column; published rows first, then ours."""
        header = [name]
        for column in columns:
            header += [f"{column} published", f"{column} measured", f"{column} difference"]
        rows: list[list[Cell]] = []
        for key in [*published, *(key for key in measured if key not in published)]:
            row: list[Cell] = [key]
            for column in columns:
                theirs = published.get(key, {}).get(column)
                ours = measured.get(key, {}).get(column)
                row += [theirs, ours, None if theirs is None or ours is None else ours - theirs]
            rows.append(row)
        signed = frozenset(f"{column} difference" for column in columns)
        return cls(header, rows, title, digits, notes, signed)

    def to_markdown(self) -> str:
        """A pipe table; the title above it in bold, the notes below."""
        ruler = [":--", *["--:"] * (len(self.header) - 1)]
        lines = [[_markdown(c) for c in self.header], ruler]
        lines += [[_markdown(cell) for cell in row] for row in self._shown()]
        table = [
            f"| {' | '.join(cells)} |" if cells is not ruler else f"|{'|'.join(cells)}|" for cells in lines
        ]
        above = [f"**{_markdown(self.title)}**", ""] if self.title else []
        below = ["", *[f"- {_markdown(note)}" for note in self.notes]] if self.notes else []
        return "\n".join([*above, *table, *below])

    def to_csv(self) -> str:
        """Comma-separated values with every digit; an empty cell is empty.

        >>> ResultTable(["loss", "R@1"], [["Dq, ours", 0.123456]]).to_csv()
        'loss,R@1\\n"Dq, ours",0.123456\\n'
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def to_html(self) -> str:
        """A `<table>` fragment, every cell escaped."""
        head = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in self.header)
        body = []
        for row in self._shown():
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            body.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f'<div class="scroll">{table}</div>{notes}'

    _repr_html_ = to_html  # what a notebook shows

    def _shown(self) -> list[list[str]]:
        return [
            [
                _shown(cell, self.digits, name in self.signed)
                for name, cell in zip(self.header, row, strict=True)
            ]
            for row in self.rows
        ]


def _shown(cell: Cell, digits: int, signed: bool) -> str:
    if cell is None or cell != cell:
        return "–"
    if isinstance(cell, Real) and not isinstance(cell, Integral):  # numpy's numbers too
        text = f"{cell:+.{digits}f}" if signed else f"{cell:.{digits}f}"
        return text.replace("-", "−")
    return str(cell)


def _markdown(cell: str) -> str:
    text = " ".join(str(cell).split())
    return escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|")
