"""One run's misfortune is its own: the rest of the plan is trained."""

import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from forerank.paper import runs
from forerank.paper.pipeline import open_study, runs_needed
from waiting import LIMIT, wait_until


def test_any_exception_of_a_run_is_its_own(
    tmp_path: Path, few_glyphs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import forerank.training.loop

    def train(recipe: object, folder: Path) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(forerank.training.loop, "train", train)
    plan = runs_needed(["variants-sop"], open_study(["toy"], seeds=1, out=tmp_path, values=few_glyphs))
    failed = runs.train_missing(plan)
    assert len(failed) == len(plan)
    assert "O, seed 0: RuntimeError: out of memory" in failed[0]
    assert "Traceback" in (tmp_path / "training" / "logs" / f"{plan[0].key}.log").read_text()


# Stands for the training of a run in a worker: one is killed, the others end.
WORKER = """
import os, signal
def train(run):
    if run.title.startswith("Ds"):
        os.kill(os.getpid(), signal.SIGKILL)
    return ""
"""


def test_a_worker_that_dies_takes_only_its_run_along(
    tmp_path: Path, few_glyphs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mortal_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runs, "_train_in_worker", importlib.import_module("mortal_worker").train)
    monkeypatch.setattr(runs, "_use_threads", abs)  # workers need not import torch
    plan = runs_needed(["variants-sop"], open_study(["toy"], seeds=2, out=tmp_path, values=few_glyphs))
    ended = {run.title: problem for run, problem in runs._results(plan, 2, None, 1)}
    assert len(ended) == 10
    assert {title for title, problem in ended.items() if problem} == {"Ds, seed 0", "Ds, seed 1"}
    assert "was killed" in ended["Ds, seed 0"]


@pytest.mark.parametrize("job", ["go_on", "save_when_asked"])
def test_a_worker_ends_when_its_parent_is_killed(job: str, tmp_path: Path) -> None:
    """Also one that is inside a run, which answers the signal by saving itself."""
    script = tmp_path / "study.py"
    script.write_text(f"""
import os, pathlib, signal, time
from forerank.paper.runs import _start_worker
from forerank.training.interruption import Interruption
folder = pathlib.Path({str(tmp_path)!r})
def go_on():
    (folder / "begun").touch()
    while True:
        time.sleep(0.1)
def save_when_asked():
    with Interruption() as interruption:
        (folder / "begun").touch()
        while not interruption.signal:
            time.sleep(0.1)
        (folder / "saved").touch()
if __name__ == "__main__":
    worker = _start_worker(1)
    print(worker.submit(os.getpid).result(), flush=True)
    worker.submit({job}).result()
""")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    wait_until((tmp_path / "begun").exists, "the job begins", parent)
    parent.kill()
    try:
        parent.communicate(timeout=LIMIT)  # ends when no process is left that could write
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    assert (tmp_path / "saved").exists() == (job == "save_when_asked")
