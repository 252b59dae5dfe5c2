"""Every loss on an accelerator: the numbers of the CPU, nothing mixed up, and few moments of waiting."""

import faulthandler
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is also run as a program
from torch import Tensor, nn

from forerank.losses import CrossBatchMemory, create_loss
from forerank.losses.registry import loss_names
from forerank.training.processes import Processes, largest
from pretend_device import DEVICE, host_waits
from waiting import LIMIT, finish

LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 0, 2, 4, 4])
IMAGES = [
    torch.arange(12),
    torch.arange(12) * 2,
    torch.arange(12) // 2 * 3,
]  # back, and twice


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def with_references(loss: nn.Module, device: str) -> list[Tensor]:
    """Loss and gradients of a batch among itself, and among references."""
    batch = vectors(12, 0).to(device).requires_grad_()
    references = vectors(20, 1).to(device).requires_grad_()
    labels, theirs = LABELS.to(device), (torch.arange(20) % 6).to(device)
    torch.manual_seed(0)
    alone, among = loss(batch, labels), loss(batch, labels, None, references, theirs)
    (alone + among).backward()
    assert alone.device.type == torch.device(device).type
    assert batch.grad is not None
    assert references.grad is not None
    return [alone.detach(), among.detach(), batch.grad, references.grad]


def with_memory(loss: nn.Module, device: str) -> list[Tensor]:
    """Losses and gradients of three batches with a memory bank, and what the bank holds in the end."""
    bank = CrossBatchMemory(loss, size=20).to(device)
    results: list[Tensor] = []
    torch.manual_seed(0)
    for seed, images in enumerate(IMAGES):
        batch = vectors(12, seed).to(device).requires_grad_()
        value = bank(batch, LABELS.to(device), ids=images.to(device))
        value.backward()
        assert batch.grad is not None
        results += [value.detach(), batch.grad]
    return [*results, bank.embeddings, bank.labels, bank.ids]


@pytest.mark.parametrize("name", loss_names())
def test_equal_to_the_cpu(name: str) -> None:
    for case in (with_references, with_memory):
        there, here = case(create_loss(name), DEVICE), case(create_loss(name), "cpu")
        assert all(x.device.type == DEVICE for x in there)
        assert [torch.equal(x.cpu(), y) for x, y in zip(there, here, strict=True)] == [True] * len(here)
        assert all(float(x.abs().sum()) > 0 for x in here)


def test_labels_may_stay_on_the_host_and_vectors_may_be_extreme() -> None:
    for factor in (1.0, 1e-30, 1e30):  # squares that underflow and overflow
        batch = factor * vectors(12, 0)
        expected = create_loss("PNP-Dq")(batch, LABELS)
        assert torch.equal(create_loss("PNP-Dq")(batch.to(DEVICE), LABELS).cpu(), expected)
        words = [f"class {label}" for label in LABELS.tolist()]
        assert torch.equal(create_loss("PNP-Dq")(batch.to(DEVICE), words).cpu(), expected)
    spoiled = vectors(12, 0)
    spoiled[3, 2] = torch.nan
    assert create_loss("PNP-Dq")(spoiled.to(DEVICE), LABELS.to(DEVICE)).isnan().item()


@pytest.mark.parametrize("name", loss_names())
def test_a_loss_hardly_ever_makes_the_host_wait(name: str) -> None:
    """Not at all if the labels are on the host; else once, for the labels; a memory bank once, for both."""
    loss, batch = create_loss(name), vectors(12, 0).to(DEVICE).requires_grad_()
    with host_waits() as waits:
        loss(batch, LABELS).backward()
    assert waits == []
    on_device, ids = LABELS.to(DEVICE), IMAGES[0].to(DEVICE)
    with host_waits() as waits:
        loss(batch, on_device).backward()
    assert [wait.place.split(" ")[1] for wait in waits] == ["_on_host"]
    bank = CrossBatchMemory(loss, size=20).to(DEVICE)
    bank(batch, on_device, ids=ids)
    with host_waits() as waits:
        bank(batch, on_device, ids=ids).backward()
    assert [wait.place.partition(":")[0] for wait in waits] == ["losses/memory.py"]


def test_gathered_by_two_processes(tmp_path: Path) -> None:
    """Two real processes, each with the device; a collective that met a CPU tensor would fail.

    With labels on the host, as in training, gathering does not make the host wait for the device.
    """
    import subprocess

    command = [sys.executable, __file__, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    for process, (_, errors) in zip(processes, finish(*processes), strict=True):
        assert process.returncode == 0, errors
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for kind in ("plain", "memory"):
            there, here = results[DEVICE, kind], results["cpu", kind]
            assert all(torch.equal(x, y) for x, y in zip(there, here, strict=True))
        assert results["waits"] == []
    alone = with_references(create_loss("PNP-Dq"), "cpu")[0]
    torch.testing.assert_close(results["cpu", "plain"][0], alone)


def work(rank: int, folder: str) -> None:
    """One of the processes: this file, run as a program."""
    faulthandler.dump_traceback_later(LIMIT - 60, exit=True)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results: dict[Any, list[Any]] = {}
    mine = slice(0, 7) if rank == 0 else slice(7, 12)
    for device in ("cpu", DEVICE):
        loss = create_loss("PNP-Dq", gather=True)
        bank = CrossBatchMemory(loss, size=20).to(device)
        for kind, images in (("plain", None), ("memory", IMAGES[0]), ("memory", IMAGES[2])):
            batch = vectors(12, 0)[mine].to(device).requires_grad_()
            labels = LABELS[mine].to(device)
            value = (
                loss(batch, labels) if images is None else bank(batch, labels, ids=images[mine].to(device))
            )
            value.backward()
            assert batch.grad is not None
            results.setdefault((device, kind), []).extend([value.detach().cpu(), batch.grad.cpu()])
    batch = vectors(12, 0)[mine].to(DEVICE).requires_grad_()
    with host_waits() as waits:
        create_loss("PNP-Dq", gather=True)(batch, LABELS[mine]).backward()
        largest(rank, Processes(rank, 2, torch.device(DEVICE)))
    results["waits"] = [f"{wait.operator} in {wait.place}" for wait in waits]
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[2]), sys.argv[1])
