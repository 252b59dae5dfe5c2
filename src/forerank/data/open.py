"""Open anything as a table: a data set's name, a folder, a CSV file."""

from pathlib import Path
from typing import Any

from forerank.data import glyphs
from forerank.data.table import Table
from forerank.errors import InputError


def open_table(source: str | Path, root: str | Path | None = None, **options: Any) -> Table:
    """Open a data set."""
    if source == "glyphs":
        return glyphs.read(None if root is None else Path(root), **options)
    path = Path(source)
    if path.suffix.lower() == ".csv":
        return Table.read_csv(path, root)
    raise InputError(f"no data set at {source}")
