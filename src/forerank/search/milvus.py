"""The Milvus engine, for those who outgrow one machine: `milvus:FILE.db` or `milvus:http://HOST:PORT#NAME`.

Rows are stored under an id made of content and path, so storing one twice stores it once and a load that
was killed is simply run again. Nothing is deleted before everything new has been acknowledged. The index
says about itself what it must (model, image root, threshold) in a second, one-row collection `NAME_meta`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from forerank.console import say
from forerank.errors import InputError, require
from forerank.search import milvus_records
from forerank.search.engine import EVERYTHING, Abilities, Filter, Meta, RowNeighbours, Vectors
from forerank.search.milvus_claim import claimed
from forerank.search.milvus_connection import INFIX_LIKE, PATIENT_ATTEMPTS, Connection, repeat
from forerank.search.milvus_filter import milvus_condition
from forerank.search.milvus_records import FIELDS, SESSION, row_of
from forerank.search.milvus_update import MilvusUpdate
from forerank.search.rows import Row

FORMAT = 2
# Bytes that a text may have. `folded` is path and label in lower case, which can take more bytes.
LONGEST_TEXTS = {"path": 8192, "label": 4096, "content": 64, "folded": 40_960}
LONGEST_META = 65_535
MOST_NEIGHBOURS = 16_384  # Milvus' own limit
MOST_CHOSEN = 100_000  # ids that one request may name
# Candidates that HNSW, the kind of index that a server makes by default, looks at. Left to itself Milvus 2.3
# missed one neighbour of twenty among 20,000 rows, and is no faster.
WIDTH = 256


class MilvusEngine:
    """An index in a Milvus collection; see `forerank.search.engine.Engine` for what each method promises."""

    abilities = Abilities(
        approximate=False, keeps_model=False, dense_ids=False, filters_on_server=True, excludes_writers=True
    )
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
            accepted = islice(self._rows_here(where, "id >= 0", milvus_records.BATCH_ROWS), MOST_CHOSEN + 1)
            chosen = [row.id for row in accepted]
            if len(chosen) > MOST_CHOSEN:
                raise InputError(
                    f"the text {where.text!r} is in more than {MOST_CHOSEN:,} rows, too many for a search "
                    "at a server before Milvus 2.4: give a rarer text, or upgrade the server."
                )
            condition = f"id in {chosen}"
        options: dict[str, Any] = {"filter": condition, "limit": k, "output_fields": ["id"], **SESSION}
        if self._remote:
            options["search_params"] = {"params": {"ef": max(k, WIDTH)}}
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
        return [row_of(records[int(i)]) for i in ids]

    def vectors(self, ids: Sequence[int]) -> Vectors:
        dim = int((self.meta() or {}).get("dim", 0))
        result = np.empty((len(ids), dim), np.float32)
        step = milvus_records.rows_of_bytes(dim)
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            records = self._get(part, ["id", "vector"])
            result[start : start + step] = [records[int(i)]["vector"] for i in part]
        return result

    def _get(self, ids: Sequence[int], fields: list[str], **options: Any) -> dict[int, dict[str, Any]]:
        """The records of those ids that exist."""
        records: dict[int, dict[str, Any]] = {}
        wanted = sorted({int(i) for i in ids})
        for start in range(0, len(wanted), milvus_records.BATCH_ROWS):
            part = wanted[start : start + milvus_records.BATCH_ROWS]
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
        for records in self._iterate(
            condition, FIELDS, milvus_records.BATCH_ROWS if here else min(batch, milvus_records.BATCH_ROWS)
        ):
            yield from (row for row in map(row_of, records) if not here or where.accepts(row))

    def values(self, column: str, text: str = "", limit: int = 50) -> list[str]:
        values, folded = set[str](), text.casefold()
        where = Filter(text="" if self._filters_here(Filter(text=text)) else text)
        condition, field = milvus_condition(where, 'label != ""'), "label"
        if column != "label":
            condition, field = "id >= 0", "columns"
        for records in self._iterate(condition, ["id", field], milvus_records.BATCH_ROWS):
            for record in records:
                value = record["label"] if field == "label" else record["columns"].get(column, "")
                if value and folded in value.casefold():
                    values.add(value)
            if len(values) >= limit:
                break
        return sorted(values)[:limit]

    def scan(self, batch: int = 8192) -> Iterator[tuple[list[Row], Vectors]]:
        dim = int((self.meta() or {}).get("dim", 0))
        for records in self._iterate(
            "id >= 0", [*FIELDS, "vector"], min(batch, milvus_records.rows_of_bytes(dim))
        ):
            yield [row_of(record) for record in records], np.array([r["vector"] for r in records], np.float32)

    def all_rows(self) -> Iterator[Row]:
        for records in self._iterate("id >= 0", FIELDS, milvus_records.BATCH_ROWS):
            yield from map(row_of, records)

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
    ) -> Iterator[MilvusUpdate]:
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
            yield MilvusUpdate(self, dim)
            return
        with claimed(self._call, self._name + "_meta", self.address):
            # Stored before the first row: a reader of a half-loaded index learns that it is one, and a run
            # after one that was killed finishes what that one began.
            self._write_meta({**meta, "complete": False})
            yield MilvusUpdate(self, dim)

    def _create(self, dim: int) -> None:
        pymilvus = require("pymilvus")
        client, kinds = self._connection.client, pymilvus.DataType
        for name, width, texts, index in (
            (
                self._name,
                dim,
                LONGEST_TEXTS,
                "AUTOINDEX" if self._remote else "FLAT",
            ),
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
