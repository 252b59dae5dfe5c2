"""A rank under torchrun killed, or stopped for a while, at random moments of training and evaluation.

A killed rank must end the run with a sentence, and what is resumed must equal the uninterrupted run bit for
bit. A rank that was stopped for some seconds and continued must change nothing.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from campaigns.kills import _equal, _readable_run, _run_outcome
from campaigns.pictures import QUICK, draw_stripes
from campaigns.tally import Tally

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Two of three tries are in training, one is in evaluation."""
    images = draw_stripes(folder / "stripes")
    values = [*QUICK, "mode=full", "memory=40"]
    train = ["train", str(images), *values]
    began = time.monotonic()
    whole = folder / "whole"
    said = _finish(_start([*train, f"run={whole / 'run'}"]))
    if said:
        raise RuntimeError(f"the uninterrupted run failed: {said}")
    seconds, expected = time.monotonic() - began, _run_outcome(whole)
    measured = _evaluated(whole / "run")
    tally, counts = Tally(), Counter[str]()
    for number in range(tries):
        if time.monotonic() > end:
            break
        rng = np.random.default_rng([seed, number])
        how, rank, evaluating = ("killed", "stopped")[rng.integers(2)], int(rng.integers(2)), number % 3 == 2
        what = "evaluation" if evaluating else "training"
        place = folder / f"{number}"
        if evaluating:
            shutil.copytree(whole, place, symlinks=True)
            words = ["evaluate", str(place / "run"), "--json"]
        else:
            words = [*train, f"run={place / 'run'}"]
        try:
            trouble = _disturb(words, rank, how, float(rng.uniform(0.2, 0.9)) * seconds)
            _readable_run(place)
            if not trouble and not evaluating:
                trouble = _finish(_start(words)) or _differs(expected, _run_outcome(place))
            if not trouble and evaluating and _evaluated(place / "run") != measured:
                trouble = "the evaluation afterwards differs"
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        counts[f"rank {rank} {how} in {what}"] += 1
        tally.count(not trouble, f"try {number}, rank {rank} {how} in {what}: {trouble}")
        shutil.rmtree(place, ignore_errors=True)
    tally.figures = dict(sorted(counts.items()))
    return tally


def _differs(expected: dict[str, Any], found: dict[str, Any]) -> str:
    different = [key for key in expected.keys() | found.keys() if not _equal(expected, found, key)]
    return f"{len(different)} things differ, first {sorted(different)[0]}" if different else ""


def _start(words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, "-m", "forerank", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _finish(process: "subprocess.Popen[str]", seconds: float = 900) -> str:
    """Wait for a good end; otherwise what was said."""
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"it did not end within {seconds:g} s"
    return "" if process.returncode == 0 else f"it ended with {process.returncode}: {said[-400:]}"


def _disturb(words: list[str], rank: int, how: str, moment: float) -> str:
    process = _start(words)
    time.sleep(moment)
    victim = _rank(process.pid, rank)
    if victim is None:
        return _finish(process)  # not begun yet, or over
    if how == "stopped":
        victim.suspend()
        time.sleep(2)
        victim.resume()
        return _finish(process)
    victim.kill()
    try:
        _, said = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "the others waited for the killed rank for more than 900 s"
    if process.returncode == 0:
        return ""  # it had nothing left to do
    told = "another process of this run ended" in said or "SIGKILL" in said or "Signal 9" in said
    return "" if told else f"nothing was said about the loss: {said[-400:]}"


def _rank(agent: int, rank: int) -> Any:
    try:
        for child in psutil.Process(agent).children(recursive=True):
            if child.environ().get("RANK") == str(rank):
                return child
    except psutil.Error:
        pass
    return None


def _evaluated(run: Path) -> str:
    process = _start(["evaluate", str(run), "--json"])
    out, said = process.communicate(timeout=900)
    if process.returncode != 0:
        raise RuntimeError(f"the evaluation ended with {process.returncode}: {said[-400:]}")
    return out
