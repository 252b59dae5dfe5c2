"""The Milvus engine, for those who outgrow one machine: `milvus:FILE.db` or `milvus:http://HOST:PORT#NAME`.

Rows are stored under an id made of content and path, so storing one twice stores it once and a load that
was killed is simply run again. Nothing is deleted before everything new has been acknowledged. The index
says about itself what it must (model, image root, threshold) in a second, one-row collection `NAME_meta`.
"""

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forerank.console import say
from forerank.errors import ForerankError, InputError, require
from forerank.search.engine import Meta, Neighbours, Vectors
from forerank.search.rows import LARGEST_ID, Row, id_of

T = TypeVar("T")
FORMAT = 1
FIELDS = ["id", "path", "label", "content", "size", "modified"]
LONGEST_META = 65_535
MOST_NEIGHBOURS = 16_384  # Milvus' own limit
BATCH_BYTES = 8 * 2**20  # of vectors in one request; Milvus takes 64 MB
ATTEMPTS = 7  # waits of 0.25, 0.5, ... 16 s: half a minute in all


class MilvusEngine:
    """An index in a Milvus collection; see `forerank.search.engine.Engine` for what each method promises."""

    def __init__(self, address: str) -> None:
        self.address = address
        place, _, name = address.removeprefix("milvus:").partition("#")
        self._name = name or "forerank"
        if not place:
            raise InputError(
                f"{address!r} names no place: milvus:FILE.db or milvus:http://HOST:PORT#COLLECTION."
            )
        if not self._name.replace("_", "a").isalnum() or self._name[0].isdigit():
            raise InputError(
                f"the collection name {self._name!r} may hold only letters, digits and underscores."
            )
        self._remote = "://" in place
        if not self._remote and not place.endswith(".db"):
            raise InputError(f"{place!r}: the name of a local Milvus file ends in .db.")
        self._place = place if self._remote else str(Path(place).absolute())
        self._connection: Any = None

    @property
    def _client(self) -> Any:
        """The connection, made when it is first needed."""
        if self._connection is None:
            pymilvus = require("pymilvus")
            if not self._remote:
                require("milvus_lite")
                Path(self._place).parent.mkdir(parents=True, exist_ok=True)
            # Its log repeats every error that we turn into a sentence, with a traceback.
            logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
            for name in (
                "pymilvus.decorators",
                "pymilvus.orm.iterator",
                "pymilvus.client",
                "milvus_lite",
                "grpc._server",
            ):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            token = os.environ.get("MILVUS_TOKEN", "")
            self._connection = _retry(
                lambda: pymilvus.MilvusClient(self._place, token=token, timeout=10), f"reach {self.address}"
            )
            if not self._remote:
                _in_use[self._place] += 1
        return self._connection

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """One request, repeated while the server is away."""
        client, what = self._client, f"{method} at {self.address}"
        call = partial(getattr(client, method), *arguments, **options)
        try:
            return _retry(call, what)
        except ForerankError as error:
            # A server that was started again has its collections on disk, not in memory.
            if not any(sign in str(error) for sign in ("released", "not loaded")):
                raise
            _retry(partial(client.load_collection, arguments[0]), what)
            return _retry(call, what)

    # -- reading ------------------------------------------------------------------------------------------

    def meta(self) -> Meta | None:
        if not self._remote and not Path(self._place).exists():
            return None  # opening it would create it
        if not self._call("has_collection", self._name + "_meta"):
            return None
        found = self._call("get", self._name + "_meta", ids=[1], output_fields=["body"])
        if not found:
            return None
        meta: Meta = json.loads(found[0]["body"])
        if meta.get("format") != FORMAT:
            raise InputError(
                f"{self.address} has index format {meta.get('format')!r}; this version reads {FORMAT}."
            )
        return {**meta, "count": self.count(), "approximate": None}

    def _write_meta(self, meta: Meta) -> None:
        body = json.dumps({**meta, "format": FORMAT})
        if len(body) > LONGEST_META:  # very many unreadable images: they are then tried again each time
            body = json.dumps({**meta, "bad": {}, "format": FORMAT})
        row = {"id": 1, "body": body, "vector": [1.0, 0.0]}
        self._call("upsert", self._name + "_meta", [row])

    def change_meta(self, changes: Meta) -> None:
        meta = self.meta()
        if meta is None:
            raise InputError(f"there is no index at {self.address}.")
        self._write_meta({**meta, **changes})

    def count(self) -> int:
        return int(self._call("query", self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def search(self, queries: Vectors, k: int) -> Neighbours:
        if k > MOST_NEIGHBOURS:
            raise InputError(f"Milvus gives at most {MOST_NEIGHBOURS} neighbours, not {k}.")
        k = min(k, self.count())
        if k == 0:
            return Neighbours(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
        ids: list[list[int]] = []
        similarities: list[list[float]] = []
        for start in range(0, len(queries), 256):
            found = self._call(
                "search", self._name, data=queries[start : start + 256], limit=k, output_fields=["id"]
            )
            ids += [[hit["id"] for hit in hits] for hits in found]
            similarities += [[hit["distance"] for hit in hits] for hits in found]
        return Neighbours(np.array(ids, np.int64), np.array(similarities, np.float32))

    def rows(self, ids: Sequence[int]) -> list[Row]:
        found = self._get(ids, FIELDS)
        return [_row(found[int(i)]) for i in ids]

    def vectors(self, ids: Sequence[int]) -> Vectors:
        found = self._get(ids, ["id", "vector"])
        dim = (self.meta() or {}).get("dim", 0)
        return np.array([found[int(i)]["vector"] for i in ids], np.float32).reshape(
            len(ids), -1 if len(ids) else dim
        )

    def _get(self, ids: Sequence[int], fields: list[str]) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        wanted = sorted({int(i) for i in ids})
        for start in range(0, len(wanted), 1000):
            for record in self._call(
                "get", self._name, ids=wanted[start : start + 1000], output_fields=fields
            ):
                found[record["id"]] = record
        return found

    def page(self, after: int = -1, limit: int = 60, label: str | None = None, text: str = "") -> list[Row]:
        condition = f"id > {int(after)}"
        if label is not None:
            condition += f" and label == {_quoted(label)}"
        # Milvus compares letters as they are written; so texts are compared here, as the local engine does.
        folded, rows = text.casefold(), list[Row]()
        for batch in self._iterate(condition, FIELDS, 4000 if text else max(limit, 16)):
            rows += [
                r for r in map(_row, batch) if folded in r.path.casefold() or folded in r.label.casefold()
            ]
            if len(rows) >= limit:
                break
        return rows[:limit]

    def labels(self, text: str = "", limit: int = 50) -> list[str]:
        found, folded = set[str](), text.casefold()
        for batch in self._iterate('label != ""', ["id", "label"], 1000):
            found |= {record["label"] for record in batch if folded in record["label"].casefold()}
            if len(found) >= limit:
                break
        return sorted(found)[:limit]

    def scan(self, batch: int = 8192) -> Iterator[tuple[list[Row], Vectors]]:
        for records in self._iterate("id >= 0", [*FIELDS, "vector"], min(batch, 1000)):
            yield [_row(record) for record in records], np.array([r["vector"] for r in records], np.float32)

    def catalogue(self) -> dict[str, Row]:
        return {row.path: row for row in self._all_rows()}

    def _all_rows(self) -> Iterator[Row]:
        for records in self._iterate("id >= 0", FIELDS, 4000):
            yield from map(_row, records)

    def _iterate(self, condition: str, fields: list[str], batch: int) -> Iterator[list[dict[str, Any]]]:
        """Batches of records by ascending id: only Milvus' iterator promises that order."""
        options: dict[str, Any] = {"filter": condition, "output_fields": fields, "batch_size": batch}
        iterator = self._call("query_iterator", self._name, **options)
        try:
            while records := _retry(iterator.next, f"read from {self.address}"):
                yield sorted(records, key=lambda record: int(record["id"]))
        finally:
            iterator.close()

    def tidy(self) -> None:
        """Nothing is left behind: rows are stored where they belong."""

    def model_folder(self) -> Path | None:
        return None  # the meta data names the model; a copy does not fit in here

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            if not self._remote:
                _release(self._place)

    # -- writing ------------------------------------------------------------------------------------------

    @contextmanager
    def update(self, dim: int, model: str) -> Iterator["_MilvusUpdate"]:
        meta = self.meta()
        if meta is not None and meta["model"]["fingerprint"] != model:
            raise InputError(
                f"{self.address} holds vectors of another model: "
                "give another collection (#NAME) for this one."
            )
        if meta is None:
            self._create(dim)
            meta = {"dim": dim, "model": {"fingerprint": model}}
        # Said before the first row: whoever opens a half-loaded index learns that it is one, and a run after
        # one that was killed finishes what that one began.
        self._write_meta({**meta, "complete": False})
        yield _MilvusUpdate(self, dim)

    def _create(self, dim: int) -> None:
        pymilvus = require("pymilvus")
        client, kinds = self._client, pymilvus.DataType
        for name, width, texts, index in (
            (
                self._name,
                dim,
                {"path": 8192, "label": 4096, "content": 64},
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
    """Rows are upserted as they come; `finish` moves, relabels and finally deletes."""

    def __init__(self, engine: MilvusEngine, dim: int) -> None:
        self._engine, self._dim = engine, dim
        self._rows: dict[int, Row] = {row.id: row for row in engine._all_rows()}
        self._by_content: dict[str, int] = {row.content: row.id for row in self._rows.values()}

    def stored(self) -> set[str]:
        return set(self._by_content)

    def put(self, rows: Sequence[Row], vectors: Vectors) -> None:
        step = max(1, BATCH_BYTES // (4 * self._dim))
        for start in range(0, len(rows), step):
            part = [self._with_id(row) for row in rows[start : start + step]]
            records = [
                {**{name: getattr(row, name) for name in FIELDS}, "vector": vector}
                for row, vector in zip(part, vectors[start : start + step], strict=True)
            ]
            self._engine._call("upsert", self._engine._name, records)
            for row in part:
                self._rows[row.id] = row
                self._by_content[row.content] = row.id

    def _with_id(self, row: Row) -> Row:
        """The row under its id; if another row has it (one chance in 2^53), under the next free one."""
        number = id_of(row.content, row.path)
        while number in self._rows and (self._rows[number].content, self._rows[number].path) != (
            row.content,
            row.path,
        ):
            number = (number + 1) & LARGEST_ID
        return Row(row.path, row.label, row.content, row.size, row.modified, number)

    def finish(self, rows: Sequence[Row], meta: Meta, save_model: Callable[[Path], None] | None) -> None:
        wanted = [self._with_id(row) for row in rows]
        changed = [row for row in wanted if self._rows.get(row.id) != row]
        for start in range(0, len(changed), 1000):
            part = changed[start : start + 1000]
            self.put(part, self._engine.vectors([self._by_content[row.content] for row in part]))
        keep = {row.id for row in wanted}
        dropped = [number for number in self._rows if number not in keep]
        for start in range(0, len(dropped), 1000):
            self._engine._call("delete", self._engine._name, ids=dropped[start : start + 1000])
        self._engine._write_meta({**meta, "dim": self._dim, "complete": True})


def _row(record: dict[str, Any]) -> Row:
    return Row(
        record["path"],
        record["label"],
        record["content"],
        record["size"],
        record["modified"],
        int(record["id"]),
    )


def _quoted(text: str) -> str:
    """A string literal of Milvus' filter language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _retry(call: Callable[[], T], what: str) -> T:
    """Call until it succeeds, waiting longer each time, as long as the fault is one that passes."""
    pymilvus = require("pymilvus")
    grpc = require("grpc")

    wait = 0.25
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except (pymilvus.MilvusException, grpc.RpcError, ConnectionError) as error:
            if "open local milvus failed" in str(error).lower():
                raise InputError(
                    f"cannot {what}: the file is damaged or another process has it open."
                ) from error
            if attempt == ATTEMPTS or not _passes(error):
                raise ForerankError(f"cannot {what}: {_sentence(error)}") from error
            say(f"cannot {what} ({_sentence(error)}); trying again in {wait:g} s")
            time.sleep(wait)
            wait *= 2
    raise AssertionError("unreachable")


def _passes(error: Exception) -> bool:
    """Whether a fault is of the kind that goes away: the server is starting, busy, or being replaced."""
    text = str(error).lower()
    signs = ("unavailable", "fail connecting", "timeout", "deadline", "rate limit", "not ready", "connection")
    return isinstance(error, ConnectionError) or any(sign in text for sign in signs)


def _sentence(error: Exception) -> str:
    return str(getattr(error, "message", "") or error).strip().splitlines()[0][:200]


# Local file -> how many engines of this process have it open.
_in_use: Counter[str] = Counter()


def _release(place: str) -> None:
    """Let other processes open a local Milvus file: its server lives in this process until told to stop."""
    _in_use[place] -= 1
    if _in_use[place] > 0:
        return
    try:
        from milvus_lite.server_manager import server_manager_instance
    except ImportError:
        return
    server_manager_instance.release_server(place)
