"""Our search beside faiss used directly, and the page under load. One table, one run.

    python benchmarks/search.py            60,502 x 512 and 1,000,000 x 128 (HNSW builds take minutes)
    python benchmarks/search.py --quick    20,000 x 128, to see that it works
    python benchmarks/search.py --sizes 100000 1000000 --kind exact    how cost grows, 128 dimensions each

Ours and faiss are timed in turns in one process, so that whatever else the machine does disturbs both alike;
memory is measured in a fresh process each. Vectors are clusters of eight, as embeddings of a catalogue are.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from forerank.console import format_table, say
from forerank.search import Row, hnsw, open_engine

K = 10


def make_vectors(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Unit vectors (count, dim) in clusters of eight."""
    rng = np.random.default_rng(seed)
    vectors = np.repeat(rng.normal(size=(-(-count // 8), dim)).astype(np.float32), 8, axis=0)[:count]
    for start in range(0, count, 65_536):
        part = vectors[start : start + 65_536]
        part += 0.7 * rng.normal(size=part.shape).astype(np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def make_queries(vectors: np.ndarray, count: int, seed: int = 1) -> np.ndarray:
    """New members of some clusters: not themselves in the index."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(vectors), count, replace=len(vectors) < count)
    queries = vectors[rows] + 0.5 / np.sqrt(vectors.shape[1]) * rng.normal(size=(count, vectors.shape[1]))
    return np.ascontiguousarray(queries / np.linalg.norm(queries, axis=1, keepdims=True), np.float32)


def build_ours(folder: Path, vectors: np.ndarray, approximate: bool) -> float:
    """Seconds to write an index folder of these vectors."""
    rows = [Row(f"{i:07d}.jpg", f"{i // 8}", f"{i:032x}", 1, 1) for i in range(len(vectors))]
    engine = open_engine(folder)
    started = time.perf_counter()
    with engine.update(vectors.shape[1], "benchmark", approximate) as update:
        for start in range(0, len(rows), 8192):
            update.put(rows[start : start + 8192], vectors[start : start + 8192])
        update.complete(rows, {"model": {"fingerprint": "benchmark"}, "root": ".", "labelled": True}, None)
    return time.perf_counter() - started


def in_turns(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median seconds of two calls, made in turns."""
    one(), other()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, kept in zip((one, other), times, strict=True):
            started = time.perf_counter()
            call()
            kept.append(time.perf_counter() - started)
    return median(times[0]), median(times[1])


def recall(ids: np.ndarray, truth: np.ndarray) -> float:
    """Share of the true neighbours that were found."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(ids, truth, strict=True)]))


def compare(name: str, vectors: np.ndarray, folder: Path, kind: str, quick: bool) -> dict[str, Any]:
    """One line of the table: exact or HNSW, ours against faiss."""
    import faiss

    queries = make_queries(vectors, 1000)
    approximate = kind == "HNSW"
    say(f"{name}, {kind}: building ours ...")
    place = folder / f"{name} {kind}".replace(" ", "_").replace(",", "")
    our_build = build_ours(place, vectors, approximate)
    engine = open_engine(place)
    width = engine.meta()["approximate"]["width"] if approximate else 0
    say(f"{name}, {kind}: building with faiss ...")
    started = time.perf_counter()
    if approximate:
        direct = faiss.IndexHNSWFlat(vectors.shape[1], hnsw.LINKS, faiss.METRIC_INNER_PRODUCT)
        direct.hnsw.efConstruction = hnsw.BUILD_WIDTH
        direct.add(vectors)
        direct.hnsw.efSearch = width
    else:
        direct = faiss.IndexFlatIP(vectors.shape[1])
        direct.add(vectors)
    their_build = time.perf_counter() - started
    faiss.write_index(direct, str(place) + ".faiss")
    number = iter(range(10**9))

    def ours_one() -> Any:
        return engine.search(queries[[next(number) % 1000]], K)

    def theirs_one() -> Any:
        return direct.search(queries[[next(number) % 1000]], K)

    one = in_turns(ours_one, theirs_one, 200 if approximate else 20)
    many = in_turns(lambda: engine.search(queries, K), lambda: direct.search(queries, K), 2 if quick else 3)
    truth = faiss.knn(queries[:200], vectors, K, metric=faiss.METRIC_INNER_PRODUCT)[1]
    ids = engine.search(queries[:200], K).ids
    theirs = direct.search(queries[:200], K)[1]
    return {
        "set": name,
        "kind": kind,
        "build s": [our_build, their_build],
        "one query ms": [1000 * one[0], 1000 * one[1]],
        "1,000 queries s": list(many),
        "recall@10": [recall(ids, truth), recall(theirs, truth)],
        "memory MB": [memory("ours", place), memory("faiss", Path(str(place) + ".faiss"))],
        "efSearch": width,
    }


def memory(whose: str, place: Path) -> float:
    """Private megabytes of a fresh process that opened an index and searched it, above one that did not."""
    code = """
import sys, numpy as np, faiss
from pathlib import Path
from forerank.search import open_engine
whose, place = sys.argv[1:]
def private():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) / 1000
before = private()
if whose == "ours":
    engine = open_engine(place); dim = engine.meta()["dim"]; search = lambda q: engine.search(q, 10)
else:
    index = faiss.read_index(place); dim = index.d; search = lambda q: index.search(q, 10)
for i in range(20):
    search(np.random.default_rng(i).normal(size=(1, dim)).astype(np.float32))
print(private() - before)
"""
    command = [sys.executable, "-c", code, whose, str(place)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# -- the page ------------------------------------------------------------------------------------------------


async def _client(port: int, paths: list[str], times: list[float]) -> None:
    """One visitor on a connection that stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for path in paths:
        started = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        await reader.readexactly(length)
        times.append(1000 * (time.perf_counter() - started))
    writer.close()


def page_under_load(
    folder: Path, vectors: np.ndarray, clients: int = 50, requests: int = 20
) -> list[list[Any]]:
    """p50 and p99 of each kind of request with that many visitors at once."""
    from PIL import Image

    images = folder / "images"
    images.mkdir()
    for i in range(200):
        pixels = np.random.default_rng(i).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((800, 600)).save(images / f"{i}.jpg", quality=90)
    place = folder / "served"
    rows = [
        Row(f"{i % 200}.jpg", f"{i // 8}", f"{i:032x}", 1, 1, columns={"category": str(i % 12)})
        for i in range(len(vectors))
    ]
    engine = open_engine(place)
    with engine.update(vectors.shape[1], "benchmark", False) as update:
        update.put(rows, vectors)
        update.complete(
            rows,
            {
                "model": {"fingerprint": "benchmark"},
                "root": str(images),
                "labelled": True,
                "columns": ["category"],
            },
            None,
        )
    code = (
        "import sys; from forerank.search.index import Index; from forerank.web.serving import serve_index\n"
        "serve_index(Index.open(sys.argv[1]), port=0)"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(place)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        port = int(line.split("http://127.0.0.1:")[1].split()[0])
        rng = np.random.default_rng(0)
        kinds = {
            "page": lambda: "/",
            "gallery, 60 images": lambda: f"/api/gallery?limit=60&after={rng.integers(len(vectors))}",
            "search with an image of the index": lambda: (
                f"/api/rows/{rng.integers(len(vectors))}/search?k=24"
            ),
            "the same with a filter": lambda: (
                f"/api/rows/{rng.integers(len(vectors))}/search?k=24&where=category%3D{rng.integers(12)}"
            ),
            "more like two, less like one": lambda: "/api/search?k=24&like={}&like={}&unlike={}".format(
                *rng.integers(len(vectors), size=3)
            ),
            "the same with a filter, near-duplicates folded": lambda: (
                "/api/search?k=24&like={}&like={}&unlike={}&where=category%3D{}&fold=true".format(
                    *rng.integers(len(vectors), size=3), rng.integers(12)
                )
            ),
            "thumbnail": lambda: f"/images/{rng.integers(2000)}",
        }
        lines = []
        for name, path in kinds.items():
            times: list[float] = []

            async def everybody(path: Callable[[], str] = path, times: list[float] = times) -> None:
                await asyncio.gather(
                    *(_client(port, [path() for _ in range(requests)], times) for _ in range(clients))
                )

            started = time.perf_counter()
            asyncio.run(everybody())
            rate = len(times) / (time.perf_counter() - started)
            p50, p99 = np.percentile(times, [50, 99])
            lines.append([name, f"{p50:.0f}", f"{p99:.0f}", f"{rate:.0f}"])
        return lines
    finally:
        server.terminate()
        server.wait()


def shown(line: dict[str, Any]) -> list[list[str]]:
    """Rows of the table for one comparison."""
    rows = []
    for what in ("build s", "one query ms", "1,000 queries s", "recall@10", "memory MB"):
        ours, theirs = line[what]
        ratio = f"{ours / theirs:.2f}" if theirs else "-"
        digits = 4 if what == "recall@10" else 3 if ours < 10 else 1
        rows.append([line["set"], line["kind"], what, f"{ours:.{digits}f}", f"{theirs:.{digits}f}", ratio])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sets")
    parser.add_argument("--only", help="measure only sets whose size begins with this, or: page")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead: sets of so many vectors x 128")
    parser.add_argument("--kind", choices=("exact", "HNSW"), help="measure only this kind of index")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    sets = [(60_502, 512), (1_000_000, 128)] if not options.quick else [(20_000, 128)]
    sets = [(size, 128) for size in options.sizes] if options.sizes else sets
    results, page = [], []
    with tempfile.TemporaryDirectory(prefix="forerank-search-") as temporary:
        for count, dim in sets:
            if options.only and not str(count).startswith(options.only):
                continue
            vectors = make_vectors(count, dim)
            for kind in [options.kind] if options.kind else ["exact", "HNSW"]:
                results.append(compare(f"{count:,} x {dim}", vectors, Path(temporary), kind, options.quick))
                print(
                    format_table(["set", "kind", "what", "ours", "faiss", "ratio"], shown(results[-1])),
                    flush=True,
                )
        if (not options.only and not options.sizes) or options.only == "page":
            count, dim = sets[0]
            page = page_under_load(Path(temporary), make_vectors(count, dim))
            head = [f"page of {count:,} x {dim}, 50 clients", "p50 ms", "p99 ms", "requests/s"]
            print(format_table(head, page))
    if options.json:
        about = {"cores": os.cpu_count(), "results": results, "page": page}
        options.json.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
