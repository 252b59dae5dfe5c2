"""Rows in a temporary file instead of in memory: those that an index has, and those that it is to have."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from forerank.search.generation import to_rows
from forerank.search.rows import Row

COLUMNS = "path, label, content, size, modified, columns"
BATCH = 8192  # rows that are read at once
Numbered = tuple[int, Row]  # the number of the part that a row comes from, and the row


class RowsOnDisk(Sequence[Row]):
    """The rows that an index is to have, once `sort` has put them in the order of their paths."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file)
        self._database.execute("PRAGMA journal_mode = OFF")  # it lives no longer than the process
        self._database.execute("PRAGMA synchronous = OFF")
        for table in ("before", "added"):
            self._database.execute(
                f"CREATE TABLE {table} ({COLUMNS}, part, PRIMARY KEY (path)) WITHOUT ROWID"
            )
        self._count: int | None = None  # once sorted: SQLite counts rows by reading all of them

    def remember(self, rows: Iterable[Row]) -> None:
        """Keep rows of the index as it is."""
        self._insert("before", ((0, row) for row in rows))

    def add(self, rows: Iterable[Numbered]) -> None:
        """Keep rows of the index as it is to be; of two with one path that of the later part counts."""
        self._insert("added", rows)

    def _insert(self, table: str, rows: Iterable[Numbered]) -> None:
        values = (
            (
                r.path,
                r.label,
                r.content,
                r.size,
                r.modified,
                json.dumps(dict(r.columns), sort_keys=True),
                part,
            )
            for part, r in rows
        )
        self._database.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET "
            "label = excluded.label, content = excluded.content, size = excluded.size, "
            "modified = excluded.modified, columns = excluded.columns, part = excluded.part "
            "WHERE excluded.part >= part",
            values,
        )

    def known(self, paths: Sequence[str]) -> dict[str, Row]:
        """Path -> row of the index as it is, of a few paths."""
        marks = ",".join("?" * len(paths))
        rows = self._database.execute(
            f"SELECT -1, {COLUMNS} FROM before WHERE path IN ({marks})", tuple(paths)
        )
        return {row.path: row for row in to_rows(rows)}

    def blocks(self, size: int) -> Iterator[list[Numbered]]:
        """What was added, some rows at a time."""
        added = self._database.execute(f"SELECT part, -1, {COLUMNS} FROM added")
        while block := added.fetchmany(size):
            rows = to_rows(line[1:] for line in block)
            yield list(zip((line[0] for line in block), rows, strict=True))

    def sort(self) -> None:
        """No row is added from now on."""
        self._database.execute(f"CREATE TABLE sorted AS SELECT {COLUMNS} FROM added ORDER BY path")
        self._count = len(self)

    def removed(self) -> int:
        """How many paths of the index as it was are no longer there."""
        return self._number("SELECT count(*) FROM before WHERE path NOT IN (SELECT path FROM added)")

    def labelled(self) -> bool:
        """Whether any row has a label."""
        return bool(self._number("SELECT EXISTS (SELECT 1 FROM added WHERE label != '')"))

    def column_names(self) -> list[str]:
        """The names of all columns."""
        names = self._database.execute("SELECT DISTINCT key FROM added, json_each(columns) ORDER BY key")
        return [name for (name,) in names]

    def _number(self, query: str) -> int:
        return int(self._database.execute(query).fetchone()[0])

    def __len__(self) -> int:
        if self._count is not None:
            return self._count
        return self._number("SELECT count(*) FROM added")

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            return self._between(start, stop)
        rows = self._between(place, place + 1)
        if not rows:
            raise IndexError(place)
        return rows[0]

    def _between(self, start: int, stop: int) -> list[Row]:
        # The number of a row in `sorted` is its place, from 1 on.
        query = f"SELECT -1, {COLUMNS} FROM sorted WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        return list(to_rows(self._database.execute(query, (start, stop))))

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), BATCH):
            yield from self._between(start, start + BATCH)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


@contextmanager
def rows_on_disk() -> Iterator[RowsOnDisk]:
    """Rows in a temporary folder.

    >>> with rows_on_disk() as rows:
    ...     rows.add([(0, Row("b.jpg", "", "", 1, 1)), (0, Row("a.jpg", "", "", 1, 1))])
    ...     rows.sort()
    ...     len(rows), rows[0].path, [row.path for row in rows[1:]]
    (2, 'a.jpg', ['b.jpg'])
    """
    with TemporaryDirectory(prefix="forerank-") as folder:
        rows = RowsOnDisk(Path(folder) / "rows.sqlite")
        try:
            yield rows
        finally:
            rows.close()
