"""A generation: one complete, unchanging state of a local index, written whole and then named as current.

An index folder holds `CURRENT` (a line: the name of the generation in force), that generation, and while
an update runs, a journal and a half-written successor. `CURRENT` is replaced by one rename after everything
it names is on disk, so a kill at any moment leaves the old state or the new one.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forerank import files
from forerank.errors import InputError
from forerank.search.engine import Filter, Meta
from forerank.search.rows import Row

FORMAT = 3
CURRENT = "CURRENT"
# Bytes of an index that are read whole when it is opened, which takes about a tenth of a second.
VERIFIED_WHEN_OPENED = 128 * 2**20
AGAIN = "forerank index with --replace builds it again from nothing."
COLUMNS = "id, path, label, content, size, modified, columns"


def current(index: Path) -> Path | None:
    """The generation in force, or None where there is none."""
    try:
        name = (index / CURRENT).read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not name.startswith("generation-") or "/" in name or "\0" in name:
        raise InputError(f"{index / CURRENT} is damaged: it names {name[:40]!r}: {AGAIN}")
    return index / name


def publish(index: Path, built: Path) -> Path:
    """Put a finished, temporary folder in force and remove what it replaces."""
    before = [int(old.name.rpartition("-")[2]) for old in index.glob("generation-*")]
    number = max(before, default=0) + 1
    target = index / f"generation-{number:06d}"
    files.sync_tree(built)
    built.rename(target)
    files.sync_folder(index)
    files.write_atomically(index / CURRENT, target.name + "\n")
    sweep(index)
    return target


def sweep(index: Path) -> None:
    """Remove what a killed update left behind, and generations no longer in force."""
    try:
        keep = current(index)
    except InputError:
        keep = None  # the pointer is damaged: the writer builds everything again
    for folder in index.iterdir():
        if folder.name.startswith(("generation-", "building-")) and folder != keep:
            shutil.rmtree(folder, ignore_errors=True)


def read_meta(generation: Path) -> Meta:
    """The meta data of a generation, after checking that its files are those it states.

    Sizes are always compared, checksums where all files together are small; `verify` reads large ones too.
    """
    try:
        meta: Meta = files.read_json_with_checksum(generation / "meta.json")
    except files.DamagedFileError as error:
        raise InputError(f"{error}: {AGAIN}") from error
    if meta.get("format") != FORMAT:
        raise InputError(
            f"{generation.parent} has index format {meta.get('format')!r}; this version reads {FORMAT}. "
            f"Use the version of Forerank that wrote it, or {AGAIN}"
        )
    for name, about in meta["files"].items():
        actual = (generation / name).stat().st_size if (generation / name).exists() else None
        if actual != about["size"]:
            raise InputError(
                f"{generation / name} is damaged: it has {actual} bytes instead of {about['size']}: {AGAIN}"
            )
    if sum(about["size"] for about in meta["files"].values()) <= VERIFIED_WHEN_OPENED:
        verify_checksums(generation, meta)
    return meta


def describe_files(generation: Path) -> dict[str, dict[str, Any]]:
    """Size and checksum of every file in a folder."""
    return {
        str(path.relative_to(generation)): {
            "size": path.stat().st_size,
            "checksum": files.file_checksum(path),
        }
        for path in sorted(generation.rglob("*"))
        if path.is_file()
    }


def verify_checksums(generation: Path, meta: Meta) -> int:
    """Read every file of a generation and compare it with its checksum; the number of bytes read."""
    for name, about in meta["files"].items():
        if files.file_checksum(generation / name) != about["checksum"]:
            raise InputError(f"{generation / name} is damaged: it does not fit its checksum: {AGAIN}")
    return sum(about["size"] for about in meta["files"].values())


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Store rows in their order; ids are positions."""
    database = sqlite3.connect(path)
    with database:
        database.execute("PRAGMA journal_mode = OFF")  # a half-written file is never put in force
        database.execute(
            "CREATE TABLE rows (id INTEGER PRIMARY KEY, path TEXT NOT NULL, label TEXT NOT NULL, "
            "content TEXT NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL, columns TEXT NOT NULL)"
        )
        database.executemany(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (i, r.path, r.label, r.content, r.size, r.modified, json.dumps(dict(r.columns)))
                for i, r in enumerate(rows)
            ),
        )
        database.execute("CREATE INDEX by_label ON rows (label, id)")
    database.close()


def open_rows(path: Path) -> sqlite3.Connection:
    """The rows of a generation, read-only; the caller serialises its use."""
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    database = sqlite3.connect(address, uri=True, check_same_thread=False)
    # SQLite's own lower() knows ASCII only.
    database.execute("PRAGMA trusted_schema = OFF")  # what a stranger's file defines must not call functions
    database.create_function("contains", 3, _contains, deterministic=True)
    return database


def _contains(path: str, label: str, folded: str) -> bool:
    return folded in path.casefold() or folded in label.casefold()


def sql_condition(where: Filter) -> tuple[str, list[object]]:
    """A filter as an SQL condition and the values of its question marks."""
    conditions, values = ["1"], list[object]()
    if where.label is not None:
        conditions.append("label = ?")
        values.append(where.label)
    if where.text:
        conditions.append("contains(path, label, ?)")
        values.append(where.text.casefold())
    for name, value in where.columns:
        conditions.append("EXISTS (SELECT 1 FROM json_each(columns) WHERE key = ? AND value = ?)")
        values += [name, value]
    return " AND ".join(conditions), values


def to_rows(cursor: Iterable[tuple[int, str, str, str, int, int, str]]) -> Iterator[Row]:
    """Rows from the columns `COLUMNS`."""
    for number, path, label, content, size, modified, columns in cursor:
        yield Row(path, label, content, size, modified, number, json.loads(columns))
