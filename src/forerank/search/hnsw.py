"""An approximate index (HNSW, by faiss) for when exact search is slow; kept only if it pays."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerank.errors import require
from forerank.search.engine import Ids, Vectors
from forerank.search.exact import top_k

LINKS = 32  # neighbours of a node in the graph
BUILD_WIDTH = 80  # candidates looked at when a node is added
SEARCH_WIDTHS = (32, 64, 128, 256, 512, 1024)
SAMPLE = 30_000
# Under this many numbers exact search answers within some 20 ms on two cores: nothing to gain.
WORTH_TRYING = 60_000_000


@dataclass(frozen=True)
class IndexMeasure:
    """What the approximate index is worth on queries drawn from the index itself (each without itself)."""

    recall: float  # share of the true 10 nearest that are found
    width: int  # efSearch
    speedup: float  # exact time of a query / approximate time
    queries: int
    build_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For the meta data of an index."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"approximate index: recall@10 {self.recall:.4f} on {self.queries} queries, "
            f"{self.speedup:.1f} times faster than exact, built in {self.build_seconds:.0f} s"
        )


def build(vectors: Vectors) -> Any:
    """A graph over vectors (N, D) as a faiss index."""
    faiss = require("faiss")
    graph = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILD_WIDTH
    # In parts: the memory map is never copied whole.
    for start in range(0, len(vectors), 65_536):
        graph.add(np.ascontiguousarray(vectors[start : start + 65_536]))
    return graph


def measure_recall(
    graph: Any,
    vectors: Vectors,
    seconds: float,
    *,
    wanted: float = 0.99,
    widths: Sequence[int] = SEARCH_WIDTHS,
    seed: int = 0,
) -> IndexMeasure:
    """Choose the narrowest search that reaches the wanted recall@10, and time it against exact search."""
    generator = np.random.default_rng(seed)
    sample = np.sort(generator.choice(len(vectors), size=min(200, len(vectors)), replace=False))
    queries = np.ascontiguousarray(vectors[sample])
    truth = _without_self(top_k(queries, vectors, 11)[0], sample)
    started = time.perf_counter()
    for query in queries[:5]:
        top_k(query[None], vectors, 10)
    exact = (time.perf_counter() - started) / len(queries[:5])
    recall, width = 0.0, widths[0]
    for width in widths:
        nearest = _without_self(search(graph, queries, 11, width)[0], sample)
        recall = float(
            np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(nearest, truth, strict=True)])
        )
        if recall >= wanted:
            break
    started = time.perf_counter()
    for query in queries[:50]:
        search(graph, query[None], 10, width)
    approximate = (time.perf_counter() - started) / len(queries[:50])
    return IndexMeasure(recall, width, exact / max(approximate, 1e-9), len(queries), seconds)


def promising(vectors: Vectors, seed: int = 0) -> bool:
    """Whether a sample is easy to search approximately: more vectors only make it harder.

    A large graph takes many minutes to build; on vectors spread evenly over all
    directions that time is wasted.
    """
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(vectors), size=min(SAMPLE, len(vectors)), replace=False))
    sample = np.ascontiguousarray(vectors[rows])
    # A search wider than the third of these is hardly faster than an exact one.
    return measure_recall(build(sample), sample, 0.0, widths=SEARCH_WIDTHS[:3]).recall >= 0.98


def search(graph: Any, queries: Vectors, k: int, width: int) -> tuple[Ids, Vectors]:
    """Positions and inner products (Q, k), nearest first; asking for more than `width` widens the search."""
    # Set on the graph, not given as `params`: faiss.contrib.torch_utils, which pytorch-metric-learning
    # imports, replaces search by a version without them.
    graph.hnsw.efSearch = max(width, k)
    similarities, positions = graph.search(queries, k)
    return positions, similarities


def write(graph: Any, path: Path) -> None:
    """Store a graph."""
    require("faiss").write_index(graph, str(path))


def read(path: Path) -> Any:
    """Open a stored graph, memory-mapped where faiss can."""
    faiss = require("faiss")
    return faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))


def _without_self(positions: Ids, own: Ids) -> list[Ids]:
    """Rows of neighbours without the query itself, ten at most."""
    return [row[(row != mine) & (row >= 0)][:10] for row, mine in zip(positions, own, strict=True)]
