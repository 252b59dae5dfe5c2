"""Several processes under torchrun: the same curve as one, one writer, a death that is explained."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from forerank.training import read_history

from .conftest import CALM, QUICK, Start
from .test_resume import steps_done, wait_for


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_history(run) if "loss" in row]


@pytest.mark.parametrize("values", [
    [], ["micro_batch=3", "memory=40"], ["loss=pml:ProxyNCALoss", "options={}"],
], ids=lambda v: ",".join(v) or "plain")  # fmt: skip
def test_two_processes_equal_one_with_the_joint_batch(
    images: Path, tmp_path: Path, start: Start, values: list[str]
) -> None:
    runs = {count: tmp_path / str(count) for count in (1, 2)}
    for count, run in runs.items():
        process = start(["train", images, *CALM, *values, f"run={run}", "--json"], processes=count)
        out, talk = process.communicate(timeout=300)
        assert process.returncode == 0, talk
        assert out.count('"training_seconds"') == 1  # only the first process speaks
        assert talk.count(": validation recall@1") == 3
    one, two = losses(runs[1]), losses(runs[2])
    assert len(one) == len(two) == 20
    assert one == pytest.approx(two, abs=1e-5)
    assert one[0] != one[-1]
    tests = [read_history(run)[-1]["test"]["recall@1"] for run in runs.values()]
    assert tests[0] == pytest.approx(tests[1], abs=0.03)


def test_a_process_that_dies_ends_the_run_readably_and_it_can_be_resumed(
    images: Path, tmp_path: Path, start: Start
) -> None:
    run = tmp_path / "run"
    values = [*QUICK, "report=false", "steps=100000", "every=100000", "save_every=5"]
    process = start(["train", images, *values, f"run={run}"], processes=2)
    wait_for(lambda: steps_done(run) >= 12, process)
    victim = _worker(process.pid, rank=1)
    os.kill(victim, signal.SIGKILL)
    _, talk = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "another process of this run ended" in talk
    assert (run / "last" / "state.json").exists()
    saved = steps_done(run)
    # One process takes up what two began: the global batch is the same.
    process = start(["train", run])
    wait_for(lambda: steps_done(run) >= saved + 3, process)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk


def _worker(agent: int, rank: int) -> int:
    """The process id of a rank: torchrun's children know their rank from the environment."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        children = subprocess.run(
            ["pgrep", "-P", str(agent)], capture_output=True, text=True, check=False
        ).stdout
        for child in children.split():
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in environment:
                return int(child)
        time.sleep(0.05)
    raise AssertionError("no such rank")
