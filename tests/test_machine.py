"""One rule for which device the work runs on, and in which precision a processor can compute."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from forerank import evaluate, machine
from forerank.cli import run
from forerank.errors import InputError
from forerank.machine import bf16_fault, choose_device, cpu_has_bf16
from forerank.models import create_model
from forerank.models.inference import open_network
from forerank.ranking.hard_screen import bfloat16_is_faster


def test_a_device_that_is_announced_but_does_not_work_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    if torch.backends.mps.is_built() or torch.cuda.is_available():
        pytest.skip("this machine has such a device")
    assert choose_device() == "cpu"
    with pytest.raises(InputError, match=r"^the device 'mps' cannot be used on this machine \(.+\)"):
        choose_device("mps")


def test_a_device_that_is_not_there_and_a_name_that_is_none() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no CUDA device"):
            choose_device("cuda:1")
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        choose_device("gpu")


@pytest.fixture
def broken_amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that announces AMX; the process that tries it really dies of an illegal instruction."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(machine, "_PRODUCT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    bf16_fault.cache_clear()
    yield
    bf16_fault.cache_clear()


@pytest.mark.usefixtures("broken_amx")
def test_instructions_that_end_the_process_are_not_used_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    assert not cpu_has_bf16()
    assert not bfloat16_is_faster(torch.device("cpu"))
    assert run(["doctor"]) == 0
    assert "no: this processor announces instructions for bf16 (AMX) that end" in capsys.readouterr().out


@pytest.mark.usefixtures("broken_amx")
def test_who_asks_for_instructions_that_end_the_process_gets_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = r"end the process .*: use fp32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    with pytest.raises(InputError, match=words):
        evaluate(np.eye(4, dtype=np.float32), [0, 0, 1, 1], precision="bfloat16")
    for engine in ("auto", "torch", "openvino"):
        with pytest.raises(InputError, match=words):
            open_network(create_model("glyphnet").eval(), (1, 32, 32), "k", engine=engine, precision="bf16")
    assert run(["train", "glyphs", "precision=bf16", "--run", str(tmp_path / "run")]) == 2
    assert "use fp32, or set ONEDNN_MAX_CPU_ISA" in " ".join(capsys.readouterr().err.split())


def test_amx_that_works_or_is_absent_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for announced, program in ((True, "pass"), (False, "raise SystemExit(1)")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda announced=announced: announced)
        monkeypatch.setattr(machine, "_PRODUCT", program)
        bf16_fault.cache_clear()
        assert bf16_fault() is None
    bf16_fault.cache_clear()
