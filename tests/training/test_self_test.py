"""The self-test of `forerank doctor --gpu`, on the pretend accelerator and on the CPU."""

import json
from typing import Any

import pytest
import torch

import pretend_device
from forerank.cli import run
from forerank.training import self_test as module
from forerank.training.self_test import FAILED, LEFT_OUT, OK, Report, self_test
from pretend_device import DEVICE


@pytest.fixture(autouse=True)
def smaller_batch_and_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_BATCH", 256)
    monkeypatch.setattr(module, "SECONDS", 3600.0)


def results(report: Report) -> dict[str, str]:
    return {check.name: check.result for check in report.checks}


def test_an_accelerator_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--gpu", "--device", DEVICE, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["device"] == DEVICE
    assert {check["name"]: check["result"] for check in report["checks"]} == {
        "losses": OK, "evaluation": OK,
        "training step, fp32": OK, "training step, bf16": OK, "training step, fp16": OK,
        "memory at batch 256": LEFT_OUT, "speed at batch 256": OK, "several processes": LEFT_OUT,
    }  # fmt: skip


def test_an_accelerator_that_computes_wrongly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sigmoids that are too large spoil the losses; evaluation uses none and stays right."""
    real = pretend_device._run

    def faulty(func: Any, args: Any, kwargs: Any) -> Any:
        result = real(func, args, kwargs)
        if func is torch.ops.aten.sigmoid_.default:
            args[0].held.mul_(1.3)
        return result

    monkeypatch.setattr(pretend_device, "_run", faulty)
    assert run(["doctor", "--gpu", "--device", DEVICE]) == 1
    text = capsys.readouterr().out
    lines = {line[:20].strip(): line for line in text.splitlines()}
    assert FAILED in lines["losses"]
    assert "differs from the CPU by" in lines["losses"]
    assert OK in lines["evaluation"]
    assert FAILED in lines["training step, fp32"]
    assert text.strip().splitlines()[-1].startswith("Failed: losses, training step, fp32")


@pytest.mark.long  # the checks themselves run above, in one process
def test_the_cpu_with_two_processes() -> None:
    report = self_test("cpu")
    reported = results(report)
    assert reported.pop("training step, fp16") == LEFT_OUT
    assert set(reported.values()) == {OK}, str(report)
    assert "2 processes (gloo)" in str(report)
    assert "evaluation is equal" in str(report)


def test_no_check_begins_after_the_time_is_over() -> None:
    report = self_test(DEVICE, seconds=-1)
    assert set(results(report).values()) == {LEFT_OUT}
    assert report.passed


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--gpu", "--device", "gpu"]) == 2
    assert "unknown device 'gpu'" in capsys.readouterr().err
