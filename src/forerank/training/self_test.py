"""The self-test of `forerank doctor --gpu`: does an accelerator compute what the CPU computes, and how fast.

It runs on whatever is there, on the CPU too, and is meant to take two minutes at most: a check that would
begin too late is left out and says so. Its report is meant to be pasted into an issue.
"""

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from forerank.console import format_table
from forerank.losses import PNPLoss, create_loss
from forerank.losses.registry import loss_names
from forerank.machine import bf16_fault, choose_device, device_faults, versions
from forerank.metrics import evaluate
from forerank.training.loop import train
from forerank.training.processes import joined, shard
from forerank.training.recipe import load_recipe
from forerank.training.record import read_history

SECONDS = 90.0  # no check begins later, so that all are done within two minutes
OK, FAILED, LEFT_OUT = "ok", "failed", "left out"
# A similarity is rounded to about 1e-7 and divided by a temperature of 0.01.
LOSS_TOLERANCE = 1e-3
# How far the loss of a first step may lie from that of the CPU in float32: half precision rounds to 1e-3.
STEP_TOLERANCE = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}
LARGE_BATCH, WIDTH = 4096, 512
MOST_BYTES = 1 << 30  # of the loss of a large batch: its chunks are a quarter of that each


@dataclass(frozen=True)
class CheckResult:
    """One line of the report."""

    name: str
    result: str  # OK, FAILED or LEFT_OUT
    detail: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """All that `forerank doctor --gpu` found out."""

    device: str
    about: dict[str, str]
    checks: list[CheckResult]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(check.result == FAILED for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        checks = [asdict(check) for check in self.checks]
        return {"device": self.device, "about": self.about, "passed": self.passed, "checks": checks}

    def __str__(self) -> str:
        width = max(len(name) for name in self.about)
        lines = [f"{name.ljust(width)}  {value}" for name, value in self.about.items()]
        rows = [[c.name, c.result, f"{c.seconds:.1f} s", c.detail] for c in self.checks]
        failed = [check.name for check in self.checks if check.result == FAILED]
        verdict = f"Failed: {', '.join(failed)}." if failed else "No check failed."
        return "\n".join([*lines, "", format_table(["check", "result", "time", "detail"], rows), "", verdict])


class LeftOutError(Exception):
    """A check does not apply here; the message says why."""


def self_test(device: str = "auto", seconds: float | None = None) -> Report:
    """Check the accelerator of this machine, or the CPU if there is none.

    Args:
        device: as `choose_device` takes it.
        seconds: no check begins later than that; default `SECONDS`.
    """
    place = torch.device(choose_device(device))
    seconds = SECONDS if seconds is None else seconds
    end = time.monotonic() + seconds
    checks: list[CheckResult] = []
    for name, check in _checks(place, end):
        began = time.monotonic()
        try:
            if began > end:
                raise LeftOutError(f"no check begins after {seconds:.0f} s")
            result, detail = OK, check()
        except LeftOutError as reason:
            result, detail = LEFT_OUT, str(reason)
        except Exception as error:  # whatever a device raises is what the report is for
            result, detail = FAILED, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        checks.append(CheckResult(name, result, detail, round(time.monotonic() - began, 2)))
    return Report(str(place), _about(place), checks)


def _checks(place: torch.device, end: float) -> Iterator[tuple[str, Callable[[], str]]]:
    """The checks by name. Memory comes first, before anything else has raised the peak of the process."""
    yield f"memory at batch {LARGE_BATCH:,}", lambda: _memory(place)
    yield "losses", lambda: _losses(place)
    yield "evaluation", lambda: _evaluation(place)
    for precision in STEP_TOLERANCE:
        yield f"training step, {precision}", lambda precision=precision: _training_step(place, precision)  # type: ignore[misc]
    yield f"speed at batch {LARGE_BATCH:,}", lambda: _speed(place)
    yield "several processes", lambda: _processes(place, end)


def _about(place: torch.device) -> dict[str, str]:
    known = versions()
    about = {
        "versions": ", ".join(f"{name} {known[name]}" for name in ("forerank", "python", "torch", "numpy")),
        "device": str(place),
    }
    if place.type == "cuda":
        for number in range(torch.cuda.device_count()):
            is_what = torch.cuda.get_device_properties(number)
            memory = f"{is_what.total_memory / 2**30:.0f} GiB"
            about[f"cuda:{number}"] = f"{is_what.name}, {memory}, capability {is_what.major}.{is_what.minor}"
        about["CUDA"] = str(torch.version.cuda)
    if place.type == "cpu":
        faults = device_faults()
        if len(faults) == 2:
            about["device"] = "cpu: no accelerator can be used here, so these are checks of the CPU"
        about |= {f"why not {kind}": fault for kind, fault in faults.items()}
        about["cores, threads"] = f"{os.cpu_count()}, {torch.get_num_threads()}"
    return about


def _batch(count: int, width: int, each: int = 8) -> tuple[Tensor, Tensor]:
    """Vectors (count, width) of classes that overlap, and labels (count,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) // each
    centres = torch.randn(int(labels[-1]) + 1, width, generator=generator)
    return centres[labels] + 1.5 * torch.randn(count, width, generator=generator), labels


def _apart(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest value expected."""
    return float((actual.cpu() - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def _losses(place: torch.device) -> str:
    vectors, labels = _batch(192, 64)
    worst, names = {}, loss_names()
    for name in names:
        results = []
        for device in (torch.device("cpu"), place):
            batch = vectors.to(device).detach().requires_grad_()  # also where it is there already
            loss = create_loss(name)(batch, labels.to(device))
            loss.backward()
            assert batch.grad is not None
            results.append((loss.detach(), batch.grad.cpu()))
        (expected, slope), (value, gradient) = results
        worst[name] = max(_apart(value, expected), _apart(gradient, slope))
    name = max(worst, key=lambda name: worst[name])
    if not worst[name] <= LOSS_TOLERANCE:
        raise ArithmeticError(f"{name} differs from the CPU by {worst[name]:.1e} of its largest value")
    return (
        f"{len(names)} losses with gradients equal the CPU's; largest difference {worst[name]:.1e} ({name})"
    )


def _evaluation(place: torch.device) -> str:
    if place.type == "mps":
        raise LeftOutError("MPS has no float64: evaluation runs on the CPU")
    vectors, labels = _batch(2000, 32, each=5)
    vectors[:20] = vectors[40:60]  # ties
    options: dict[str, Any] = {"nmi": False, "per_query": True, "bootstrap": 0}
    here = evaluate(vectors, labels.numpy(), **options)
    there = evaluate(vectors.to(place), labels.numpy(), **options)
    for name, value in here.items():
        exact = not name.startswith("dists@")  # ranks are counted, distances are added up
        if there[name] != value if exact else abs(there[name] - value) > 1e-9:
            raise ArithmeticError(f"{name} is {there[name]} and on the CPU {value}")
    return f"{len(here)} metrics of {len(vectors):,} vectors equal the CPU's, recall@1 {here['recall@1']:.4f}"


def _training_step(place: torch.device, precision: str) -> str:
    if place.type == "cpu" and precision == "fp16":
        raise LeftOutError("training in fp16 needs a GPU")
    if place.type == "cpu" and precision == "bf16" and (fault := bf16_fault()):
        raise LeftOutError(fault)
    with tempfile.TemporaryDirectory() as folder:
        _draw(Path(folder, "images"))
        expected, _ = _first_loss(Path(folder), "cpu", "fp32")
        loss, seconds = _first_loss(Path(folder), str(place), precision)
    if not abs(loss - expected) <= STEP_TOLERANCE[precision] * abs(expected):
        raise ArithmeticError(f"the loss is {loss:.5f} and on the CPU in fp32 {expected:.5f}")
    return f"loss {loss:.5f}, on the CPU in fp32 {expected:.5f}; {seconds:.3f} s per step"


def _first_loss(folder: Path, device: str, precision: str) -> tuple[float, float]:
    """The loss of the first step of a real run, and the seconds of its last step, when all is warm."""
    run = folder / f"{device.replace(':', '-')}-{precision}"
    values = [
        "backbone=glyphnet", "pretrained=false", "mode=full", "embedding_dim=64", "batch_size=32", "steps=3",
        "every=3", "lr=1e-4", "report=false", "nmi=false", "ks=[1]", "data.workers=0", f"device={device}",
        f"precision={precision}",
    ]  # fmt: skip
    with redirect_stderr(io.StringIO()):
        outcome = train(load_recipe(folder / "images", values), run)
    rows = [row for row in read_history(run) if "loss" in row]
    if outcome.results["broken"] or len(rows) < 3:
        raise ArithmeticError("the loss was no longer a number")
    return rows[0]["loss"], rows[-1]["seconds"]


def _draw(folder: Path) -> None:
    """Pictures of 16 classes, four of each: noise around a pattern."""
    generator = np.random.default_rng(0)
    for number in range(16):
        pattern = generator.integers(0, 255, (32, 32))
        (folder / f"pattern_{number:02d}").mkdir(parents=True)
        for i in range(4):
            noisy = np.clip(pattern + generator.normal(0, 100, (32, 32)), 0, 255)
            Image.fromarray(noisy.astype(np.uint8)).save(folder / f"pattern_{number:02d}" / f"{i}.png")


def _large_loss(place: torch.device) -> Callable[[], None]:
    """Forward and backward of PNP-Dq at the large batch."""
    vectors, labels = _batch(LARGE_BATCH, WIDTH)
    batch, loss = vectors.to(place).requires_grad_(), PNPLoss()

    def once() -> None:
        batch.grad = None
        loss(batch, labels).backward()
        _wait(place)

    return once


def _wait(place: torch.device) -> None:
    """Return when the device has done what it was given."""
    if place.type != "cpu":
        torch.get_device_module(place).synchronize()


def _memory(place: torch.device) -> str:
    once = _large_loss(place)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        once()
        grown, whose = torch.cuda.max_memory_allocated(place) - before, "the device"
    elif place.type == "cpu":
        # The peak of the process may lie in the past: then the loss needs no more than is there already.
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        once()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit
        whose = "this process"
    else:
        raise LeftOutError(f"torch does not tell the peak memory of {place.type}")
    if grown > MOST_BYTES:
        raise MemoryError(f"the peak of {whose} grew by {grown / 2**20:,.0f} MiB")
    cube = LARGE_BATCH**3 * 4 / 2**30
    return f"the peak of {whose} grew by {grown / 2**20:,.0f} MiB; all triples would take {cube:,.0f} GiB"


def _speed(place: torch.device) -> str:
    once = _large_loss(place)
    vectors = _batch(LARGE_BATCH, WIDTH)[0].to(place)
    product = torch.empty(LARGE_BATCH, LARGE_BATCH, device=place)

    def bare() -> None:
        torch.mm(vectors, vectors.t(), out=product)
        _wait(place)

    loss_seconds, bare_seconds = _best(once), _best(bare)
    ratio = loss_seconds / bare_seconds
    return (
        f"loss and gradient {1000 * loss_seconds:,.1f} ms, {ratio:.1f} times the bare product of the vectors "
        f"({1000 * bare_seconds:,.1f} ms)"
    )


def _best(work: Callable[[], None]) -> float:
    """Seconds of the faster of two calls, after one that warms up."""
    work()
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def _processes(place: torch.device, end: float) -> str:
    """Loss and evaluation of several processes, started as `torchrun` starts them."""
    count = torch.cuda.device_count() if place.type == "cuda" else 2
    if count < 2 or place.type not in ("cpu", "cuda"):
        raise LeftOutError(f"there is one {place.type} device")
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", __name__]
    seconds = max(1.0, end + 30 - time.monotonic())
    try:
        done = subprocess.run(
            [sys.executable, *command, place.type],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{count} processes gave no answer in {seconds:.0f} s") from None
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if "Error" in line or line.startswith("forerank:")]
        raise RuntimeError((told or ["the processes ended without a word"])[0].strip())
    answer: str = json.loads(done.stdout)["detail"]
    return answer


def share_the_work(device: str) -> str:
    """What each of several processes does: the loss of the joint batch, and evaluation, as one alone."""
    with joined(device) as processes:
        vectors, labels = _batch(64 * processes.count, 64)
        whole = vectors.clone().requires_grad_()
        expected = PNPLoss()(whole, labels)
        expected.backward()
        assert whole.grad is not None
        mine = list(shard(len(vectors), processes))
        batch = vectors[mine].to(processes.device).requires_grad_()
        loss = PNPLoss(gather=True)(batch, labels[mine].to(processes.device))
        loss.backward()
        assert batch.grad is not None
        # A gathered loss multiplies its gradient by the processes, because averaging divides it again.
        apart = max(
            _apart(loss.detach(), expected.detach()), _apart(batch.grad / processes.count, whole.grad[mine])
        )
        if not apart <= LOSS_TOLERANCE:
            raise ArithmeticError(f"the gathered loss differs from one process's by {apart:.1e}")
        options: dict[str, Any] = {
            "nmi": False,
            "distances": False,
            "bootstrap": 0,
            "device": processes.device,
        }
        alone, together = (
            evaluate(vectors.numpy(), labels.numpy(), distributed=several, **options)
            for several in (False, True)
        )
        if dict(alone) != dict(together):
            raise ArithmeticError(f"evaluation gives {dict(together)} and in one process {dict(alone)}")
        backend = torch.distributed.get_backend() if processes.count > 1 else "none"
        how = "nccl" if processes.device.type == "cuda" else backend
        return (
            f"{processes.count} processes ({how}): loss and gradient differ from one process by {apart:.1e}, "
            "evaluation is equal"
        )


if __name__ == "__main__":
    detail = share_the_work(sys.argv[1])
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"detail": detail}))
