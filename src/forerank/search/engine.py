"""What an engine is: rows and unit vectors in, nearest rows out. One file per engine."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from forerank.errors import InputError, nearest
from forerank.search.rows import Row

Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Meta = dict[str, Any]


@dataclass(frozen=True)
class RowNeighbours:
    """The nearest rows of Q queries, nearest first: `ids` (Q, k) and `similarities` (Q, k)."""

    ids: Ids
    similarities: Vectors


@dataclass(frozen=True)
class Filter:
    """Which rows count: those with this label, with `text` in path or label, and with these column values.

    Upper and lower case are the same in `text`, and different in labels and values.

    >>> Filter(text="SHOE", columns=(("colour", "red"),)).accepts(
    ...     Row("shoes/1.jpg", "", "", 0, 0, columns={"colour": "red"})
    ... )
    True
    """

    label: str | None = None
    text: str = ""
    columns: tuple[tuple[str, str], ...] = ()

    def accepts(self, row: Row) -> bool:
        """Whether a row counts; an engine that filters in its own language must agree with this."""
        folded = self.text.casefold()
        return (
            self.label in (None, row.label)
            and (folded in row.path.casefold() or folded in row.label.casefold())
            and all(row.columns.get(name) == value for name, value in self.columns)
        )


EVERYTHING = Filter()


@dataclass(frozen=True)
class Abilities:
    """What an engine can do beyond its methods; the other modules ask here instead of naming engines."""

    approximate: bool = False  # builds an approximate index, or none, as `update` is told
    keeps_model: bool = False  # keeps a copy of the model beside the vectors
    dense_ids: bool = False  # ids are 0, 1, 2, ... without gaps
    filters_on_server: bool = False  # rows that a filter rejects never reach this process
    excludes_writers: bool = False  # a second update is refused while one runs
    averages: bool = False  # searches averages of neighbours, if the meta data ask for them (`rerank`)


class Update(Protocol):
    """A change of an index that is being made. What `put` has returned from survives a kill."""

    def stored(self, contents: Collection[str]) -> set[str]:
        """Those of `contents` whose vectors are already safe: they need no embedding."""

    def stored_rows(self, rows: Sequence[Row]) -> set[str]:
        """As `stored`, for one part of a long load: it does not take longer in a larger index.

        A content that is stored only under another path may be missing.
        """

    def put(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Keep the vectors (n, D) of these rows; when this returns they are on disk or acknowledged."""

    def complete(self, rows: Sequence[Row], meta: Meta, save_model: Callable[[Path], None] | None) -> None:
        """Make the index hold exactly `rows`; every content must have been stored or put.

        Where ids are dense, they are the positions in `rows`.
        """


class Engine(Protocol):
    """Where vectors live. Rows have integer ids of at most 53 bits; similarities are cosines.

    An engine is made from its address, and nothing is read or written before a method is called.
    """

    address: str
    abilities: ClassVar[Abilities]
    forms: ClassVar[str]  # how its addresses are written, for people: "milvus:FILE.db"

    def __init__(self, address: str) -> None: ...

    def meta(self) -> Meta | None:
        """What the index says about itself, or None where there is no index yet."""

    def state(self) -> str:
        """A text that changes when the index is rebuilt or its meta data change; always read afresh."""

    def change_meta(self, changes: Meta) -> None:
        """Store some entries of the meta data, atomically."""

    def count(self) -> int:
        """How many rows there are."""

    def search(self, queries: Vectors, k: int, where: Filter = EVERYTHING) -> RowNeighbours:
        """The k nearest rows that `where` accepts (fewer where there are fewer) of each query (Q, D)."""

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids, in their order; an unknown id raises KeyError."""

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """The vectors (n, D) of these ids, in their order; an unknown id raises KeyError."""

    def page(self, after: int = -1, limit: int = 60, where: Filter = EVERYTHING) -> list[Row]:
        """The next rows by id after `after` that `where` accepts."""

    def values(self, column: str, text: str = "", limit: int = 50) -> list[str]:
        """Some values of a column, or of "label", that contain `text`, sorted; never the empty one."""

    def all_rows(self) -> Iterator[Row]:
        """Every row, read a batch at a time."""

    def scan(self, batch: int = 8192) -> Iterator[tuple[list[Row], Vectors]]:
        """Every row with its vector, in batches, by ascending id."""

    def update(
        self, dim: int, model: str, approximate: bool | None = None, rank: int = 0
    ) -> AbstractContextManager[Update]:
        """Begin a change with vectors of `dim` dimensions from the model of this identity.

        `approximate` decides whether there is to be an approximate index: True, False, or None for "where
        it pays". An engine without that ability gets None. `rank` counts the processes of one run: they put
        vectors side by side, the first begins before the others and completes after them.
        """

    def tidy(self) -> None:
        """Remove what a killed update of a now complete index left behind."""

    def model_folder(self) -> Path | None:
        """Where this index keeps its own copy of the model, if it does."""

    def map_file(self) -> Path | None:
        """Where a map of this index is kept, whether it is there or not; None if there is no place for it."""

    def verify(self) -> int:
        """Read everything and compare it with its checksums; the number of bytes. Damage is an InputError."""

    def close(self) -> None:
        """Close files and connections."""


# Scheme of an address -> "module:class" of its engine, imported when it is first used. No scheme: a folder.
ENGINES: dict[str, str] = {
    "": "forerank.search.folder:FolderEngine",
    "milvus": "forerank.search.milvus:MilvusEngine",
}


def open_engine(address: str | Path) -> Engine:
    """The engine that an address names: SCHEME:PLACE with a scheme of `ENGINES`, or a local folder.

    >>> open_engine("no/such/folder").meta() is None
    True
    """
    scheme, colon, _ = str(address).partition(":")
    if not (colon and scheme in ENGINES):
        if colon and scheme.isidentifier() and not Path(address).exists():
            forms = ", ".join(engine_class(name).forms for name in ENGINES)
            guess = nearest(scheme, filter(None, ENGINES))
            hint = f" did you mean {guess!r}?" if guess else ""
            raise InputError(
                f"unknown kind of index {scheme!r} in {str(address)!r}:{hint} Give {forms}. "
                f"A folder of that name is written ./{address}."
            )
        scheme = ""
    return engine_class(scheme)(str(address))


def engine_class(scheme: str) -> type[Engine]:
    """The class that `ENGINES` names for a scheme."""
    module, _, name = ENGINES[scheme].partition(":")
    chosen: type[Engine] = getattr(import_module(module), name)
    return chosen


def unit_vectors(values: npt.ArrayLike, dim: int | None = None) -> Vectors:
    """Rows scaled to length one, (N, D) float32; refuses what has no direction or the wrong width.

    >>> unit_vectors([[3.0, 4.0]])
    array([[0.6, 0.8]], dtype=float32)
    """
    vectors = np.array(values, dtype=np.float32, ndmin=2)
    if vectors.ndim != 2:
        raise InputError(f"vectors have the shape (N, D), not {vectors.shape}.")
    if dim is not None and vectors.shape[1] != dim:
        raise InputError(
            f"the vectors have {vectors.shape[1]} dimensions but the index has {dim}: "
            "they come from another model than the index."
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(norms[:, 0]) & (norms[:, 0] > 0)))
    if len(bad):
        raise InputError(f"vector {bad[0]} is zero or not finite: it has no direction to search in.")
    return np.ascontiguousarray(vectors / norms)
