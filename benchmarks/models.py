"""How many images per second a backbone embeds and trains on, by allocator, memory layout and precision.

Each line is a process of its own, because the allocator's setting belongs to the process.

    python benchmarks/models.py                       # EfficientNet-lite0 at 224 pixels
    python benchmarks/models.py --backbone glyphnet --size 32 --batch 256
"""

import argparse
import json
import os
import subprocess
import sys
import time

from forerank.machine import cpu_has_bf16

# Line of the table -> (allocator, channels last, bfloat16)
SETTINGS = {
    "plain torch": ("plain", False, False),
    "environment variables": ("environment", False, False),
    "keep_freed_memory()": ("mallopt", False, False),
    "  and channels last": ("mallopt", True, False),
    "  and bfloat16": ("mallopt", True, True),
}
# The same setting from outside, read by glibc when a process starts.
VARIABLES = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}


def measure(backbone: str, size: int, batch: int, seconds: float, setting: str) -> dict[str, float]:
    """Images per second in evaluation and in training (forward and backward), the best of several rounds."""
    import torch

    from forerank.models import create_model, keep_freed_memory

    allocator, channels_last, bfloat16 = SETTINGS[setting]
    if allocator == "mallopt":
        keep_freed_memory()
    model = create_model(backbone)
    images = torch.randn(batch, model.preprocessing.channels, size, size)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)

    def evaluation() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            model.eval()(images)

    def training() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            vectors = model.train()(images)
        vectors[:, 0].sum().backward()

    rates = {}
    for work in (evaluation, training):
        work()
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - start)
        rates[work.__name__] = batch / best
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each of the two, for each line")
    parser.add_argument("--one", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(
            json.dumps(measure(options.backbone, options.size, options.batch, options.seconds, options.one))
        )
        return
    print(
        f"{options.backbone}, {options.size} pixels, batch {options.batch}, {os.cpu_count()} cores: images/s"
    )
    print(f"{'':24}{'evaluation':>12}{'':>8}{'training':>12}")
    first: dict[str, float] = {}
    for setting, (allocator, _, bfloat16) in SETTINGS.items():
        if bfloat16 and not cpu_has_bf16():
            print(f"{setting:24}left out: this processor has no instructions for it")
            continue
        environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        if allocator == "environment":
            environment |= VARIABLES
        command = [sys.executable, __file__, *sys.argv[1:], "--one", setting]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        rates = json.loads(done.stdout)
        first = first or rates
        cells = (f"{rate:12.1f} {f'({rate / first[key]:.1f}x)':>7}" for key, rate in rates.items())
        print(f"{setting:24}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
