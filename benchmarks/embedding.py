"""From image files to vectors against the limit: decoding alone plus the network alone, each on all cores.

    python benchmarks/embedding.py
    python benchmarks/embedding.py --cores 1
    python benchmarks/embedding.py --backbone efficientnet-lite0+efficientnet-lite2 --images 64
    git worktree add ../first 074c8f3; python benchmarks/embedding.py --before ../first --backbone \\
        efficientnet-lite0@224px

Everything takes turns in one run. "With torch" is the same pipeline with torch in fp32. `--before` lets an
older checkout of Forerank embed the same files with the same packages, in a process of its own; the first
version worked at 224 pixels. Ratios are medians over the rounds, once in time and once in processor time; on
a machine with other work the second is the one to believe.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO, cast

import numpy as np
import torch
from PIL import Image

from forerank.console import format_table
from forerank.data import read_image
from forerank.data.preprocessing import evaluation_array
from forerank.data.threads import map_in_threads
from forerank.models import Retriever, create_model, keep_freed_memory


def make_photographs(folder: Path, number: int) -> list[Path]:
    """Smooth pictures of 640 x 480 with some texture, as JPEG: they decode about as fast as photographs."""
    rng = np.random.default_rng(0)
    files = []
    for i in range(number):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((640, 480), Image.Resampling.BICUBIC))
        pixels = (smooth + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{i}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    return files


# Embeds the files again for every line that comes in, and answers with the time and the processor time.
OLDER = """
import sys, time
from pathlib import Path
from forerank.models import Retriever, create_model, keep_freed_memory
backbone, size, *files = sys.argv[1:]
keep_freed_memory()
model = create_model(backbone, embedding_dim=None)
here = model.preprocessing.size
assert here == int(size), f"before it was {here} pixels: give --backbone NAME@{here}px"
retriever, files = Retriever(model, device="cpu"), [Path(file) for file in files]
for _ in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    retriever.embed(files, progress=False)
    print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
"""


@contextmanager
def older_version(
    checkout: Path, backbone: str, size: int, files: list[Path]
) -> Iterator[Callable[[], tuple[float, float]]]:
    """A function that lets another checkout embed the files once, and tells its time and processor time."""
    command = [sys.executable, "-c", OLDER, backbone.partition("@")[0], str(size), *map(str, files)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as worker:
        ask, answers = cast(TextIO, worker.stdin), cast(TextIO, worker.stdout)

        def once() -> tuple[float, float]:
            ask.write("\n")
            ask.flush()
            wall, cpu = map(float, answers.readline().split())
            return wall, cpu

        yield once


def timed(way: Callable[[], object]) -> Callable[[], tuple[float, float]]:
    """The time and the processor time of this process."""

    def once() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        way()
        return time.perf_counter() - wall, time.process_time() - cpu

    return once


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="fp32", help="of the inference engine: fp32 or bf16")
    parser.add_argument("--cores", type=int, help="use only so many")
    parser.add_argument("--before", type=Path, help="folder of an older checkout, to compare with")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        torch.set_num_threads(options.cores)
    keep_freed_memory()
    model = create_model(options.backbone, embedding_dim=None)
    engine = Retriever(model, device="cpu", precision=options.precision)
    plain = Retriever(model, device="cpu", engine="torch")
    p, cores, batch = model.preprocessing, len(os.sched_getaffinity(0)), engine.batch_size

    def view(file: Path) -> np.ndarray:
        return evaluation_array(read_image(file, channels=p.channels, shrink_to=p.resize), p)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = make_photographs(Path(folder), options.images)
        views = np.stack([view(file) for file in files])

        def decode() -> None:
            for _ in map_in_threads(view, files, workers=cores, ahead=2 * batch):
                pass

        def network(retriever: Retriever) -> Callable[[], None]:
            def run() -> None:
                for start in range(0, len(views), batch):
                    retriever.network(views[start : start + batch])

            return run

        ways = {
            "decoding alone": timed(decode),
            f"network alone, {engine.network}": timed(network(engine)),
            "network alone, torch fp32": timed(network(plain)),
            "files to vectors": timed(lambda: engine.embed(files, progress=False)),
            "files to vectors with torch": timed(lambda: plain.embed(files, progress=False)),
        }
        if options.before:
            worker = older_version(options.before, options.backbone, p.shape[-1], files)
            ways["files to vectors before"] = stack.enter_context(worker)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(options.rounds + 1):
            for name, way in ways.items():
                took = way()
                if turn:  # the first turn compiles and warms up
                    seconds[name].append(took)
    print(f"{options.backbone} at {p.shape}, {options.images} images of 640 x 480, {cores} cores")
    rows = [
        [name, *[f"{len(files) / statistics.median(t[kind] for t in times):,.0f}" for kind in (0, 1)]]
        for name, times in seconds.items()
    ]
    print(format_table(["images/s", "time", "processor time"], rows))
    decoding, fast, slow, ours, with_torch, *before = seconds.values()
    for kind, unit in enumerate(("time", "processor time")):
        limits = [d[kind] + min(f[kind], s[kind]) for d, f, s in zip(decoding, fast, slow, strict=True)]
        over = statistics.median(o[kind] / limit for o, limit in zip(ours, limits, strict=True))

        def gain(others: list[tuple[float, float]], kind: int = kind) -> float:
            return statistics.median(b[kind] / o[kind] for b, o in zip(others, ours, strict=True))

        compared = [f"{gain(with_torch):.2f} times as fast as torch"]
        compared += [f"{gain(older):.2f} times as fast as before" for older in before]
        print(f"{unit}: {over:.2f} of the limit (goal: at most 1.15), {', '.join(compared)}")


if __name__ == "__main__":
    main()
