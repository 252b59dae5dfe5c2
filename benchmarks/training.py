"""What the loop costs above the bare model, what large batches need, and the loop by hand with a peer's loss.

Run: python benchmarks/training.py            (about three minutes on two cores)
     python benchmarks/training.py --quick    (a few seconds, to see that it runs)

One run measures, in turn and repeatedly so that a busy machine disturbs all alike:
  bare     the model's forward and backward alone, on images already in memory (the limit)
  ours     a whole step of `forerank train`, as in its loop: waiting for images and views, rates, loss,
           optimiser, the row in metrics.jsonl and the TensorBoard event
  peer     the same step written by hand with pytorch-metric-learning's loss
Time is told twice: by the clock, and as processor time of all threads, which other work on the machine
disturbs less. With --threads 1 no thread waits for another by spinning.
Peak memory is that of a process of its own for each batch size.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.console import format_table
from forerank.models import keep_freed_memory
from forerank.training.assemble import Assembly, assemble
from forerank.training.batches import Batches
from forerank.training.loop import take_step
from forerank.training.optimise import peak_rate, rate_factor, set_rates
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.processes import Processes
from forerank.training.recipe import load_recipe
from forerank.training.record import Record
from process_memory import forget_peak, peak_bytes, resident_bytes

CPU = torch.device("cpu")
Step = Callable[[], None]


def build(values: list[str]) -> Assembly:
    """A run on glyphs, ready to step."""
    recipe = load_recipe("glyphs", values)
    parts = open_parts(recipe)
    recipe = complete_recipe(recipe, parts["train"], 1, "cpu")
    return assemble(recipe, parts, Processes(0, 1, CPU))


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of processor time."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def peer_loss(name: str) -> nn.Module:
    from pytorch_metric_learning import losses

    loss: nn.Module = getattr(losses, name)()
    return loss


def step_times(batch: int, rounds: int, folder: Path) -> list[list[object]]:
    """Median seconds of a step at one batch size, ours and others' in turn; our records go into a folder."""
    a = build([f"batch_size={batch}", "images_per_class=4"])
    batches = Batches(a.recipe, a.plan, a.train.data, range(10_000), CPU)
    stream = iter(batches)
    record = Record(folder, a.recipe, a.processes, 0, 0)
    done = 0
    images = torch.cat([a.train.data[key][0][None] for key in a.plan.keys(0)])
    labels = torch.arange(batch // 4).repeat_interleave(4)
    images = images.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(a.model.parameters(), lr=1e-9)
    peers = {name: peer_loss(name) for name in ("MultiSimilarityLoss", "FastAPLoss")}
    if batch <= 256:
        peers["SmoothAPLoss"] = peer_loss("SmoothAPLoss")

    def bare() -> None:
        a.model.zero_grad(set_to_none=True)
        a.model(images).square().sum().backward()

    def ours() -> None:
        nonlocal done
        began, waited = time.perf_counter(), batches.waited
        factor = rate_factor(a.recipe, done, a.recipe.schedule.steps or 1, a.plan.steps_per_epoch)
        set_rates(a.optimiser, factor)
        loss = take_step(a, next(stream), done)
        done += 1
        record.add(
            done,
            epoch=(done - 1) // a.plan.steps_per_epoch,
            loss=loss,
            lr=factor * peak_rate(a.recipe),
            seconds=round(time.perf_counter() - began, 4),
            waited=round(batches.waited - waited, 4),
        )

    def peer(loss: nn.Module) -> Callable[[], None]:
        def work() -> None:
            views = torch.stack([a.train.data[key][0] for key in a.plan.keys(1)])
            optimiser.zero_grad(set_to_none=True)
            loss(a.model(views), labels).backward()
            optimiser.step()

        return work

    works = {"bare forward and backward": bare, "ours, whole step": ours}
    works |= {f"by hand with {name}": peer(loss) for name, loss in peers.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            times[name].append(seconds(work))
    record.close()
    medians = {
        name: [statistics.median(column) for column in zip(*all_times[1:], strict=True)]
        for name, all_times in times.items()
    }
    limit = medians["bare forward and backward"]
    waited = batches.waited / len(times["ours, whole step"])
    rows: list[list[object]] = []
    for name, (clock, used) in medians.items():
        share = f"{100 * waited / clock:.1f}%" if name.startswith("ours") else ""
        ratios = [f"{clock / limit[0]:.2f}", f"{1000 * used:.0f}", f"{used / limit[1]:.2f}"]
        rows.append([name, batch, f"{1000 * clock:.0f}", *ratios, share])
    return rows


def fine_tuning_rows(rounds: int, compiled: bool, batch: int = 16) -> list[list[object]]:
    """Forward and backward of all weights on views of 192 pixels, as in the recipe cub, in several ways."""
    from forerank.machine import bf16_fault
    from forerank.models import create_model
    from forerank.training.assemble import freeze_first_layers

    def way(frozen: float = 0.0, *, last: bool = True, bf16: bool = False, compiled: bool = False) -> Step:
        layout = torch.channels_last if last else torch.contiguous_format
        model = create_model("efficientnet-lite0", pooling="gem").train().to(memory_format=layout)  # type: ignore[call-overload]
        freeze_first_layers(model.backbone, frozen)
        images = torch.randn(batch, 3, 192, 192).contiguous(memory_format=layout)
        forward = torch.compile(model) if compiled else model

        def step() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                embeddings = forward(images)
            embeddings[:, 0].float().sum().backward()

        return step

    ways = {
        "channels last, all layers learn": way(),
        "layout of torch, all layers learn": way(last=False),
        "channels last, first 31% of the layers frozen": way(0.31),
    }
    if bf16_fault() is None:
        ways["channels last, all layers learn, bf16"] = way(bf16=True)
    if compiled:
        ways["channels last, all layers learn, compiled graph"] = way(compiled=True)
        ways["channels last, first 31% frozen, compiled graph"] = way(0.31, compiled=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for name, step in ways.items():
        began = time.perf_counter()
        step()  # compiles and warms up
        if "compiled" in name:
            print(f"{name}: the first step took {time.perf_counter() - began:.0f} s")
    for _ in range(rounds):
        for name, step in ways.items():
            times[name].append(seconds(step))
    rows: list[list[object]] = []
    first, *_ = fastest = [[min(column) for column in zip(*taken, strict=True)] for taken in times.values()]
    for name, (clock, used) in zip(ways, fastest, strict=True):
        ratios = [f"{first[0] / clock:.2f}", f"{first[1] / used:.2f}"]
        rows.append([name, f"{1000 * used / batch:.1f}", *ratios])
    return rows


def peak_memory(batch: int, micro: int | None) -> None:
    """In a process of its own: two steps, then how much memory they took above what was there before."""
    values = [f"batch_size={batch}", "images_per_class=4"] + ([f"micro_batch={micro}"] if micro else [])
    a = build(values)
    stream = iter(Batches(a.recipe, a.plan, a.train.data, range(10), CPU))
    forget_peak()  # of getting ready
    before = resident_bytes()
    took = min(seconds(lambda: take_step(a, next(stream), 0))[0] for _ in range(2))
    print(json.dumps({"mib": (peak_bytes() - before) / 2**20, "seconds": took}))


def memory_rows(cases: list[tuple[int, int | None]]) -> list[list[object]]:
    rows: list[list[object]] = []
    for batch, micro in cases:
        word = str(micro) if micro else "none"
        command = [sys.executable, __file__, "--memory-of", str(batch), word]
        peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append([batch, word, f"{peak['mib']:.0f}", f"{peak['seconds']:.2f}"])
    return rows


def gradient_difference() -> tuple[float, float]:
    """Largest entry of the direct gradient, and its largest difference from the cached one."""
    from forerank.losses import PNPLoss
    from forerank.training import backward_in_chunks

    a = build(["batch_size=256"])
    images, labels = torch.randn(256, 1, 32, 32), torch.arange(64).repeat_interleave(4)
    loss = PNPLoss("Ds", temperature=0.5)

    def gradient() -> Tensor:
        return torch.cat([p.grad.reshape(-1) for p in a.model.parameters() if p.grad is not None])

    a.model.zero_grad()
    loss(F.normalize(a.model(images)), labels).backward()
    direct = gradient()
    a.model.zero_grad()
    chunks = images.split(64)
    backward_in_chunks(lambda x: F.normalize(a.model(x)), chunks, chunks, lambda e: loss(e, labels), CPU)
    return float(direct.abs().max()), float((gradient() - direct).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of the training loop.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, help="of torch; all cores if not given")
    parser.add_argument("--compile", action="store_true", help="also fine-tune by torch.compile (minutes)")
    parser.add_argument("--memory-of", nargs=2, metavar=("BATCH", "MICRO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        batch, micro = arguments.memory_of
        peak_memory(int(batch), None if micro == "none" else int(micro))
        return
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    quick = arguments.quick
    rows = []
    for batch in (32,) if quick else (112, 384):
        with tempfile.TemporaryDirectory() as folder:
            rows += step_times(batch, 2 if quick else 9, Path(folder))
    heads = ["step", "batch", "ms", "over bare", "processor ms", "over bare", "of it waiting for data"]
    print("GlyphNet on glyphs, median of a step:\n")
    print(format_table(heads, rows))
    print("\nEfficientNet-lite0, all weights, views of 192 pixels:\n")
    rows = fine_tuning_rows(1 if quick else 7, arguments.compile)
    heads = ["forward and backward", "processor ms per image", "times as fast", "in processor time"]
    print(format_table(heads, rows))
    cases: list[tuple[int, int | None]] = [(64, None), (1024, None), (1024, 64), (4096, 64)]
    print("\nPeak memory of a step above the data, in a process of its own:\n")
    rows = memory_rows([(64, None), (128, 64)] if quick else cases)
    print(format_table(["batch", "micro_batch", "MiB", "seconds per step"], rows))
    size, difference = gradient_difference()
    print(f"\ncached and direct gradient differ by at most {difference:.1e} (largest entry {size:.1e})")


if __name__ == "__main__":
    main()
