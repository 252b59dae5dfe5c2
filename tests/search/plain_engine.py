"""An engine written from `Engine` alone: it holds everything in memory. Tests add it as CONTRIBUTING says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from forerank.search.engine import EVERYTHING, Abilities, RowNeighbours

PLACES: dict[str, dict] = {}  # address -> what is stored there; it lives as long as the process


class PlainEngine:
    """Rows and vectors in memory."""

    abilities = Abilities(dense_ids=True)
    forms = "plain:NAME"

    def __init__(self, address: str) -> None:
        self.address = address
        self.place = PLACES.setdefault(address, {"meta": None, "rows": [], "vectors": [], "put": {}})

    def meta(self):
        return self.place["meta"]

    def state(self):
        return repr(self.place["meta"])

    def change_meta(self, changes):
        self.place["meta"] = {**self.place["meta"], **changes}

    def count(self):
        return len(self.place["rows"])

    def search(self, queries, k, where=EVERYTHING):
        accepted = np.array([row.id for row in self.place["rows"] if where.accepts(row)], np.int64)
        if not len(accepted):
            return RowNeighbours(
                np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
            )
        products = queries @ self.place["vectors"][accepted].T
        order = np.argsort(-products, axis=1)[:, :k]
        return RowNeighbours(accepted[order], np.take_along_axis(products, order, axis=1))

    def rows(self, ids):
        return [self.place["rows"][self._known(i)] for i in ids]

    def vectors(self, ids):
        return self.place["vectors"][[self._known(i) for i in ids]]

    def _known(self, number):
        if not 0 <= number < self.count():
            raise KeyError(number)
        return int(number)

    def page(self, after=-1, limit=60, where=EVERYTHING):
        return [row for row in self.place["rows"] if row.id > after and where.accepts(row)][:limit]

    def values(self, column, text="", limit=50):
        rows = self.place["rows"]
        values = {row.label if column == "label" else row.columns.get(column, "") for row in rows} - {""}
        return sorted(value for value in values if text.casefold() in value.casefold())[:limit]

    def all_rows(self):
        return iter(self.place["rows"])

    def scan(self, batch=8192):
        for start in range(0, self.count(), batch):
            yield self.place["rows"][start : start + batch], self.place["vectors"][start : start + batch]

    @contextmanager
    def update(
        self, dim: int, model: str, approximate: bool | None = None, rank: int = 0
    ) -> "Iterator[PlainEngine]":
        self.dim = dim
        yield self

    def stored(self, contents):
        return set(contents) & set(self.place["put"])

    def stored_rows(self, rows):
        return self.stored([row.content for row in rows])

    def put(self, rows, vectors):
        self.place["put"] |= {row.content: vector for row, vector in zip(rows, vectors, strict=True)}

    def complete(self, rows, meta, save_model):
        vectors = [self.place["put"][row.content] for row in rows]
        self.place["rows"] = [replace(row, id=i) for i, row in enumerate(rows)]
        self.place["vectors"] = np.array(vectors, np.float32).reshape(len(rows), self.dim)
        self.place["meta"] = {**meta, "dim": self.dim, "count": len(rows)}

    def tidy(self):
        pass

    def model_folder(self):
        return None

    def map_file(self):
        return None

    def close(self):
        pass
