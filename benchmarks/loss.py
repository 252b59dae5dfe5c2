"""Time and memory of the losses against a peer and against the limit, in one run.

    python benchmarks/loss.py [--sizes 112 384 1024] [--out table.md]

Every figure is of forward and backward on (B, 512) float32 embeddings, 4 images a class. Each is measured in
a process of its own; memory is the rise of its peak resident size over the inputs. The limit is the
similarity product alone, X @ X.T and its backward through autograd: no ranking loss can do with less
arithmetic. The peer is pytorch-metric-learning, which holds several (B, B, B) tensors and is run only where
they fit. "Random" embeddings leave most sigmoids unsaturated; "clustered" ones stand for a trained model.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from process_memory import forget_peak, peak_bytes

DIMENSION, IMAGES_PER_CLASS = 512, 4
SIZES = (112, 384, 640, 1024, 4096, 16384)
PEER_FITS = 640  # 9 tensors of B^3 floats: 2 GiB at 384, 9 GiB at 640, 36 GiB at 1,024
OURS = {"Forerank PNP-Dq": "ours-pnp", "Forerank Smooth-AP": "ours-ap"}
PEERS = {"pytorch-metric-learning PNPLoss": "peer-pnp", "pytorch-metric-learning SmoothAPLoss": "peer-ap"}
LIMIT = {"limit: similarity product alone": "limit"}


def measure(what: str, size: int, data: str, threads: int) -> dict[str, float]:
    """Bytes above the inputs, and seconds: the least of several runs, since other work only adds."""
    import torch

    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) // IMAGES_PER_CLASS
    embeddings = torch.randn(size, DIMENSION, generator=generator)
    if data == "clustered":  # cosine of 0.8 within a class, 0 between
        centres = torch.randn(size // IMAGES_PER_CLASS, DIMENSION, generator=generator)
        embeddings = centres[labels] + 0.5 * embeddings
    embeddings.requires_grad_()
    step = build(what, embeddings, labels)

    # Libraries allocate on first use; that is not the loss's memory.
    warm = embeddings.detach()[: min(size, 64)].clone().requires_grad_()
    build(what, warm, labels[: len(warm)])()
    forget_peak()
    before = peak_bytes()
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    memory = peak_bytes() - before
    times = [] if first > 20 else [first]
    repeats = 1 if first > 20 else max(1, min(300, int(8 / first)))
    for _ in range(repeats):
        embeddings.grad = None
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return {"seconds": min(times), "bytes": memory}


def build(what: str, embeddings: Any, labels: Any) -> Callable[[], None]:
    """A forward and backward pass of what is to be measured."""
    if what == "limit":
        import torch

        ones = torch.ones(len(labels), len(labels))
        return lambda: (embeddings @ embeddings.t()).backward(ones)
    if what.startswith("peer"):
        from pytorch_metric_learning import losses

        made = losses.PNPLoss(alpha=4, variant="Dq") if what == "peer-pnp" else losses.SmoothAPLoss()
    else:
        from forerank import PNPLoss, SmoothAPLoss

        made = PNPLoss("Dq", alpha=4) if what == "ours-pnp" else SmoothAPLoss()
    return lambda: made(embeddings, labels).backward()


def in_own_process(what: str, size: int, data: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", what, str(size), data, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def table(sizes: list[int], threads: int) -> str:
    """The measurements as Markdown, one row each, with ratios to the peer and to the limit."""
    columns = (
        "B",
        "embeddings",
        "loss",
        "time",
        "memory",
        "times faster",
        "memory of peer's",
        "time / limit",
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for size in sizes:
        for data in ("random", "clustered"):
            wanted = {**LIMIT, **OURS, **(PEERS if size <= PEER_FITS else {})}
            measured = {}
            for name, what in wanted.items():
                measured[name] = in_own_process(what, size, data, threads)
                print(f"B = {size}, {data}, {name}: {measured[name]}", file=sys.stderr, flush=True)
            limit = next(iter(measured.values()))["seconds"]
            for name, result in measured.items():
                peer = measured.get(dict(zip(OURS, PEERS, strict=True)).get(name, ""))
                faster = f"{peer['seconds'] / result['seconds']:,.0f}" if peer else ""
                share = f"1/{peer['bytes'] / max(result['bytes'], 1):,.0f}" if peer else ""
                row = [f"{size:,}", data, name, f"{1e3 * result['seconds']:,.1f} ms"]
                row += [f"{result['bytes'] / 2**20:,.1f} MiB", faster, share]
                lines.append("| " + " | ".join([*row, f"{result['seconds'] / limit:,.2f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, size, data = options.measure
        print(json.dumps(measure(what, int(size), data, options.threads)))
        return
    text = table(options.sizes, options.threads)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
