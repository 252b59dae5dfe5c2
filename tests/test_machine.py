"""One rule for which device the work runs on."""

import pytest
import torch

from forerank.errors import InputError
from forerank.machine import choose_device


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
