"""Small pictures that a small network can learn in a second, and the command line as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


def draw_images(folder: Path, classes: int = 20, each: int = 8, side: int = 32, noise: float = 60) -> Path:
    """Classes of noisy stripes: direction and width tell them apart."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side] / side
    for c in range(classes):
        (folder / f"class_{c:02d}").mkdir(parents=True)
        angle, width = np.pi * c / classes, 2 + 5 * ((c * 5) % classes) / classes
        for i in range(each):
            wave = np.sin(2 * np.pi * width * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6.28))
            pixels = 127 + 60 * wave + rng.normal(0, noise, (side, side))
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
                folder / f"class_{c:02d}" / f"{i}.png"
            )
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 classes x 8 grey pictures."""
    return draw_images(tmp_path_factory.mktemp("pictures") / "stripes")


# A run of a second: 20 steps of 4 classes x 4 images.
QUICK = [
    "backbone=glyphnet", "pooling=gem", "pretrained=false", "mode=full", "embedding_dim=16", "batch_size=16",
    "images_per_class=4", "steps=20", "every=10", "lr=1e-3", "nmi=false", "ks=[1,2]",
]  # fmt: skip


# At a temperature of 0.01 and a high rate, training multiplies the rounding of another order of sums until
# the curves part; where two ways to compute the same thing are compared, it must not.
# The rate is the paper's.
CALM = [*QUICK, "lr=1e-5", "temperature=0.1"]


@pytest.fixture(autouse=True)
def one_thread_and_own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are compared bit for bit compute with one thread, here and in processes started here."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    torch.set_num_threads(1)


# `forerank ...` to which something happens at a moment that the test chooses. A test that looks for it from
# outside comes too late on a busy machine.
AT_A_MOMENT = """
import os, resource, signal, sys, time
from pathlib import Path
from forerank.cli import main
from forerank.training import checkpoint, loop
from forerank.training.record import Record

moment, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
claim, add, save_file, sync_tree = loop.claim_run, Record.add, checkpoint.save_file, checkpoint.sync_tree
done = 0

def die():
    os.killpg(0, signal.SIGKILL)

def claim_then(*arguments):
    claim(*arguments)
    if moment == "killed when claimed":
        die()

def prepare(run, *rest):
    Path(f"{run}.prepares").touch()
    while True:
        time.sleep(0.1)

def add_then(self, step, **values):
    global done
    add(self, step, **values)
    done = step
    if done == number and moment == "killed after step":
        die()
    if done == number and moment == "full after step":  # no file may grow any more; events are the longest
        os.truncate(self._run / "metrics.jsonl", 0)
        size = next((self._run / "tensorboard").iterdir()).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

def save_half(tensors, file, metadata):
    save_file(tensors, file, metadata)
    if done >= number and moment == "killed in a file":
        os.truncate(file, file.stat().st_size // 2)
        die()

def sync_then(folder):
    sync_tree(folder)
    if done >= number and moment == "killed before the rename":
        die()

loop.claim_run, Record.add = claim_then, add_then
checkpoint.save_file, checkpoint.sync_tree = save_half, sync_then
if moment == "waits while preparing":
    loop.measure_before = prepare
main()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Start:
    """Start `forerank ...` (or torchrun with it) as a process; whatever still runs at the end is killed.

    With a `moment` and its number of steps something happens to it: see `AT_A_MOMENT`.
    """
    running: list[subprocess.Popen[str]] = []

    def begin(
        arguments: Sequence[object],
        processes: int = 1,
        torchrun: Sequence[str] = ("--standalone",),
        moment: tuple[str, int] | None = None,
        **options: object,
    ) -> "subprocess.Popen[str]":
        launcher = ["-m", "forerank"] if moment is None else ["-c", AT_A_MOMENT, moment[0], str(moment[1])]
        if processes > 1 or torchrun != ("--standalone",):
            where = [*torchrun, f"--nproc-per-node={processes}"]
            launcher = ["-m", "torch.distributed.run", *where, *launcher]
        process = subprocess.Popen(
            [sys.executable, *launcher, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy(),
            start_new_session=True, **options,
        )  # type: ignore[call-overload]  # fmt: skip
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()
