"""Pictures that a CSV table names in its column `path`, read line by line."""

import csv
import io
from collections.abc import Iterator

from forerank.data.sources import Picture, beside, local_picture, open_file, remote
from forerank.errors import InputError


def pictures(table: str) -> Iterator[Picture]:
    """The pictures of a table; the header is read at once, the lines as they are asked for."""
    lines = io.TextIOWrapper(open_file(table), encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(lines)
    header = next(reader, [])
    if "path" not in header:
        lines.close()
        raise InputError(f"{table} has no column 'path': its columns are {', '.join(header) or '(none)'}")
    return _rows(table, lines, reader, header)


def _rows(
    table: str, lines: io.TextIOWrapper, reader: "Iterator[list[str]]", header: list[str]
) -> Iterator[Picture]:
    column = header.index("path")
    with lines:
        for number, row in enumerate(reader, start=2):
            if not row:
                continue
            path = row[column].strip() if column < len(row) else ""
            if not path:
                raise InputError(f"{table} line {number}: 'path' is empty")
            cells = {name: cell for name, cell in zip(header, row, strict=False) if cell and name != "path"}
            label = cells.pop("label", "")
            place = beside(table, path)
            open_picture = remote.picture if "://" in place else local_picture
            yield open_picture(place, label, cells)
