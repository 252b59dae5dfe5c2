"""k-means against faiss's, in one run: python benchmarks/kmeans.py [--count 60502 --clusters 11316]

Both cluster the same unit vectors from random points, at most 20 iterations; quality is the within-cluster
sum of squares over all points and the NMI with the labels, shown for each seed.
"""

import argparse
import time

import faiss
import numpy as np

from evaluate import products
from forerank.console import format_table
from forerank.metrics import kmeans, normalized_mutual_information
from forerank.ranking.hard_rows import unit_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60_502)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--clusters", type=int, default=11_316)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    vectors, labels = products(arguments.count, arguments.dim, hard=False)
    rows, table, spent = unit_rows(vectors), [], np.zeros(2)
    for seed in range(arguments.seeds):
        start = time.perf_counter()
        assigned, squares = kmeans(rows, arguments.clusters, seed=seed)
        middle = time.perf_counter()
        judge = faiss.Kmeans(
            arguments.dim, arguments.clusters, niter=20, seed=seed,
            min_points_per_centroid=1, max_points_per_centroid=len(vectors),
        )  # fmt: skip
        judge.train(vectors)
        distance, theirs = judge.index.search(vectors, 1)
        end = time.perf_counter()
        spent += (middle - start, end - middle)
        for name, seconds, clusters, total in (
            ("forerank", middle - start, assigned, squares),
            ("faiss", end - middle, theirs[:, 0], float(distance.sum())),
        ):
            nmi = normalized_mutual_information(labels, clusters.astype(np.int64))
            table.append([f"{name}, seed {seed}", f"{seconds:.1f}", f"{total:.1f}", f"{nmi:.4f}"])
    print(format_table(["", "seconds", "sum of squares", "NMI"], table))
    print(f"faiss takes {spent[1] / spent[0]:.2f} times as long")


if __name__ == "__main__":
    main()
