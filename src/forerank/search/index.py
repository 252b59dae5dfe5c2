"""An index in use: an image or a vector in, ranked matches out."""

import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from forerank.console import say
from forerank.errors import InputError, unknown
from forerank.ranking.reranking import read_reranking
from forerank.search.engine import (
    EVERYTHING,
    Engine,
    Filter,
    Meta,
    RowNeighbours,
    Vectors,
    open_engine,
    unit_vectors,
)
from forerank.search.model import refuse_other_model, split_identity
from forerank.search.reranked import find_reranked
from forerank.search.rows import Row

if TYPE_CHECKING:
    from forerank.models import Retriever
    from forerank.models.retriever import ConvertedRetriever

# Unit vectors (Q, D), how many neighbours, which rows count -> their nearest rows.
Find = Callable[[Vectors, int, Filter], RowNeighbours]


@dataclass(frozen=True, slots=True)
class Hit:
    """One neighbour: its row, where its file lies below the image root, and how similar it is."""

    rank: int  # from 1
    id: int
    path: str
    label: str
    similarity: float
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # category, price, URL, ...


@dataclass(frozen=True)
class Matches(Sequence[Hit]):
    """Hits, nearest first, and whether the nearest is near enough to be trusted."""

    hits: tuple[Hit, ...]
    threshold: float | None  # set by `forerank calibrate`

    @property
    def found(self) -> bool:
        """False where the nearest image is below the threshold: the thing is not in the catalogue."""
        return bool(self.hits) and (self.threshold is None or self.hits[0].similarity >= self.threshold)

    def trusted(self, hit: Hit) -> bool:
        """Whether one hit reaches the threshold."""
        return self.threshold is None or hit.similarity >= self.threshold

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, place: Any) -> Any:
        return self.hits[place]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        hits = [
            {
                "rank": hit.rank,
                "id": hit.id,
                "path": hit.path,
                "label": hit.label or None,
                "similarity": round(hit.similarity, 6),
                "trusted": self.trusted(hit),
                "columns": dict(hit.columns),
            }
            for hit in self.hits
        ]
        return {"found": self.found, "threshold": self.threshold, "hits": hits}


class Index:
    """A searchable index; open one with `Index.open`.

    Attributes:
        engine: where the vectors live.
        meta: what the index says about itself.
        root: folder that the rows' paths start from.

    Searches are refined as the index was told to when it was built (`rerank`). `find` is how neighbours are
    found, by default the engine's own search; the page gives one that answers several visitors at once.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        retriever: "Retriever | ConvertedRetriever | None" = None,
        root: Path | None = None,
        find: Find | None = None,
    ) -> None:
        meta = engine.meta()
        if meta is None:
            raise InputError(f"there is no index at {engine.address}: build one with forerank index.")
        if not meta.get("complete", True):
            say(f"{engine.address} is only partly loaded: run forerank index again, unless it is running.")
        self.engine = engine
        self.meta: Meta = meta
        self.root = root or Path(meta.get("root", "."))
        self._given_root = root
        self._retriever: Retriever | ConvertedRetriever | None = retriever
        self._find = find or engine.search
        self._rerank = read_reranking(meta.get("rerank"))

    @classmethod
    def open(
        cls,
        address: str | Path,
        *,
        model: "str | Path | Retriever | None" = None,
        root: str | Path | None = None,
    ) -> "Index":
        """Open the index at an address.

        Args:
            address: a folder, or SCHEME:PLACE of another engine.
            model: only needed where the index has no copy of its model and the place it names is gone; a
                model other than the one the index was built with is refused.
            root: where the images lie now, if they were moved.
        """
        index = cls(open_engine(address), root=None if root is None else Path(root))
        if model is not None:
            index._retriever = index._load(model)
        return index

    def __len__(self) -> int:
        return self.engine.count()

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.meta["dim"])

    @property
    def threshold(self) -> float | None:
        """The similarity above which a match is trusted, if the index is calibrated."""
        stored = self.meta.get("threshold") or {}
        return float(stored["similarity"]) if "similarity" in stored else None

    @property
    def retriever(self) -> "Retriever | ConvertedRetriever":
        """The model of this index, loaded when it is first needed."""
        if self._retriever is None:
            copy = self.engine.model_folder()
            source = self.meta["model"].get("source", "")
            if copy is None and source in ("", "a model in memory"):
                raise InputError(f"{self.engine.address} has no copy of its model: give it with --model.")
            self._retriever = (copy and self._converted(copy)) or self._load(copy or source)
        return self._retriever

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that rows have beside path and label."""
        return tuple(self.meta.get("columns", ()))

    def filter(self, conditions: Sequence[str] = (), text: str = "") -> Filter:
        """A filter from conditions `COLUMN=VALUE` (also `label=VALUE`) and a text in path or label."""
        label, columns = None, []
        for condition in conditions:
            name, equals, value = condition.partition("=")
            if not equals:
                raise InputError(f"a condition is COLUMN=VALUE, not {condition!r}.")
            if name == "label":
                label = value
            elif name in self.columns:
                columns.append((name, value))
            else:
                raise unknown("column", name, ("label", *self.columns))
        return Filter(label, text, tuple(columns))

    def store_threshold(self, threshold: Mapping[str, Any]) -> None:
        """Keep what `forerank calibrate` found in the index; from now on searches obey it."""
        self.engine.change_meta({"threshold": dict(threshold)})
        self.meta = self.engine.meta() or self.meta

    def finding_by(self, find: Find) -> "Index":
        """The same index, with another way to find neighbours."""
        return Index(self.engine, retriever=self._retriever, root=self._given_root, find=find)

    def reopened(self) -> "Index":
        """The index in the state that it has by now; its model is taken over where it is the same."""
        index = Index(open_engine(self.engine.address), root=self._given_root)
        if index.meta["model"]["fingerprint"] == self.meta["model"]["fingerprint"]:
            index._retriever = self._retriever
        return index

    def _converted(self, folder: Path) -> "ConvertedRetriever | None":
        """The index's own copy of its model as it was converted for it, which spares loading torch."""
        from forerank.models.retriever import ConvertedRetriever

        model, engine, precision = split_identity(self.meta["model"]["fingerprint"])
        return None if engine == "torch" else ConvertedRetriever.find(folder, model, self.dim, precision)

    def _load(self, model: "str | Path | Retriever") -> "Retriever":
        from forerank.models import Retriever
        from forerank.models.storage import shipped_model

        identity, engine, precision = split_identity(self.meta["model"]["fingerprint"])
        if importlib.util.find_spec(engine) is None:
            engine = "torch"  # in the same precision it gives the same vectors to six digits
        if isinstance(model, Retriever):
            retriever, name = model, "the given model"
        else:
            name = shipped_model(str(model))  # of a run with two models, whichever the index was made with
            retriever = Retriever.load(name, engine=engine, precision=precision)
            if name != str(model) and retriever.identity != identity:
                name = str(model)
                retriever = Retriever.load(name, engine=engine, precision=precision)
        instead = "Search with that model, or build an index with this one."
        refuse_other_model(self.engine.address, self.meta["model"], retriever.identity, name, instead)
        return retriever

    def embed(self, queries: Sequence[Any]) -> Vectors:
        """Unit vectors (Q, D) of images: paths, bytes, Pillow pictures or arrays (H, W[, 3])."""
        return unit_vectors(self.retriever.embed(list(queries), progress=len(queries) > 64), self.dim)

    def search(self, query: Any, k: int = 10, where: Filter = EVERYTHING) -> Matches:
        """The k nearest images of one query.

        Args:
            query: an image (path, encoded bytes, Pillow picture, uint8 array (H, W[, 3])) or a vector (D,).
            k: how many at most.
            where: which images count, see `filter`.
        """
        if isinstance(query, np.ndarray | list | tuple) and np.ndim(query) == 1:
            return self.search_vectors(np.asarray(query)[None], k, where)[0]
        return self.search_vectors(self.embed([query]), k, where)[0]

    def search_many(self, queries: Sequence[Any], k: int = 10, where: Filter = EVERYTHING) -> list[Matches]:
        """The k nearest images of each of several query images."""
        return self.search_vectors(self.embed(queries), k, where) if len(queries) else []

    def search_vectors(
        self,
        vectors: npt.ArrayLike,
        k: int = 10,
        where: Filter = EVERYTHING,
        *,
        without: Collection[int] = (),
    ) -> list[Matches]:
        """The k nearest images of each vector of (Q, D); `without`: ids of images that do not count."""
        queries = unit_vectors(vectors, self.dim)
        nearest = find_reranked(self.engine, self._find, queries, _positive(k), where, self._rerank, without)
        return self._matches(nearest)

    def search_row(self, row: int, k: int = 10, where: Filter = EVERYTHING) -> Matches:
        """The k nearest images of an indexed one, without itself. An unknown id raises KeyError."""
        return self.search_vectors(self.engine.vectors([row]), k, where, without=[row])[0]

    def _matches(self, nearest: RowNeighbours) -> list[Matches]:
        ids = dict.fromkeys(nearest.ids[nearest.ids >= 0].ravel().tolist())
        rows = {row.id: row for row in self.engine.rows(list(ids))}
        threshold, result = self.threshold, []
        for numbers, similarities in zip(nearest.ids.tolist(), nearest.similarities.tolist(), strict=True):
            hits = [
                Hit(rank, number, rows[number].path, rows[number].label, similarity, rows[number].columns)
                for rank, (number, similarity) in enumerate(zip(numbers, similarities, strict=True), start=1)
                if number >= 0  # an approximate index may find fewer
            ]
            result.append(Matches(tuple(hits), threshold))
        return result

    def file(self, row: Row) -> Path:
        """Where a row's image lies; one that leads outside the image root (`..`, a link) is refused."""
        root = self.root.resolve()
        file = (root / row.path).resolve()
        if not file.is_relative_to(root):
            raise InputError(f"{row.path} leads outside the image root: it is not shown.")
        return file

    def close(self) -> None:
        """Close files and connections."""
        self.engine.close()


def _positive(k: int) -> int:
    if k < 1:
        raise InputError(f"k is the number of images to find, at least 1, not {k}.")
    return k
