"""The Milvus engine, for those who outgrow one machine: `milvus:FILE.db` or `milvus:http://HOST:PORT#NAME`.

Rows are stored under an id made of content and path, so storing one twice stores it once and a load that
was killed is simply run again. Nothing is deleted before everything new has been acknowledged. The index
says about itself what it must (model, image root, threshold) in a second, one-row collection `NAME_meta`.
"""

import json
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from forerank.console import say
from forerank.errors import InputError, require
from forerank.search.engine import EVERYTHING, Abilities, Filter, Ids, Meta, RowNeighbours, Vectors
from forerank.search.milvus_claim import claimed
from forerank.search.milvus_connection import INFIX_LIKE, PATIENT_ATTEMPTS, Connection, repeat
from forerank.search.milvus_filter import folded_text, milvus_condition
from forerank.search.rows import LARGEST_ID, Row, id_of

FORMAT = 2
FIELDS = ["id", "path", "label", "content", "size", "modified", "columns"]
# Bytes that a text may have. `folded` is path and label in lower case, which can take more bytes.
LONGEST_TEXTS = {"path": 8192, "label": 4096, "content": 64, "folded": 40_960}
LONGEST_META = 65_535
MOST_NEIGHBOURS = 16_384  # Milvus' own limit
# Searches see what this process has stored, and what others stored a moment ago: to see all that was
# acknowledged anywhere ("Strong"), each search would wait for the clock of the server, 0.2 s or more.
SESSION = {"consistency_level": "Session"}
MOST_CHOSEN = 100_000  # ids that one request may name
BATCH_ROWS = 4000  # rows in one request for rows: a consistent read costs a fixed 0.2 s or more
BATCH_BYTES = 8 * 2**20  # of vectors in one request; Milvus takes 64 MB


class MilvusEngine:
    """An index in a Milvus collection; see `forerank.search.engine.Engine` for what each method promises."""

    abilities = Abilities(filters_on_server=True, excludes_writers=True)
    forms = "milvus:FILE.db or milvus:http://HOST:PORT#COLLECTION"

    def __init__(self, address: str) -> None:
        self.address = address
        place, _, name = address.removeprefix("milvus:").partition("#")
        self._name = name or "forerank"
        if not place:
            raise InputError(f"{address!r} names no place: give {self.forms}.")
        if not self._name.replace("_", "a").isalnum() or self._name[0].isdigit():
            raise InputError(
                f"the collection name {self._name!r} may hold only letters, digits and underscores."
            )
        self._remote = "://" in place
        if not self._remote and not place.endswith(".db"):
            raise InputError(f"{place!r}: the name of a local Milvus file ends in .db.")
        self._place = place if self._remote else str(Path(place).absolute())
        self._connection = Connection(self._place, address)
        self._call = self._connection.call
        self._told = False

    # -- reading ------------------------------------------------------------------------------------------

    def meta(self) -> Meta | None:
        if not self._remote and not Path(self._place).exists():
            return None  # opening it would create it
        if not self._call("has_collection", self._name + "_meta"):
            return None
        records = self._call("get", self._name + "_meta", ids=[1], output_fields=["body"])
        if not records:
            return None
        meta: Meta = json.loads(records[0]["body"])
        if meta.get("format") != FORMAT:
            raise InputError(
                f"{self.address} has index format {meta.get('format')!r}; this version reads {FORMAT}: "
                "give another collection (#NAME), or use the version of Forerank that wrote it."
            )
        return {**meta, "count": self.count(), "approximate": None}

    def _write_meta(self, meta: Meta) -> None:
        body = json.dumps({**meta, "format": FORMAT})
        if len(body) > LONGEST_META:  # very many unreadable images: they are then tried again each time
            body = json.dumps({**meta, "bad": {}, "format": FORMAT})
        row = {"id": 1, "body": body, "vector": [1.0, 0.0]}
        self._call("upsert", self._name + "_meta", [row])

    def state(self) -> str:
        return json.dumps(self.meta(), sort_keys=True)

    def change_meta(self, changes: Meta) -> None:
        meta = self.meta()
        if meta is None:
            raise InputError(f"there is no index at {self.address}.")
        self._write_meta({**meta, **changes})

    def count(self) -> int:
        return int(self._call("query", self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def search(self, queries: Vectors, k: int, where: Filter = EVERYTHING) -> RowNeighbours:
        if k > MOST_NEIGHBOURS:
            raise InputError(f"Milvus gives at most {MOST_NEIGHBOURS} neighbours, not {k}.")
        answers: list[list[dict[str, Any]]] = []
        condition = milvus_condition(where)
        if self._filters_here(where):
            accepted = islice(self._rows_here(where, "id >= 0", BATCH_ROWS), MOST_CHOSEN + 1)
            chosen = [row.id for row in accepted]
            if len(chosen) > MOST_CHOSEN:
                raise InputError(
                    f"the text {where.text!r} is in more than {MOST_CHOSEN:,} rows, too many for a search "
                    "at a server before Milvus 2.4: give a rarer text, or upgrade the server."
                )
            condition = f"id in {chosen}"
        options: dict[str, Any] = {"filter": condition, "limit": k, "output_fields": ["id"], **SESSION}
        for start in range(0, len(queries) if k else 0, 256):
            answers += self._call("search", self._name, data=queries[start : start + 256], **options)
        width = max(map(len, answers), default=0)
        # An approximate search may give one query fewer rows than another.
        ids = np.full((len(queries), width), -1, np.int64)
        similarities = np.full((len(queries), width), -np.inf, np.float32)
        for line, hits in enumerate(answers):
            ids[line, : len(hits)] = [hit["id"] for hit in hits]
            similarities[line, : len(hits)] = [hit["distance"] for hit in hits]
        return RowNeighbours(ids, similarities)

    def rows(self, ids: Sequence[int]) -> list[Row]:
        records = self._get(ids, FIELDS, **SESSION)
        return [_row(records[int(i)]) for i in ids]

    def vectors(self, ids: Sequence[int]) -> Vectors:
        records = self._get(ids, ["id", "vector"])
        dim = (self.meta() or {}).get("dim", 0)
        return np.array([records[int(i)]["vector"] for i in ids], np.float32).reshape(
            len(ids), -1 if len(ids) else dim
        )

    def _get(self, ids: Sequence[int], fields: list[str], **options: Any) -> dict[int, dict[str, Any]]:
        """The records of those ids that exist."""
        records: dict[int, dict[str, Any]] = {}
        wanted = sorted({int(i) for i in ids})
        for start in range(0, len(wanted), BATCH_ROWS):
            part = wanted[start : start + BATCH_ROWS]
            for record in self._call("get", self._name, ids=part, output_fields=fields, **options):
                records[record["id"]] = record
        return records

    def page(self, after: int = -1, limit: int = 60, where: Filter = EVERYTHING) -> list[Row]:
        return list(islice(self._rows_here(where, f"id > {int(after)}", max(limit, 16)), limit))

    def _filters_here(self, where: Filter) -> bool:
        """Whether a text has to be looked for in this process: before Milvus 2.4 a server compares only the
        beginning of a text."""
        if not where.text or self._connection.version >= INFIX_LIKE:
            return False
        if not self._told:
            self._told = True
            say(
                f"the server of {self.address} is older than Milvus 2.4 and cannot look for a text inside "
                "paths: all rows are read and compared here, which takes long in a large index."
            )
        return True

    def _rows_here(self, where: Filter, also: str, batch: int) -> Iterator[Row]:
        """The rows that a filter accepts, by ascending id."""
        here = self._filters_here(where)
        condition = milvus_condition(replace(where, text="") if here else where, also)
        for records in self._iterate(condition, FIELDS, BATCH_ROWS if here else min(batch, BATCH_ROWS)):
            yield from (row for row in map(_row, records) if not here or where.accepts(row))

    def values(self, column: str, text: str = "", limit: int = 50) -> list[str]:
        values, folded = set[str](), text.casefold()
        where = Filter(text="" if self._filters_here(Filter(text=text)) else text)
        condition, field = milvus_condition(where, 'label != ""'), "label"
        if column != "label":
            condition, field = "id >= 0", "columns"
        for records in self._iterate(condition, ["id", field], BATCH_ROWS):
            for record in records:
                value = record["label"] if field == "label" else record["columns"].get(column, "")
                if value and folded in value.casefold():
                    values.add(value)
            if len(values) >= limit:
                break
        return sorted(values)[:limit]

    def scan(self, batch: int = 8192) -> Iterator[tuple[list[Row], Vectors]]:
        for records in self._iterate("id >= 0", [*FIELDS, "vector"], min(batch, BATCH_ROWS)):
            yield [_row(record) for record in records], np.array([r["vector"] for r in records], np.float32)

    def all_rows(self) -> Iterator[Row]:
        for records in self._iterate("id >= 0", FIELDS, BATCH_ROWS):
            yield from map(_row, records)

    def _iterate(self, condition: str, fields: list[str], batch: int) -> Iterator[list[dict[str, Any]]]:
        """Batches of records by ascending id: only Milvus' iterator promises that order."""
        options: dict[str, Any] = {"filter": condition, "output_fields": fields, "batch_size": batch}
        iterator = self._call("query_iterator", self._name, **options)
        try:
            while records := repeat(iterator.next, f"read from {self.address}", PATIENT_ATTEMPTS):
                yield sorted(records, key=lambda record: int(record["id"]))
        finally:
            iterator.close()

    def tidy(self) -> None:
        """Nothing is left behind: rows are stored where they belong."""

    def model_folder(self) -> Path | None:
        return None  # the meta data names the model; a copy does not fit in here

    def map_file(self) -> Path | None:
        return None

    def verify(self) -> int:
        raise InputError(f"{self.address}: Milvus keeps its files itself and gives no checksums to compare.")

    def close(self) -> None:
        self._connection.close()

    # -- writing ------------------------------------------------------------------------------------------

    @contextmanager
    def update(
        self, dim: int, model: str, approximate: bool | None = None, rank: int = 0
    ) -> Iterator["_MilvusUpdate"]:
        meta = self.meta()
        if meta is not None and meta["model"]["fingerprint"] != model:
            raise InputError(
                f"{self.address} holds vectors of another model: "
                "give another collection (#NAME) for this one."
            )
        if meta is None:
            self._create(dim)
            meta = {"dim": dim, "model": {"fingerprint": model}}
        if rank > 0:  # the first process of the run has the claim and has written the meta data
            yield _MilvusUpdate(self, dim)
            return
        with claimed(self._call, self._name + "_meta", self.address):
            # Stored before the first row: a reader of a half-loaded index learns that it is one, and a run
            # after one that was killed finishes what that one began.
            self._write_meta({**meta, "complete": False})
            yield _MilvusUpdate(self, dim)

    def _create(self, dim: int) -> None:
        pymilvus = require("pymilvus")
        client, kinds = self._connection.client, pymilvus.DataType
        for name, width, texts, index in (
            (self._name, dim, LONGEST_TEXTS, "AUTOINDEX" if self._remote else "FLAT"),
            (self._name + "_meta", 2, {"body": LONGEST_META}, "FLAT"),
        ):
            if self._call("has_collection", name):
                continue
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", kinds.INT64, is_primary=True)
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=width)
            for text, longest in texts.items():
                schema.add_field(text, kinds.VARCHAR, max_length=longest)
            if name == self._name:
                schema.add_field("size", kinds.INT64)
                schema.add_field("modified", kinds.INT64)
                schema.add_field("columns", kinds.JSON)
            index_parameters = client.prepare_index_params()
            index_parameters.add_index("vector", index_type=index, metric_type="IP")
            # Strong: what was acknowledged is seen by the next read.
            self._call(
                "create_collection",
                name,
                schema=schema,
                index_params=index_parameters,
                consistency_level="Strong",
            )


class _MilvusUpdate:
    """Rows are upserted as they come; `complete` moves, relabels and finally deletes.

    What the server holds is read in batches and never kept whole: there may be more rows than fit in memory.
    """

    def __init__(self, engine: MilvusEngine, dim: int) -> None:
        self._engine, self._dim = engine, dim

    def stored(self, contents: Collection[str]) -> set[str]:
        return set(self._ids_of(contents))

    def _ids_of(self, contents: Collection[str]) -> dict[str, int]:
        """Content -> id of a row that has it, of those contents that are stored, in one pass over all."""
        wanted = set(contents)
        ids: dict[str, int] = {}
        if wanted:
            for records in self._engine._iterate("id >= 0", ["id", "content"], BATCH_ROWS):
                ids |= {r["content"]: int(r["id"]) for r in records if r["content"] in wanted}
        return ids

    def put(self, rows: Sequence[Row], vectors: Vectors) -> None:
        self._put(rows, vectors)

    def _put(self, rows: Sequence[Row], vectors: Vectors) -> list[int]:
        """Store rows and give their ids."""
        ids: list[int] = []
        step = max(1, BATCH_BYTES // (4 * self._dim))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            numbers, _ = self._ids_for(part)
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

    def _ids_for(self, rows: Sequence[Row]) -> tuple[list[int], dict[int, dict[str, Any]]]:
        """The id of each row, and the records that the server holds under these ids.

        If another row has the id (one chance in 2^53), the next free one is taken.
        """
        ids = [id_of(row.content, row.path) for row in rows]
        records: dict[int, dict[str, Any]] = {}
        owners: dict[int, tuple[str, str]] = {}
        pending = list(range(len(rows)))
        while pending:
            records |= self._engine._get([ids[i] for i in pending], FIELDS)
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
        keep = array("q")  # eight bytes for each row, and nothing else of it
        absent: list[Row] = []  # moved, or a second file of the same bytes
        for start in range(0, len(rows), BATCH_ROWS):
            part = rows[start : start + BATCH_ROWS]
            ids, records = self._ids_for(part)
            known = [(row, number) for row, number in zip(part, ids, strict=True) if number in records]
            absent += [row for row, number in zip(part, ids, strict=True) if number not in records]
            keep.extend(number for _, number in known)
            changed = [
                (row, number)
                for row, number in known
                if replace(row, id=number, columns=dict(row.columns)) != _row(records[number])
            ]
            if changed:
                self._put([row for row, _ in changed], self._engine.vectors([i for _, i in changed]))
        sources = self._ids_of({row.content for row in absent})
        for start in range(0, len(absent), BATCH_ROWS):
            part = absent[start : start + BATCH_ROWS]
            keep.extend(self._put(part, self._engine.vectors([sources[row.content] for row in part])))
        self._delete_all_but(np.sort(np.frombuffer(keep, np.int64)))
        self._engine._write_meta({**meta, "dim": self._dim, "complete": True})

    def _delete_all_but(self, keep: Ids) -> None:
        doomed: list[int] = []
        for records in self._engine._iterate("id >= 0", ["id"], BATCH_ROWS):
            ids = np.array([record["id"] for record in records], np.int64)
            places = np.minimum(np.searchsorted(keep, ids), len(keep) - 1)
            doomed += ids[keep[places] != ids].tolist() if len(keep) else ids.tolist()
        for start in range(0, len(doomed), BATCH_ROWS):
            self._engine._call("delete", self._engine._name, ids=doomed[start : start + BATCH_ROWS])


def _row(record: dict[str, Any]) -> Row:
    return Row(
        record["path"],
        record["label"],
        record["content"],
        record["size"],
        record["modified"],
        int(record["id"]),
        record["columns"],
    )
