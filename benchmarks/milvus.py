"""A load into a Milvus server and searches there, beside the local folder. Streams: no list of all rows.

    python benchmarks/milvus.py                                 1,000,000 x 128, into a server it starts
    python benchmarks/milvus.py --rows 200000 --kinds FLAT IVF_SQ8 IVF_PQ
    python benchmarks/milvus.py --address milvus:http://127.0.0.1:19530#load

Without an address a Milvus is started on this machine (pip install milvus==2.3.5) and ended afterwards.
Vectors are clusters of eight. Memory is the peak of the process that loads, before anything else is done in
it. `--kinds` puts other kinds of index in place of the first one, one after the other, and searches again.
With `--data`, the folder of the server, the bytes of each index on its disk are told, which is what a query
node loads into memory.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, overload

import numpy as np

from forerank.console import format_table, say
from forerank.search import Row, open_engine
from forerank.search.engine import Filter
from milvus_servers import RealMilvusServer
from process_memory import peak_bytes

BLOCK = 8192
K = 10
META = {"model": {"fingerprint": "benchmark"}, "root": ".", "labelled": True}


class Rows(Sequence[Row]):
    """Rows made when they are asked for."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, i: int) -> Row: ...
    @overload
    def __getitem__(self, i: slice) -> "Rows": ...
    def __getitem__(self, i: int | slice) -> "Row | Rows":
        if isinstance(i, slice):
            start, stop, _ = i.indices(len(self))
            return Rows(self.start + start, self.start + stop)
        if not 0 <= i < len(self):
            raise IndexError(i)
        n = self.start + i
        return Row(f"{n:09d}.jpg", str(n // 8), f"{n:032x}", 1, 1, columns={"category": str(n % 100)})


def block(number: int, size: int, dim: int) -> np.ndarray:
    """Vectors (size, dim) of one block, the same whenever they are asked for."""
    rng = np.random.default_rng(number)
    vectors = np.repeat(rng.normal(size=(-(-size // 8), dim)), 8, axis=0)[:size].astype(np.float32)
    vectors += 0.7 * rng.normal(size=vectors.shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def blocks(rows: int, dim: int) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, vectors) of every block."""
    for start in range(0, rows, BLOCK):
        yield start, block(start // BLOCK, min(BLOCK, rows - start), dim)


def load(address: str | Path, rows: int, dim: int, approximate: bool | None = None) -> dict[str, float]:
    """Seconds of each step, and the peak memory of this process in MiB."""
    engine = open_engine(address)
    started = time.perf_counter()
    with engine.update(dim, "benchmark", approximate) as update:
        for start, vectors in blocks(rows, dim):
            update.put(Rows(start, start + len(vectors)), vectors)
            if start % (BLOCK * 4) == 0:
                say(f"{start + len(vectors):,} rows, {time.perf_counter() - started:.0f} s")
        stored = time.perf_counter()
        update.complete(Rows(0, rows), META, None)
    finished = time.perf_counter()
    engine.close()
    return {"put s": stored - started, "complete s": finished - stored, "client MiB": peak_bytes() / 2**20}


def wait_for_index(client: Any, name: str) -> None:
    """Wait until every row that was flushed is in the index."""
    while int(client.describe_index(name, "vector").get("pending_index_rows", 0)):
        time.sleep(1)


def wait_for_use(client: Any, name: str, rows: int) -> None:
    """Wait until searches go through that index.

    Until then a query node answers from the rows as they came, by a coarse index of its own that ignores the
    number of candidates: 85 of 100 true neighbours were seen. Small segments never get an index.
    """
    for _ in range(3600):
        sealed = [segment for segment in client.list_loaded_segments(name) if segment.state_name == "Sealed"]
        indexed = all(segment.index_name for segment in sealed if segment.num_rows >= 1024)
        if indexed and sum(segment.num_rows for segment in sealed) >= rows:
            return
        time.sleep(1)
    raise SystemExit("the server has an index, but after an hour it still does not search by it")


def build_index(address: str, rows: int) -> dict[str, float]:
    """Seconds until what was loaded is on the server's disk, in its index, and found by that."""
    engine: Any = open_engine(address)
    client, started = engine._connection.client, time.perf_counter()
    client.flush(engine._name, timeout=600)
    wait_for_index(client, engine._name)
    wait_for_use(client, engine._name, rows)
    engine.close()
    return {"index s": time.perf_counter() - started}


def change_index(address: str, kind: str, dim: int) -> dict[str, float]:
    """Put another kind of index in place; seconds until it is loaded."""
    engine: Any = open_engine(address)
    client, name, started = engine._connection.client, engine._name, time.perf_counter()
    client.release_collection(name)
    client.drop_index(name, "vector")
    parameters = client.prepare_index_params()
    settings = {"IVF_PQ": {"nlist": 1024, "m": dim // 4}, "HNSW": {"M": 18, "efConstruction": 240}}
    chosen = settings.get(kind, {"nlist": 1024} if kind.startswith("IVF") else {})
    parameters.add_index("vector", index_type=kind, metric_type="IP", params=chosen)
    client.create_index(name, parameters)
    wait_for_index(client, name)
    client.load_collection(name)
    engine.close()
    return {"index s": time.perf_counter() - started}


def index_bytes(data: Path | None) -> int:
    """Bytes of all indexes in the folder of a server; it removes those that were dropped an hour later."""
    files = [] if data is None else data.rglob("index_files/**/*")
    return sum(file.stat().st_size for file in files if file.is_file())


def nearest(queries: np.ndarray, rows: int, dim: int) -> list[set[str]]:
    """Paths of the K true neighbours of each query, block after block."""
    best = np.full((len(queries), K), -2.0, np.float32)
    ids = np.zeros((len(queries), K), np.int64)
    for start, vectors in blocks(rows, dim):
        similarities = np.hstack([best, queries @ vectors.T])
        numbers = np.hstack([ids, np.tile(np.arange(start, start + len(vectors)), (len(queries), 1))])
        top = np.argpartition(-similarities, K, axis=1)[:, :K]
        best, ids = np.take_along_axis(similarities, top, 1), np.take_along_axis(numbers, top, 1)
    return [{f"{n:09d}.jpg" for n in line} for line in ids]


def search(address: str | Path, queries: np.ndarray, truth: list[set[str]]) -> dict[str, float]:
    """Recall, and milliseconds of one query without and with a filter."""
    engine = open_engine(address)
    engine.search(queries[:1], K)
    answers = engine.search(queries, K).ids.tolist()
    paths = [{row.path for row in engine.rows([i for i in ids if i >= 0])} for ids in answers]
    result = {"recall@10": float(np.mean([len(f & t) / K for f, t in zip(paths, truth, strict=True)]))}
    for name, where in (
        ("one query ms", Filter()),
        ("one query, category ms", Filter(columns=(("category", "7"),))),
    ):
        times = []
        for query in queries[:50]:
            started = time.perf_counter()
            engine.search(query[None], K, where)
            times.append(1000 * (time.perf_counter() - started))
        result[name] = median(times)
    engine.close()
    return result


def main() -> None:
    """Start a server if none is given, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="milvus:http://HOST:PORT#COLLECTION, a new collection")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--kinds", nargs="*", default=[], help="other kinds of index to try afterwards")
    parser.add_argument("--data", type=Path, help="the data folder of the server, if it is on this machine")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    if options.address:
        measure(options)
        return
    with tempfile.TemporaryDirectory(prefix="forerank-milvus-") as folder:
        server = RealMilvusServer(Path(folder) / "server")
        try:
            server.start()
            options.address, options.data = f"{server.address}#load", server.data
            measure(options)
        finally:
            server.kill()


def measure(options: argparse.Namespace) -> None:
    """Load, search, print."""
    rows, dim = options.rows, options.dim
    results: dict[str, dict[str, Any]] = {"Milvus": load(options.address, rows, dim)}
    say(f"loaded: {results['Milvus']}; waiting for the index of the server")
    results["Milvus"] |= build_index(options.address, rows)
    results["Milvus"]["index MiB"] = index_bytes(options.data) / 2**20
    queries = block(0, 100, dim) + 0.5 / np.sqrt(dim) * np.random.default_rng(2**31).normal(size=(100, dim))
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    truth = nearest(queries, rows, dim)
    results["Milvus"] |= search(options.address, queries, truth)
    for kind in options.kinds:
        before = index_bytes(options.data)
        results[kind] = change_index(options.address, kind, dim)
        results[kind]["index MiB"] = (index_bytes(options.data) - before) / 2**20
        results[kind] |= search(options.address, queries, truth)
        say(f"{kind}: {results[kind]}")
    with tempfile.TemporaryDirectory(prefix="forerank-milvus-") as folder:
        place = Path(folder) / "index"
        results["folder, exact"] = load(place, rows, dim, False) | search_folder(place, queries, truth)
    keys = list(results["Milvus"])
    lines = [[key, *(f"{result.get(key, float('nan')):.3f}" for result in results.values())] for key in keys]
    print(format_table([f"{rows:,} x {dim}", *results], lines))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def search_folder(place: Path, queries: np.ndarray, truth: list[set[str]]) -> dict[str, float]:
    """As `search`; the memory of a process that has loaded into Milvus before says nothing of the folder."""
    return {"client MiB": float("nan")} | search(place, queries, truth)


if __name__ == "__main__":
    main()
