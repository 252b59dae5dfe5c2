"""Disks that are full, read-only, gone or slow during a write: the old state stays, in one sentence.

Where the system allows it, a small disk in memory (tmpfs) is really full or really read-only; elsewhere a
limit on the size of files stands for the full disk, and the read-only disk is left out and not counted. The
slow disk takes its time for every flush and every rename, and another process looks at the index meanwhile.
"""

import os
import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.children import Child
from campaigns.pictures import QUICK, draw_stripes
from campaigns.tally import Tally

ENDS = 600.0  # seconds in which a command must have ended, also on a busy machine


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Go round the kinds of trouble and the kinds of work."""
    import torch

    torch.set_num_threads(1)
    os.environ["FORERANK_CACHE"] = str(folder / "cache")
    Child(lambda: _prepare(folder), folder / "child.log").must_end_well()
    tally, counts = Tally(), Counter[str]()
    disk = folder / "disk"
    disk.mkdir()
    mounts = _mount(disk, 16 * 2**20)
    _unmount(disk)
    troubles = [_file_size_limit, _vanishing, _slow, *([_full_disk, _read_only] if mounts else [])]
    for number in range(tries):
        if time.monotonic() > end:
            break
        rng = np.random.default_rng([seed, number])
        trouble = troubles[number % len(troubles)]
        work = list(WORK)[number // len(troubles) % len(WORK)]
        place = disk / f"{number}"
        try:
            why = trouble(place, folder, work, rng)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            _unmount(disk)
            shutil.rmtree(place, ignore_errors=True)
        name = trouble.__name__.strip("_").replace("_", " ")
        counts[name] += 1
        tally.count(not why, f"try {number}, {name}, {work}: {why}")
    tally.figures = dict(counts)
    return tally


def _prepare(folder: Path) -> None:
    """The old state: a run with a checkpoint, an index of half of the images, a model."""
    from forerank.cli import run as command
    from forerank.models import create_model, save_model

    images = draw_stripes(folder / "stripes")
    shutil.copytree(images, folder / "half")
    for file in (folder / "half").glob("*/[4-7].png"):
        file.unlink()
    old = folder / "old"
    save_model(create_model("glyphnet", embedding_dim=16, pooling="gem", pretrained=False), old / "model")
    codes = [
        command(["index", str(old / "model"), str(folder / "half"), "-o", str(old / "index")]),
        command(["train", str(images), *QUICK, "mode=full", "--run", str(old / "run")]),
    ]
    assert codes == [0, 0]
    (old / "run" / "results.json").unlink()  # so that the end is done again


WORK: dict[str, Callable[[Path, Path], list[str]]] = {
    "train": lambda place, folder: ["train", str(place / "run")],
    "train anew": lambda place, folder: [
        "train", str(folder / "stripes"), *QUICK, "mode=full", "--run", str(place / "new"),
    ],
    "index": lambda place, folder: [
        "index", str(folder / "old" / "model"), str(folder / "stripes"), "-o", str(place / "index"),
    ],
    "calibrate": lambda place, folder: ["calibrate", str(place / "index"), "--precision", "0.05"],
    "export table": lambda place, folder: [
        "data", "export", str(folder / "stripes"), str(place / "table.csv"),
    ],
}  # fmt: skip


def _start(
    place: Path, folder: Path, work: str, limit: int | None = None, seconds: float | None = None
) -> Child:
    """Begin some work, where files may have at most `limit` bytes, or a flush takes some seconds."""

    def command() -> None:
        from forerank.cli import run as command

        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if seconds is not None:
            for name in ("fsync", "rename", "replace"):
                setattr(os, name, _slowly(getattr(os, name), seconds))
        os._exit(command(WORK[work](place, folder)))

    # What it says goes to another disk.
    return Child(command, folder / "child.log")


def _slowly(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **options)

    return slow


def _judge(child: Child, place: Path, folder: Path) -> str:
    """ "" if the command ended in time, in a sentence if at all badly, and the old state can be read."""
    code = child.wait(ENDS)
    if code is None:
        child.kill()
        return f"it did not end within {ENDS:g} s"
    said = child.log.read_text(errors="replace")
    if "Traceback" in said or code not in (0, 1, 2):
        return f"it ended with {code}: {said[-300:]}"
    if code and sum(line.startswith("forerank: ") for line in said.splitlines()) != 1:
        return f"not one sentence: {said[-300:]}"
    return _intact(place)


def _intact(place: Path) -> str:
    """What is there of the old state is whole: the old one or a newer one."""
    from forerank.errors import ForerankError
    from forerank.files import load_tensors, read_json_with_checksum

    try:
        if (place / "index").exists() and (trouble := _index_trouble(place)):
            return trouble
        for run in (place / "run", place / "new"):
            for link in ("last", "best"):
                if (run / link).exists() or (run / link).is_symlink():
                    read_json_with_checksum(run / link / "state.json")
                    load_tensors(run / link / "state.safetensors")
                    load_tensors(run / link / "model.safetensors")
    except (ForerankError, OSError) as error:
        return f"the old state is damaged: {error}"
    return ""


def _index_trouble(place: Path) -> str:
    from forerank.search.engine import open_engine

    engine = open_engine(place / "index")
    try:
        if engine.meta() is None or engine.count() not in (48, 96):
            return "the index is neither the old one nor the new one"
        engine.verify()
    finally:
        engine.close()
    return ""


def _copy(folder: Path, place: Path) -> None:
    shutil.copytree(folder / "old", place, symlinks=True)


def _file_size_limit(place: Path, folder: Path, work: str, rng: np.random.Generator) -> str:
    _copy(folder, place)
    return _judge(_start(place, folder, work, int(rng.integers(0, 1_000_000))), place, folder)


def _slow(place: Path, folder: Path, work: str, rng: np.random.Generator) -> str:
    """Every flush and rename takes up to half a second: the work ends well, and readers see a whole index."""
    from forerank.errors import ForerankError

    _copy(folder, place)
    child = _start(place, folder, work, seconds=float(rng.uniform(0.05, 0.5)))
    end = time.monotonic() + ENDS
    while (code := child.wait(0.2)) is None:
        try:
            trouble = _index_trouble(place)
        except (ForerankError, OSError) as error:
            trouble = f"a reader met {error}"
        if trouble or time.monotonic() > end:
            child.kill()
            return trouble or f"it did not end within {ENDS:g} s"
    if code != 0:
        return f"it ended with {code}: {child.log.read_text(errors='replace')[-300:]}"
    return _intact(place)


def _full_disk(place: Path, folder: Path, work: str, rng: np.random.Generator) -> str:
    if not _mount(place.parent, 64 * 2**20):
        raise RuntimeError("no disk could be mounted")
    _copy(folder, place)
    used = shutil.disk_usage(place.parent).used
    _mount(place.parent, used + 4096 * int(rng.integers(0, 400)), "remount")
    return _judge(_start(place, folder, work), place, folder)


def _read_only(place: Path, folder: Path, work: str, rng: np.random.Generator) -> str:
    if not _mount(place.parent, 64 * 2**20):
        raise RuntimeError("no disk could be mounted")
    _copy(folder, place)
    _mount(place.parent, 64 * 2**20, "remount,ro")
    return _judge(_start(place, folder, work), place, folder)


def _vanishing(place: Path, folder: Path, work: str, rng: np.random.Generator) -> str:
    """The folder is renamed at a random moment, as when a disk is taken away; what went along is whole."""
    _copy(folder, place)
    child = _start(place, folder, work)
    code = child.wait(float(rng.uniform(0, 3)))
    away = place.with_name(f"{place.name}-away")
    place.rename(away)
    if code is not None:  # it was quicker
        place_trouble = "" if code in (0, 1, 2) else f"it ended with {code}: {child.log.read_text()[-300:]}"
    else:
        place_trouble = _judge(child, place, folder)
    trouble = place_trouble or _intact(away)
    shutil.rmtree(away, ignore_errors=True)
    return trouble


def _mount(disk: Path, size: int, *options: str) -> bool:
    how = ",".join([*options, f"size={size}"])
    command = ["mount", "-t", "tmpfs", "-o", how, "forerank-campaign", str(disk)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmount(disk: Path) -> None:
    with suppress(OSError):
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False)
