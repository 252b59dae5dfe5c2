"""The local engine: a folder of memory-mapped vectors, exact search, an approximate index if it pays."""

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank import files
from forerank.console import say
from forerank.errors import InputError, MissingExtraError
from forerank.ranking.reranking import Averaging, read_reranking
from forerank.search import generation, hnsw
from forerank.search.engine import EVERYTHING, Abilities, Filter, Ids, Meta, RowNeighbours, Vectors
from forerank.search.exact import top_k, top_k_among
from forerank.search.journal import JOURNAL, Journals, of_rank
from forerank.search.positions import Positions
from forerank.search.reranked import averages
from forerank.search.rows import Row

KEPT_FILTERS = 64  # of 10,000,000 rows they take 80 MB


class FolderEngine:
    """An index in a local folder; see `forerank.search.engine.Engine` for what each method promises.

    Where `update` is not told whether to build an approximate index, it tries one on a large index and keeps
    it only if it finds 98% of the true neighbours at twice the speed or more.
    """

    abilities = Abilities(
        approximate=True, keeps_model=True, dense_ids=True, excludes_writers=True, averages=True
    )
    forms = "a folder"

    def __init__(self, address: str) -> None:
        self.address = address
        self.folder = Path(address)
        # One thread at a time opens, closes or asks SQLite. It may do so within itself: a generator that is
        # thrown away lets go of its state wherever its thread happens to be.
        self._lock = threading.RLock()
        self._opened: _Opened | None = None
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{address} is a file, not an index folder.")
        above = next((p for p in self.folder.absolute().parents if p.exists()), None)
        if above is not None and not above.is_dir():
            raise InputError(f"{address}: {above} is a file, not a folder.")

    # -- reading ------------------------------------------------------------------------------------------

    def _open_if_any(self) -> "_Opened | None":
        opened = self._opened  # without the lock: a search need not wait for the query of another thread
        if opened is None:
            with self._lock:
                opened = self._opened = self._opened or _open_current(self.folder)
        return opened

    def _open(self) -> "_Opened":
        opened = self._open_if_any()
        if opened is None:
            raise InputError(
                f"there is no index in {self.address}: build one with forerank index MODEL IMAGES -o."
            )
        return opened

    @contextmanager
    def _using(self) -> Iterator["_Opened"]:
        """The state in force, whose database stays open until the block ends, whoever closes the engine.

        What belongs together has to come from one block: ids mean other rows in another state.
        """
        with self._lock:
            opened = self._open()
            opened.users += 1
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
                if not opened.users and opened is not self._opened:
                    opened.close()

    def meta(self) -> Meta | None:
        opened = self._open_if_any()
        return dict(opened.meta) if opened else None

    def state(self) -> str:
        folder = generation.current(self.folder)
        try:
            return "" if folder is None else f"{folder.name} {(folder / 'meta.json').stat().st_mtime_ns}"
        except FileNotFoundError:  # replaced at this very moment
            return ""

    def change_meta(self, changes: Meta) -> None:
        with self._writing():
            opened = _open_current(self.folder)
            if opened is None:
                raise InputError(f"there is no index in {self.address}.")
            meta = files.json_with_checksum({**opened.meta, **changes})
            files.write_atomically(opened.folder / "meta.json", meta)
            opened.close()
        self.close()

    def count(self) -> int:
        return len(self._open().vectors)

    def search(self, queries: Vectors, k: int, where: Filter = EVERYTHING) -> RowNeighbours:
        if where != EVERYTHING:
            # Exactly, also where there is a graph: a graph walks over rows that the filter rejects.
            with self._using() as opened:
                accepted = self._accepted(opened, where)
            return RowNeighbours(*top_k_among(queries, opened.searched, accepted, k))
        opened = self._open()
        k = min(k, len(opened.vectors))
        if opened.graph is not None and k:
            return RowNeighbours(*hnsw.search(opened.graph, queries, k, opened.meta["approximate"]["width"]))
        return RowNeighbours(*top_k(queries, opened.searched, k))

    def _accepted(self, opened: "_Opened", where: Filter) -> Ids:
        """The ids of the rows that a filter accepts. SQLite looks at every row; the last answers are kept."""
        with self._lock:
            bits = opened.accepted.pop(where, None)
            if bits is None:
                bits = self._ask_for_accepted(opened, where)
            opened.accepted[where] = bits  # at the end, so that the first one is the one used longest ago
            if len(opened.accepted) > KEPT_FILTERS:
                del opened.accepted[next(iter(opened.accepted))]
        return np.flatnonzero(np.unpackbits(bits, count=len(opened.vectors)))

    def _ask_for_accepted(self, opened: "_Opened", where: Filter) -> NDArray[np.uint8]:
        """A bit for every row: whether a filter accepts it."""
        condition, values = generation.sql_condition(where)
        answer = self._execute(opened, f"SELECT id FROM rows WHERE {condition}", values)
        mask = np.zeros(len(opened.vectors), np.bool_)
        try:
            mask[[number for (number,) in answer]] = True
        except IndexError as error:  # there are more rows than vectors
            raise _damaged_rows(opened, error) from error
        return np.packbits(mask)

    def rows(self, ids: Sequence[int]) -> list[Row]:
        rows: dict[int, Row] = {}
        wanted = [int(i) for i in ids]
        with self._using() as opened:
            for start in range(0, len(wanted), 500):
                part = wanted[start : start + 500]
                marks = ",".join("?" * len(part))
                for row in self._select(opened, f"WHERE id IN ({marks})", part):
                    rows[row.id] = row
        return [rows[i] for i in wanted]

    def vectors(self, ids: Sequence[int]) -> Vectors:
        everything = self._open().vectors
        wanted = np.asarray(ids, dtype=np.int64)
        outside = wanted[(wanted < 0) | (wanted >= len(everything))]
        if len(outside):
            raise KeyError(int(outside[0]))
        return np.ascontiguousarray(everything[wanted])

    def page(self, after: int = -1, limit: int = 60, where: Filter = EVERYTHING) -> list[Row]:
        with self._using() as opened:
            return self._page(opened, after, limit, where)

    def _page(self, opened: "_Opened", after: int, limit: int, where: Filter = EVERYTHING) -> list[Row]:
        condition, values = generation.sql_condition(where)
        chosen = f"WHERE id > ? AND {condition} ORDER BY id LIMIT ?"
        return self._select(opened, chosen, [after, *values, limit])

    def values(self, column: str, text: str = "", limit: int = 50) -> list[str]:
        source, names = "rows", list[object]()
        if column != "label":
            source, names = "(SELECT value AS label FROM rows, json_each(columns) WHERE key = ?)", [column]
        query = f"SELECT DISTINCT label FROM {source} WHERE label != '' AND contains(label, '', ?) "
        query += "ORDER BY label LIMIT ?"
        with self._using() as opened:
            values = self._execute(opened, query, [*names, text.casefold(), limit])
        return [value for (value,) in values]

    def scan(self, batch: int = 8192) -> Iterator[tuple[list[Row], Vectors]]:
        with self._using() as opened:
            for start in range(0, len(opened.vectors), batch):
                between = [start, start + batch]
                rows = self._select(opened, "WHERE id >= ? AND id < ? ORDER BY id", between)
                yield rows, np.asarray(opened.vectors[start : start + batch])

    def all_rows(self) -> Iterator[Row]:
        after = -1
        with self._using() as opened:
            while rows := self._page(opened, after, 8192):
                yield from rows
                after = rows[-1].id

    def _select(self, opened: "_Opened", condition: str, values: Sequence[object]) -> list[Row]:
        cells = self._execute(opened, f"SELECT {generation.COLUMNS} FROM rows {condition}", values)
        try:
            return list(generation.to_rows(cells))
        except (ValueError, TypeError) as error:  # a cell is of another type than was written
            raise _damaged_rows(opened, error) from error

    def _execute(self, opened: "_Opened", query: str, values: Sequence[object]) -> list[Any]:
        with self._lock:
            try:
                return opened.database.execute(query, tuple(values)).fetchall()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # names in it may be no text
                raise _damaged_rows(opened, error) from error

    def model_folder(self) -> Path | None:
        folder = self._open().folder / "model"
        return folder if folder.is_dir() else None

    def map_file(self) -> Path | None:
        return self.folder / "map.npz"  # beside the generations: it outlives them

    def verify(self) -> int:
        opened = self._open()
        return generation.verify_checksums(opened.folder, opened.meta)

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None and not opened.users:  # otherwise the last user closes it
                opened.close()

    # -- writing ------------------------------------------------------------------------------------------

    def _writing(self, rank: int = 0) -> contextlib.AbstractContextManager[None]:
        """One writer of each rank at a time."""
        return files.only_writer(self.folder / of_rank("LOCK", rank), self.address)

    def tidy(self) -> None:
        with self._writing():
            generation.sweep(self.folder)
            for file in self.folder.glob(f"{JOURNAL}*"):
                file.unlink()

    @contextmanager
    def update(
        self, dim: int, model: str, approximate: bool | None = None, rank: int = 0
    ) -> Iterator["_FolderUpdate"]:
        names = [p.name for p in self.folder.iterdir()] if self.folder.is_dir() else []
        if names and not {"LOCK", generation.CURRENT} & set(names):
            raise InputError(
                f"{self.address} holds other things ({names[0]}, ...) and no index: "
                "give a new folder as the place of the index."
            )
        with self._writing(rank):
            if rank == 0:
                generation.sweep(self.folder)
            self.close()
            try:
                opened = _open_current(self.folder)
                if opened is not None:  # damage must not get a checksum of its own in the new generation
                    generation.verify_checksums(opened.folder, opened.meta)
            except InputError:
                opened = None  # damaged: nothing is taken over from it
            journals = Journals(self.folder, dim, model, rank)
            update = _FolderUpdate(self, dim, model, approximate, opened, journals)
            try:
                yield update
            finally:
                journals.close()
                if opened:
                    opened.close()


class _Opened:
    """A generation with its files open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = generation.read_meta(folder)
        self.vectors: Vectors
        if self.meta["count"]:
            # As a plain array: np.memmap's own indexing costs more than a small search.
            self.vectors = np.asarray(np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False))
        else:
            self.vectors = np.empty((0, self.meta["dim"]), np.float32)
        expected = (self.meta["count"], self.meta["dim"])
        if self.vectors.shape != expected or self.vectors.dtype != np.float32:
            raise InputError(f"{folder / 'vectors.npy'} does not hold {expected} float32: {generation.AGAIN}")
        self.searched = self.vectors  # what searches compare with: the vectors, or their averages
        if "averages.npy" in self.meta["files"]:
            self.searched = np.asarray(np.load(folder / "averages.npy", mmap_mode="r", allow_pickle=False))
            if self.searched.shape != expected or self.searched.dtype != np.float32:
                raise InputError(
                    f"{folder / 'averages.npy'} does not hold {expected} float32: {generation.AGAIN}"
                )
        self.database: sqlite3.Connection = generation.open_rows(folder / "rows.sqlite")
        self.users = 0  # how many blocks of the engine read from it at this moment
        self.accepted: dict[Filter, NDArray[np.uint8]] = {}  # a bit per row; the one used last at the end
        self.graph: Any = hnsw.read(folder / "hnsw.faiss") if self.meta.get("approximate") else None

    def close(self) -> None:
        self.database.close()


def _damaged_rows(opened: _Opened, error: Exception) -> InputError:
    return InputError(f"{opened.folder / 'rows.sqlite'} is damaged ({error}): {generation.AGAIN}")


def _open_current(index: Path) -> _Opened | None:
    """Open the generation in force; if a writer replaces it at this very moment, the next one."""
    for attempt in range(10):
        folder = generation.current(index)
        if folder is None:
            return None
        try:
            return _Opened(folder)
        except MissingExtraError:
            raise
        except Exception as error:  # damaged files raise errors of many types
            if attempt < 9 and generation.current(index) != folder:
                continue
            if isinstance(error, InputError):
                raise
            raise InputError(f"the index in {index} is damaged ({error}): {generation.AGAIN}") from error
    return None


class _FolderUpdate:
    """Vectors go to the journal as they come; `complete` composes a new generation from old and new ones."""

    def __init__(
        self,
        engine: FolderEngine,
        dim: int,
        model: str,
        approximate: bool | None,
        old: _Opened | None,
        journals: Journals,
    ) -> None:
        self._engine, self._dim, self._journals = engine, dim, journals
        self._approximate = approximate
        self._old_vectors: Vectors | None = None
        self._old_position = Positions()
        if old is not None and old.meta["model"]["fingerprint"] == model:
            with contextlib.suppress(sqlite3.DatabaseError, ValueError, TypeError):  # damaged: embedded again
                rows, known = old.database.execute("SELECT content, id FROM rows"), Positions()
                while block := rows.fetchmany(8192):
                    known.add(*zip(*block, strict=True))
                self._old_position, self._old_vectors = known, old.vectors

    def stored(self, contents: Collection[str]) -> set[str]:
        wanted = list(contents)
        old = self._old_position.find(wanted).tolist()
        before = {content for content, number in zip(wanted, old, strict=True) if number >= 0}
        return before | self._journals.stored(wanted)

    def stored_rows(self, rows: Sequence[Row]) -> set[str]:
        return self.stored([row.content for row in rows])

    def put(self, rows: Sequence[Row], vectors: Vectors) -> None:
        self._journals.own.append([row.content for row in rows], vectors)

    def complete(self, rows: Sequence[Row], meta: Meta, save_model: Callable[[Path], None] | None) -> None:
        index = self._engine.folder
        self._journals.read_others()
        building = Path(tempfile.mkdtemp(prefix="building-", dir=index))
        building.chmod(0o755)
        generation.write_rows(building / "rows.sqlite", rows)
        vectors = self._write_vectors(building / "vectors.npy", rows)
        meta = {**meta, "format": generation.FORMAT, "dim": self._dim, "count": len(rows)}
        averaging = read_reranking(meta.get("rerank"))
        if isinstance(averaging, Averaging) and len(rows):
            vectors = _write_and_map(building / "averages.npy", vectors.shape, averages(vectors, averaging))
        meta["approximate"] = self._build_approximate(building / "hnsw.faiss", vectors)
        if save_model is not None:
            save_model(building / "model")
        meta["files"] = generation.describe_files(building)
        files.write_atomically(building / "meta.json", files.json_with_checksum(meta))
        generation.publish(index, building)
        self._journals.remove()
        self._engine.close()

    def _write_vectors(self, path: Path, rows: Sequence[Row]) -> Vectors:
        """Compose vectors.npy (N, D) in the order of the rows and map it."""
        parts = (rows[start : start + 8192] for start in range(0, len(rows), 8192))
        blocks = (self._vectors_of([row.content for row in part]) for part in parts)
        return _write_and_map(path, (len(rows), self._dim), blocks)

    def _vectors_of(self, contents: Sequence[str]) -> Vectors:
        result = np.empty((len(contents), self._dim), np.float32)
        numbers = self._old_position.find(contents)
        old, new = np.flatnonzero(numbers >= 0), np.flatnonzero(numbers < 0)
        if len(old) and self._old_vectors is not None:
            result[old] = self._old_vectors[numbers[old]]
        if len(new):
            result[new] = self._journals.vectors([contents[i] for i in new.tolist()])
        return result

    def _build_approximate(self, path: Path, vectors: Vectors) -> dict[str, Any] | None:
        """Build, measure and keep an approximate index, if wanted or worth it."""
        choice = self._approximate
        if choice is False or len(vectors) == 0 or (choice is None and vectors.size < hnsw.WORTH_TRYING):
            return None
        if choice is None and not hnsw.promising(vectors):
            say("an approximate index would miss too much on these vectors: searches stay exact")
            return None
        say(f"building an approximate index over {len(vectors):,} vectors ...")
        started = time.perf_counter()
        graph = hnsw.build(vectors)
        measured = hnsw.measure_recall(graph, vectors, time.perf_counter() - started)
        if choice is None and (measured.recall < 0.98 or measured.speedup < 2):
            say(f"{measured}: does not pay, searches stay exact")
            return None
        say(str(measured))
        hnsw.write(graph, path)
        return measured.to_dict()


def _write_and_map(path: Path, shape: tuple[int, ...], blocks: Iterable[Vectors]) -> Vectors:
    files.write_vectors(path, (shape[0], shape[1]), blocks)
    return np.asarray(np.load(path, mmap_mode="r" if shape[0] else None, allow_pickle=False))
