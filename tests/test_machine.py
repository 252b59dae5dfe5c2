"""One rule for which device the work runs on, and in which precision a processor can compute."""

import re
import sys
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


def announce_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str = "avx2 amx_bf16") -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
    monkeypatch.setattr(machine, "_PROCESSOR", tmp_path / "cpuinfo")
    bf16_fault.cache_clear()


@pytest.fixture
def broken_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that announces AMX; the process that tries it really dies of an illegal instruction."""
    announce_amx(tmp_path, monkeypatch)
    monkeypatch.setattr(machine, "_PRODUCT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
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
    words = r"end the process .*: set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 .* or use fp32"
    with pytest.raises(InputError, match=words):
        evaluate(np.eye(4, dtype=np.float32), [0, 0, 1, 1], precision="bfloat16")
    for engine in ("auto", "torch", "openvino"):
        with pytest.raises(InputError, match=words):
            open_network(create_model("glyphnet").eval(), (1, 32, 32), "k", engine=engine, precision="bf16")
    assert run(["train", "glyphs", "precision=bf16", "--run", str(tmp_path / "run")]) == 2
    assert "set ONEDNN_MAX_CPU_ISA" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "program", "fault"),
    [
        ("avx2 amx_bf16", "pass", None),
        ("avx2", "raise SystemExit(1)", None),  # not announced: nothing is tried
        ("amx_bf16", "raise SystemExit(1)", r"^the trial of .* failed \(no message\)$"),
        ("amx_bf16", "import no_such_module", r"failed \(ModuleNotFoundError: .*no_such_module'\)$"),
    ],
)
def test_only_what_was_tried_and_ended_is_called_broken(
    flags: str, program: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce_amx(tmp_path, monkeypatch, flags)
    monkeypatch.setattr(machine, "_PRODUCT", program)
    try:
        found = bf16_fault()
        assert (found is None) if fault is None else re.search(fault, found or "")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
        bf16_fault.cache_clear()
        if "amx" in flags:
            assert "it cannot be tried whether" in (bf16_fault() or "")
    finally:
        bf16_fault.cache_clear()
