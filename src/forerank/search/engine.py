"""What an engine is: rows and unit vectors in, nearest rows out. One engine a file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from forerank.errors import InputError
from forerank.search.rows import Row

Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Meta = dict[str, Any]


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of Q queries, nearest first: `ids` (Q, k) and `similarities` (Q, k)."""

    ids: Ids
    similarities: Vectors


class Update(Protocol):
    """A change of an index under way. What `put` has returned from survives a kill."""

    def stored(self) -> set[str]:
        """Contents whose vectors are already safe: they need no embedding."""

    def put(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Keep the vectors (n, D) of these rows; when this returns they are on disk or acknowledged."""

    def finish(self, rows: Sequence[Row], meta: Meta, save_model: Callable[[Path], None] | None) -> None:
        """Make the index hold exactly `rows`; every content must have been stored or put."""


class Engine(Protocol):
    """Where vectors live. Rows have integer ids of at most 53 bits; similarities are cosines."""

    address: str

    def meta(self) -> Meta | None:
        """What the index says about itself, or None where there is no index yet."""

    def change_meta(self, changes: Meta) -> None:
        """Store some entries of the meta data, atomically."""

    def count(self) -> int:
        """How many rows there are."""

    def search(self, queries: Vectors, k: int) -> Neighbours:
        """The k nearest rows (fewer where there are fewer) of each unit vector of `queries` (Q, D)."""

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids, in their order; an unknown id raises KeyError."""

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """The vectors (n, D) of these ids, in their order; an unknown id raises KeyError."""

    def page(self, after: int = -1, limit: int = 60, label: str | None = None, text: str = "") -> list[Row]:
        """The next rows by id after `after`; only those of `label`, or with `text` in path or label."""

    def labels(self, text: str = "", limit: int = 50) -> list[str]:
        """Some labels that contain `text`, sorted."""

    def scan(self, batch: int = 8192) -> Iterator[tuple[list[Row], Vectors]]:
        """Every row with its vector, in batches, by ascending id."""

    def catalogue(self) -> dict[str, Row]:
        """Every row by its path."""

    def update(self, dim: int, model: str) -> AbstractContextManager[Update]:
        """Begin a change with vectors of `dim` dimensions from the model of this fingerprint."""

    def tidy(self) -> None:
        """Remove what a killed update of a now complete index left behind."""

    def model_folder(self) -> Path | None:
        """Where this index keeps its own copy of the model, if it does."""

    def close(self) -> None:
        """Let go of files and connections."""


def _milvus(where: str, approximate: bool | None) -> Engine:
    from forerank.search.milvus import MilvusEngine

    if approximate is not None:
        raise InputError("Milvus chooses its own kind of index: leave out --approximate and --exact.")
    return MilvusEngine(f"milvus:{where}")


# Scheme of an address -> engine from the rest of the address and `approximate`. No scheme: a local folder.
ENGINES: dict[str, Callable[[str, bool | None], Engine]] = {"milvus": _milvus}


def open_engine(address: str | Path, *, approximate: bool | None = None) -> Engine:
    """The engine that an address names: `milvus:...`, or a local folder.

    `approximate` decides whether a local folder gets an approximate index when it is next written: True,
    False, or None for "where it pays".

    >>> open_engine("no/such/folder").meta() is None
    True
    """
    scheme, colon, where = str(address).partition(":")
    if colon and scheme in ENGINES:
        return ENGINES[scheme](where, approximate)
    if where.startswith("//"):
        raise InputError(
            f"unknown kind of index {scheme!r} in {str(address)!r}: give a folder, or milvus:FILE.db, "
            "or milvus:http://HOST:PORT#COLLECTION."
        )
    from forerank.search.folder import FolderEngine

    return FolderEngine(str(address), approximate)


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
