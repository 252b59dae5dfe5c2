"""Evaluation against its limit and its peers, in one run: python benchmarks/evaluate.py [--sizes 10000 60502]

Prints, for each size and for an easy and a hard set of vectors:
- product: the bare float32 product of all pairs, the faster of numpy and torch, into a reused buffer;
- float32, default: all our ranking metrics together with the float32 screen, and as it comes;
- faiss: IndexFlatIP, k = 1,001 (what recall@1000 needs);
- calculator: pytorch-metric-learning's AccuracyCalculator for precision@1, R-precision and MAP@R with
  k = "max_bin_count", the least it can do (no mAP, no reciprocal rank, no recall@1000);
- calculator, whole: the same with its default k, the whole gallery, which also gives mAP and reciprocal rank
  as we do. It holds N x N indices and distances: left out where they need more than half of the memory.
The counting code is compiled before the clock starts; that takes seconds, once on a machine.
Times on a shared machine mean little; ratios within one line are what counts. On a busy machine count
processor time with one thread: OMP_NUM_THREADS=1 python benchmarks/evaluate.py --processor-time
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import numpy as np
import torch

from forerank.console import format_table
from forerank.metrics import Evaluation, evaluate

CLOCK = time.perf_counter


def products(count: int, dim: int, *, hard: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors shaped like Stanford Online Products: classes of 2 to 12 images, twelve categories.

    The easy set resembles a trained model (recall@1 about 0.8), the hard one an untrained: positives lie
    inside the bulk of the negatives.
    """
    generator = np.random.default_rng(seed)
    size = generator.choice(np.arange(2, 13), p=_class_sizes(), size=count)
    labels = np.repeat(np.arange(count), size)[:count]
    # Trained embeddings fill far fewer directions than they have: decaying variances.
    scale = (1 + np.arange(dim)) ** -0.25
    category = generator.normal(size=(12, dim)) * scale
    centre = 0.5 * category[generator.integers(12, size=count)] + generator.normal(size=(count, dim)) * scale
    noise = 6.0 if hard else 2.0
    points = centre[labels] + noise * generator.normal(size=(count, dim)) * scale
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    shuffled = generator.permutation(count)
    return points[shuffled].astype(np.float32), labels[shuffled]


def _class_sizes() -> np.ndarray:
    weight = np.exp(-0.25 * np.arange(11.0))
    return weight / weight.sum()


def bare_product(vectors: np.ndarray) -> float:
    """Seconds of the whole product, block by block into one buffer; the faster library."""
    tensor, best = torch.from_numpy(vectors), float("inf")
    buffer = np.empty((2048, len(vectors)), dtype=np.float32)
    for library in ("numpy", "torch"):
        start = CLOCK()
        for i in range(0, len(vectors), 2048):
            rows = min(2048, len(vectors) - i)
            if library == "numpy":
                np.matmul(vectors[i : i + rows], vectors.T, out=buffer[:rows])
            else:
                torch.mm(tensor[i : i + rows], tensor.T, out=torch.from_numpy(buffer[:rows]))
        best = min(best, CLOCK() - start)
    return best


def faiss_search(vectors: np.ndarray) -> float:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)

    begin = CLOCK()
    for start in range(0, len(vectors), 8192):
        index.search(vectors[start : start + 8192], min(1001, len(vectors)))
    return CLOCK() - begin


def calculator(vectors: np.ndarray, labels: np.ndarray, ours: Evaluation, *, whole: bool) -> float:
    """Seconds; stops if its figures, where the definitions agree, are not ours."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {
        "precision_at_1": "recall@1",
        "r_precision": "r_precision",
        "mean_average_precision_at_r": "map@r",
    }
    if whole:
        names |= {"mean_average_precision": "map", "mean_reciprocal_rank": "mrr"}
    judge = AccuracyCalculator(
        include=tuple(names), k=None if whole else "max_bin_count", device=torch.device("cpu")
    )
    start = CLOCK()
    accuracy = judge.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    spent = CLOCK() - start
    for theirs, mine in names.items():
        if abs(accuracy[theirs] - ours[mine]) > 1e-4:
            raise SystemExit(f"{theirs} is {accuracy[theirs]} there and {ours[mine]} here")
    return spent


def fits(count: int) -> bool:
    """Whether the calculator's indices and distances of the whole gallery take at most half of the memory."""
    return count * count * (8 + 4) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def ours(vectors: np.ndarray, labels: np.ndarray, precision: str) -> tuple[float, Evaluation]:
    """Seconds of all ranking metrics together, and their values."""
    start = CLOCK()
    result = evaluate(vectors, labels, nmi=False, distances=False, bootstrap=0, precision=precision)
    return CLOCK() - start, result


def parts(vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Seconds of processor time that the parts of counting take, summed over threads."""
    from forerank.ranking import hard_compiled, hard_kernel, hard_screen

    places = {
        "products": (hard_screen, "product"),
        "16 bits": (hard_kernel, "narrow"),
        "comparisons": (hard_compiled._Side, "count"),
        "dot products": (hard_kernel, "decide_open_pairs"),
        "exact": (hard_compiled._Side, "add_counts"),
    }
    spent = dict.fromkeys(places, 0.0)

    def timed(part: str, work: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            start = time.thread_time()
            result = work(*arguments)
            spent[part] += time.thread_time() - start
            return result

        return run

    with ExitStack() as stack:
        for part, (owner, name) in places.items():
            stack.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        start = time.process_time()
        ours(vectors, labels, "float32")
        whole = time.process_time() - start
    spent["exact"] -= spent["dot products"]  # which lie inside
    return spent | {"all the rest": whole - sum(spent.values())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 20_000, 40_000, 60_502])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--sets", nargs="+", default=["easy", "hard"], choices=["easy", "hard"])
    parser.add_argument("--skip", nargs="*", default=[], choices=["faiss", "calculator", "whole"])
    parser.add_argument("--parts", action="store_true", help="also what counting spends its time on")
    parser.add_argument("--processor-time", action="store_true", help="instead of time on the clock")
    arguments = parser.parse_args()
    if arguments.processor_time:
        global CLOCK
        CLOCK = time.process_time
    rows = []
    for precision in ("float32", "bfloat16"):
        ours(*products(6000, 64, hard=True), precision)  # compiles
    for count in arguments.sizes:
        for kind in arguments.sets:
            vectors, labels = products(count, arguments.dim, hard=kind == "hard")
            product = bare_product(vectors)
            t32, exact = ours(vectors, labels, "float32")
            t, default = ours(vectors, labels, "auto")
            if dict(exact) != dict(default) or exact.counts != default.counts:
                raise SystemExit(f"the two screens disagree: {dict(exact)} {dict(default)}")
            peers = {"faiss": "", "calculator": "", "whole": "" if fits(count) else "does not fit"}
            if "faiss" not in arguments.skip:
                peers["faiss"] = f"{faiss_search(vectors) / t:.2f}"
            if "calculator" not in arguments.skip:
                peers["calculator"] = f"{calculator(vectors, labels, default, whole=False) / t:.2f}"
            if "whole" not in arguments.skip and fits(count):
                peers["whole"] = f"{calculator(vectors, labels, default, whole=True) / t:.1f}"
            shown = [f"{x:.1f}" for x in (product, t32, t)]
            ratios = [f"{x:.2f}" for x in (t32 / product, t / product, t / t32)]
            quality = [f"{default[name]:.3f}" for name in ("recall@1", "map")]
            rows.append([f"{count:,} {kind}", *quality, *shown, *ratios, *peers.values()])
            print(f"{count:,} {kind} measured", file=sys.stderr, flush=True)
            if arguments.parts:
                shares = {part: f"{s / product:.3f}" for part, s in parts(vectors, labels).items()}
                print(f"{count:,} {kind}, parts of the product:", shares)
    header = ["set", "recall@1", "map", "product s", "float32 s", "default s", "float32/product",
              "default/product", "default/float32", "faiss/default", "calculator/default",
              "calculator, whole/default"]  # fmt: skip
    print(format_table(header, rows))


if __name__ == "__main__":
    main()
