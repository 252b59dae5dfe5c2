"""Memory of `forerank index` on a stream: 1,000,000 made-up pictures whose vectors are already computed.

    python benchmarks/streamed_index.py                      into a local folder
    python benchmarks/streamed_index.py --rows 100000
    python benchmarks/streamed_index.py --output milvus:http://127.0.0.1:19530#stream

No picture is decoded: what is measured is everything around the network. Memory is the peak of the process.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerank.data.sources import Picture
from forerank.search import open_engine
from forerank.search.build_job import Job
from forerank.search.build_report import BuildReport
from forerank.search.streamed import PictureStream, index_stream
from process_memory import peak_bytes


class Computed:
    """In place of a model: the vector of a picture is made from its bytes."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._table = np.random.default_rng(0).standard_normal((65536, dim), np.float32)

    def embed(self, images: Sequence[bytes], **_: Any) -> np.ndarray:
        """Unit vectors (N, D), different ones for different numbers."""
        numbers = np.array([int(image) for image in images])
        vectors = self._table[numbers % 65536] + 0.5 * self._table[numbers // 65536]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def pictures(count: int) -> Iterator[Picture]:
    """Pictures whose bytes are their number."""
    for i in range(count):
        name = f"shard-{i // 10_000:06d}.tar/{i:09d}.jpg"
        yield Picture(name, lambda i=i: b"%d" % i, str(i // 8), {"category": str(i % 100)}, 9, 1)


def main() -> None:
    """Index, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--part", type=int, default=256)
    parser.add_argument("--output", help="an engine's address; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forerank-stream-") as folder:
        engine = open_engine(options.output or Path(folder) / "index")
        retriever: Any = Computed(options.dim)
        report = BuildReport(engine.address)
        meta = {"model": {"fingerprint": "benchmark"}, "scanned": time.time_ns()}
        exact = False if engine.abilities.approximate else None
        job = Job(engine, retriever, None, meta, None, exact, False, False, "refuse", options.part, report)
        before, started = peak_bytes() / 2**20, time.perf_counter()
        index_stream(job, PictureStream("", pictures(options.rows)))
        report.seconds = time.perf_counter() - started
        engine.close()
        print(report)
        print(f"peak of the process: {peak_bytes() / 2**20:.0f} MiB, {before:.0f} MiB before")


if __name__ == "__main__":
    main()
