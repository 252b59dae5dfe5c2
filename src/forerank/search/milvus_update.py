"""An update of an index in Milvus."""

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerank.search import milvus_records
from forerank.search.engine import Ids, Meta, Vectors
from forerank.search.milvus_filter import folded_text
from forerank.search.milvus_records import FIELDS, SESSION, row_of
from forerank.search.rows import LARGEST_ID, Row, id_of

if TYPE_CHECKING:
    from forerank.search.milvus import MilvusEngine


class MilvusUpdate:
    """Rows are upserted as they come; `complete` moves, relabels and finally deletes.

    What the server holds is read in batches and never kept whole: there may be more rows than fit in memory.
    """

    def __init__(self, engine: "MilvusEngine", dim: int) -> None:
        self._engine, self._dim = engine, dim

    def stored(self, contents: Collection[str]) -> set[str]:
        return set(self._ids_of(contents))

    def _ids_of(self, contents: Collection[str]) -> dict[str, int]:
        """Content -> id of a row that has it, of those contents that are stored, in one pass over all."""
        wanted = set(contents)
        ids: dict[str, int] = {}
        if wanted:
            for records in self._engine._iterate("id >= 0", ["id", "content"], milvus_records.BATCH_ROWS):
                ids |= {r["content"]: int(r["id"]) for r in records if r["content"] in wanted}
        return ids

    def stored_rows(self, rows: Sequence[Row]) -> set[str]:
        ids, records = self._ids_for(rows)
        return {row.content for row, number in zip(rows, ids, strict=True) if number in records}

    def put(self, rows: Sequence[Row], vectors: Vectors) -> None:
        self._put(rows, vectors)

    def _put(self, rows: Sequence[Row], vectors: Vectors) -> list[int]:
        """Store rows and give their ids."""
        ids: list[int] = []
        step = milvus_records.rows_of_bytes(self._dim)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            # What this process has stored is seen; other processes of the load store other rows.
            numbers, _ = self._ids_for(part, **SESSION)
            ids += numbers
            records = [
                {
                    **{name: getattr(row, name) for name in FIELDS},
                    "id": number,
                    "columns": dict(row.columns),
                    "folded": folded_text(f"{row.path}\n{row.label}"),
                    "vector": vector,
                }
                for row, number, vector in zip(part, numbers, vectors[start : start + step], strict=True)
            ]
            self._engine._call("upsert", self._engine._name, records)
        return ids

    def _ids_for(self, rows: Sequence[Row], **options: Any) -> tuple[list[int], dict[int, dict[str, Any]]]:
        """The id of each row, and the records that the server holds under these ids.

        If another row has the id (one chance in 2^53), the next free one is taken.
        """
        ids = [id_of(row.content, row.path) for row in rows]
        records: dict[int, dict[str, Any]] = {}
        owners: dict[int, tuple[str, str]] = {}
        pending = list(range(len(rows)))
        while pending:
            records |= self._engine._get([ids[i] for i in pending], FIELDS, **options)
            owners |= {number: (r["content"], r["path"]) for number, r in records.items()}
            collided = []
            for i in pending:
                me = (rows[i].content, rows[i].path)
                if owners.setdefault(ids[i], me) != me:
                    ids[i] = (ids[i] + 1) & LARGEST_ID
                    collided.append(i)
            pending = collided
        return ids, records

    def complete(self, rows: Sequence[Row], meta: Meta, save_model: Callable[[Path], None] | None) -> None:
        absent: list[Row] = []  # moved, or a second file of the same bytes
        for part, ids, records in self._in_batches(rows):
            known = [(row, number) for row, number in zip(part, ids, strict=True) if number in records]
            absent += [row for row, number in zip(part, ids, strict=True) if number not in records]
            changed = [
                (row, number)
                for row, number in known
                if replace(row, id=number, columns=dict(row.columns)) != row_of(records[number])
            ]
            if changed:
                self._put([row for row, _ in changed], self._engine.vectors([i for _, i in changed]))
        sources = self._ids_of({row.content for row in absent})
        for start in range(0, len(absent), milvus_records.BATCH_ROWS):
            part = absent[start : start + milvus_records.BATCH_ROWS]
            self._put(part, self._engine.vectors([sources[row.content] for row in part]))
        if self._engine.count() != len(rows):  # all that are wanted are there: the others are to go
            keep = array("q")  # eight bytes for each row, and nothing else of it
            for _, ids, _ in self._in_batches(rows):
                keep.extend(ids)
            self._delete_all_but(np.sort(np.frombuffer(keep, np.int64)))
        self._engine._write_meta({**meta, "dim": self._dim, "complete": True})

    def _in_batches(
        self, rows: Sequence[Row]
    ) -> Iterator[tuple[Sequence[Row], list[int], dict[int, dict[str, Any]]]]:
        """Some rows at a time, their ids, and what the server holds under them."""
        for start in range(0, len(rows), milvus_records.BATCH_ROWS):
            part = rows[start : start + milvus_records.BATCH_ROWS]
            yield part, *self._ids_for(part)

    def _delete_all_but(self, keep: Ids) -> None:
        doomed = array("q")  # eight bytes for each row: there may be very many
        for records in self._engine._iterate("id >= 0", ["id"], milvus_records.BATCH_ROWS):
            ids = np.array([record["id"] for record in records], np.int64)
            places = np.minimum(np.searchsorted(keep, ids), len(keep) - 1)
            doomed.extend(ids[keep[places] != ids].tolist() if len(keep) else ids.tolist())
        for start in range(0, len(doomed), milvus_records.BATCH_ROWS):
            part = doomed[start : start + milvus_records.BATCH_ROWS].tolist()
            self._engine._call("delete", self._engine._name, ids=part)
