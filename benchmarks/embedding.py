"""From image files to vectors against the limit: decoding alone plus the network alone, each on all cores.

    python benchmarks/embedding.py
    python benchmarks/embedding.py --cores 1
    python benchmarks/embedding.py --backbone efficientnet-lite0+efficientnet-lite2 --images 64

Everything takes turns in one process. "Before" is the same pipeline with torch in fp32, as `forerank embed`
worked without an inference engine. The ratio is the median over the rounds, once in time and once in
processor time; on a machine with other work the second is the one to believe.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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

    with tempfile.TemporaryDirectory() as folder:
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

        ways: dict[str, Callable[[], object]] = {
            "decoding alone": decode,
            f"network alone, {engine.network}": network(engine),
            "network alone, torch fp32": network(plain),
            "files to vectors": lambda: engine.embed(files, progress=False),
            "files to vectors before (torch)": lambda: plain.embed(files, progress=False),
        }
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(options.rounds + 1):
            for name, way in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                way()
                if turn:  # the first turn compiles and warms up
                    seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    print(f"{options.backbone} at {p.shape}, {options.images} images of 640 x 480, {cores} cores")
    rows = [
        [name, *[f"{len(files) / statistics.median(t[kind] for t in times):,.0f}" for kind in (0, 1)]]
        for name, times in seconds.items()
    ]
    print(format_table(["images/s", "time", "processor time"], rows))
    decoding, fast, slow, ours, before = seconds.values()
    for kind, unit in enumerate(("time", "processor time")):
        limits = [d[kind] + min(f[kind], s[kind]) for d, f, s in zip(decoding, fast, slow, strict=True)]
        over = statistics.median(o[kind] / limit for o, limit in zip(ours, limits, strict=True))
        gain = statistics.median(b[kind] / o[kind] for b, o in zip(before, ours, strict=True))
        print(f"{unit}: {over:.2f} of the limit (goal: at most 1.15), {gain:.2f} times as fast as before")


if __name__ == "__main__":
    main()
