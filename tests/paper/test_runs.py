"""One run's misfortune is its own: the rest of the plan is trained."""

import importlib
from pathlib import Path

import pytest

from forerank.paper import runs
from forerank.paper.pipeline import open_study, runs_needed


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
