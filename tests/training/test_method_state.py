"""Methods: what they learn beside the network is state, and is the same in one process and in several."""

import signal
from pathlib import Path

import pytest
import torch

from forerank.training import load_recipe, read_history, train
from waiting import LIMIT

from .conftest import CALM, QUICK, Start
from .test_resume import steps_done, tensors

CALM_METHOD = [value for value in CALM if not value.startswith("temperature")]


@pytest.mark.parametrize("key", ["softtriple", "dcml-mdw"])
def test_proxies_and_boundaries_are_resumed_bit_for_bit(
    images: Path, tmp_path: Path, start: Start, key: str
) -> None:
    values = [*QUICK, f"method={key}", "report=false", "steps=24", "every=8", "save_every=1"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    train(load_recipe(images, values), whole)
    process = start(["train", images, *values, "--run", run], moment=("killed after step", 9))
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL, talk
    assert steps_done(run) == 9
    train(load_recipe(run / "recipe.yaml"), run)
    expected, resumed = tensors(whole), tensors(run)
    assert expected.keys() == resumed.keys()
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []


@pytest.mark.parametrize("key", ["contrastive-with-memory", "softtriple"])
def test_banks_and_proxies_of_two_processes_equal_those_of_one(
    images: Path, tmp_path: Path, start: Start, key: str
) -> None:
    values = [*CALM_METHOD, f"method={key}", "steps=10", "every=10", "report=false"]
    curves = []
    for count in (1, 2):
        run = tmp_path / str(count)
        process = start(["train", images, *values, f"run={run}"], processes=count)
        _, talk = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, talk
        curves.append([row["loss"] for row in read_history(run) if "loss" in row])
    assert len(curves[0]) == 10
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


@pytest.mark.parametrize("key", ["rankmi", "contrastive-with-memory"])
def test_an_inner_optimiser_and_a_bank_move_once_per_step_with_micro_batches(
    images: Path, tmp_path: Path, key: str
) -> None:
    curves = []
    for micro in ([], ["micro_batch=5"]):
        run = tmp_path / str(len(micro))
        values = [*CALM_METHOD, f"method={key}", "steps=10", "every=10", "report=false", *micro]
        train(load_recipe(images, values), run)
        curves.append([row["loss"] for row in read_history(run) if "loss" in row])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
