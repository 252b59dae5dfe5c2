"""The pretend accelerator refuses what a GPU refuses and counts where the host would wait for one."""

import pytest
import torch

from forerank.losses.base import normalise_rows
from forerank.machine import choose_device
from pretend_device import DEVICE, DeviceMixUpError, host_waits


def test_tensors_of_two_devices_are_refused_with_the_place() -> None:
    there, here = torch.ones(3, 2, device=DEVICE), torch.ones(3, 2)
    with pytest.raises(DeviceMixUpError, match=r"aten::add.*\(3, 2\) on pretend, \(3, 2\) on cpu"):
        there + here
    with pytest.raises(DeviceMixUpError, match="index_put"):
        here[torch.tensor([0])] = there[:1]
    with pytest.raises(DeviceMixUpError, match=r"in losses/base.py:\d+ normalise_rows"):
        normalise_rows(_Spoiled(there, here))  # type: ignore[arg-type]
    assert (there + torch.tensor(1.0)).tolist() == [[2.0, 2.0]] * 3  # a number may come from anywhere
    there[1:] = 5
    there.copy_(here + there.cpu())
    assert there.tolist() == [[2.0, 2.0], [6.0, 6.0], [6.0, 6.0]]


class _Spoiled:
    """Stands for vectors whose conversion forgets the device."""

    def __init__(self, there: torch.Tensor, here: torch.Tensor) -> None:
        self.dtype, self.there, self.here = there.dtype, there, here

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.cat([self.there, self.here])


def test_memory_of_the_device_is_not_memory_of_the_host() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(3, device=DEVICE).numpy()
    assert torch.ones(3, device=DEVICE).cpu().numpy().sum() == 3


def test_every_moment_at_which_the_host_waits_is_counted() -> None:
    x = torch.arange(4.0, device=DEVICE)
    waiting = {
        "a value": lambda: float(x[1]),
        "a decision": lambda: bool(x.sum() > 3),
        "a list": lambda: x.tolist(),
        "a mask": lambda: x[x > 1],
        "positions": lambda: x.nonzero(),
        "a copy to the host": lambda: x.cpu(),
        "a copy to the device": lambda: torch.ones(4).to(DEVICE),
        "an index of the host": lambda: x[torch.tensor([0, 2])],
    }
    for what, work in waiting.items():
        with host_waits() as waits:
            work()
        assert len(waits) == 1, (what, waits)
    with host_waits() as waits:
        y = torch.ones(4).to(DEVICE, non_blocking=True) * x + torch.where(x > 1, x, 0).sum()
        y.masked_fill_(y > 2, 0)[1:].sort()
    assert waits == []


def test_the_device_has_a_generator_of_its_own() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    host = torch.get_rng_state()
    assert torch.equal(torch.rand(4, device=DEVICE).cpu(), expected)  # seeded alike
    assert torch.equal(torch.get_rng_state(), host)  # and apart from the host's
    assert not torch.equal(torch.rand(4, device=DEVICE).cpu(), expected)


def test_autocast_and_parameters_that_move() -> None:
    layer = torch.nn.Linear(3, 2)
    weight = layer.weight
    layer.to(DEVICE)
    assert layer.weight is weight  # an optimiser that knows it goes on knowing it
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert layer(torch.ones(1, 3, device=DEVICE)).dtype == torch.float16
    assert choose_device(DEVICE) == DEVICE
