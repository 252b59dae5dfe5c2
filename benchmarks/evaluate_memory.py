"""Memory of an evaluation above the embeddings: python benchmarks/evaluate_memory.py

First 60,502 x 512 in memory, everything on (clusters too), then 1,000,000 x 128 from a memory-mapped file
with 1,000 sampled queries. Prints the growth of anonymous memory (Linux); pages of a mapped file are not
counted, the system drops them as it likes.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from forerank.metrics import Evaluation, evaluate


def anonymous_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def measured(title: str, work: Callable[[], Evaluation]) -> None:
    before, peak, done, start = anonymous_mib(), 0.0, threading.Event(), time.perf_counter()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = work()
    done.set()
    watcher.join()
    print(f"{title}: {peak - before:.0f} MiB above the embeddings, {time.perf_counter() - start:.0f} s")
    print(result, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60_502, help="0 leaves the first part out")
    parser.add_argument("--large", type=int, default=1_000_000)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    evaluate(np.eye(8, 4) + 0.1, [0, 0, 1, 1, 2, 2, 3, 3])  # load the libraries first
    if arguments.count:
        labels = np.arange(arguments.count) // 5
        vectors = generator.standard_normal((labels[-1] + 1, 512), dtype=np.float32)[labels]
        vectors += 2 * generator.standard_normal(vectors.shape, dtype=np.float32)
        measured(f"{arguments.count:,} x 512", lambda: evaluate(vectors, labels))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "embeddings.npy"
        count = arguments.large
        mapped = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(count, 128))
        for start in range(0, count, 50_000):
            rows = generator.standard_normal((min(50_000, count - start), 128), dtype=np.float32)
            # Neighbouring rows share a class of five: a common part and a part of their own.
            common = np.repeat(rows[: -(-len(rows) // 5)], 5, axis=0)[: len(rows)]
            mapped[start : start + len(rows)] = common + rows
        mapped.flush()
        del mapped
        labels = np.arange(count) // 5
        queries = np.sort(generator.choice(count, 1000, replace=False))
        vectors = np.load(file, mmap_mode="r")
        measured(
            f"{count:,} x 128 from a file, 1,000 queries",
            lambda: evaluate(vectors, labels, queries=queries, nmi=False),
        )


if __name__ == "__main__":
    main()
