"""Rows in a temporary file instead of in memory: those that an index has, and those that it is to have."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from forerank.search.generation import to_rows
from forerank.search.rows import Row

COLUMNS = "path, label, content, size, modified, columns"
BATCH = 8192  # rows that are read at once


class RowsOnDisk(Sequence[Row]):
    """The rows that an index is to have, once `sort` has put them in the order of their paths."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file)
        self._database.execute("PRAGMA journal_mode = OFF")  # it lives no longer than the process
        self._database.execute("PRAGMA synchronous = OFF")
        for table in ("before", "added", "others"):
            self._database.execute(f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (path)) WITHOUT ROWID")

    def remember(self, rows: Iterable[Row]) -> None:
        """Keep rows of the index as it is."""
        self._insert("before", rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Keep rows of the index as it is to be; of two with one path the later one counts."""
        self._insert("added", rows)

    def add_others(self, rows: Iterable[Row]) -> None:
        """Keep rows that other processes have added; `drain` does not give them."""
        self._insert("others", rows)

    def _insert(self, table: str, rows: Iterable[Row]) -> None:
        values = (
            (r.path, r.label, r.content, r.size, r.modified, json.dumps(dict(r.columns), sort_keys=True))
            for r in rows
        )
        self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?)", values)

    def known(self, paths: Sequence[str]) -> dict[str, Row]:
        """Path -> row of the index as it is, of a few paths."""
        marks = ",".join("?" * len(paths))
        rows = self._database.execute(
            f"SELECT -1, {COLUMNS} FROM before WHERE path IN ({marks})", tuple(paths)
        )
        return {row.path: row for row in to_rows(rows)}

    def drain(self, size: int) -> Iterator[list[Row]]:
        """What was added, in blocks."""
        rows = to_rows(self._database.execute(f"SELECT -1, {COLUMNS} FROM added ORDER BY path"))
        while block := list(islice(rows, size)):
            yield block

    def sort(self) -> None:
        """No row is added from now on."""
        self._database.execute("INSERT OR REPLACE INTO added SELECT * FROM others")
        self._database.execute(f"CREATE TABLE sorted AS SELECT {COLUMNS} FROM added ORDER BY path")

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
    ...     rows.add([Row("b.jpg", "", "", 1, 1), Row("a.jpg", "", "", 1, 1)])
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
