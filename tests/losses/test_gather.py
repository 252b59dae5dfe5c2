"""N processes of batch B are one process of batch N x B: loss, and gradient of the model, under DDP."""

import faulthandler
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is also run as a program
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from forerank.losses import (
    BlackboxLoss,
    CrossBatchMemory,
    PNPLoss,
    RankingLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SmoothAPLoss,
)
from waiting import LIMIT, finish

Part = tuple[Tensor, Tensor, Tensor]  # inputs, labels, image ids


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 4, dtype=torch.float64)


def make_losses(gather: bool) -> dict[str, nn.Module]:
    return {
        "Dq": PNPLoss("Dq", temperature=0.1, gather=gather),
        "AP": SmoothAPLoss(temperature=0.1, gather=gather, count_self=True),
        "bank": CrossBatchMemory(PNPLoss("Ds", temperature=0.1, gather=gather), size=17),
        "references": PNPLoss("O", temperature=0.1, gather=gather),
        "ROADMAP": RoadmapLoss(temperature=0.1, gather=gather),
        "ROADMAP, active pairs": RoadmapLoss(temperature=0.1, active_only=True, gather=gather),
        "Recall@k with mixup": RecallAtKLoss(temperature=0.1, mixup=True, gather=gather),
        "Blackbox": BlackboxLoss(gather=gather),
    }


def joint_batch(step: int, sizes: list[int]) -> list[Part]:
    """Inputs, labels and image ids of every process. Classes are spread over processes."""
    generator = torch.Generator().manual_seed(step)
    images = torch.randperm(24, generator=generator)[: sum(sizes)]
    inputs = torch.randn(24, 6, dtype=torch.float64, generator=generator)[images]
    return list(zip(inputs.split(sizes), (images % 5).split(sizes), images.split(sizes), strict=True))


def value_of(loss: nn.Module, name: str, embeddings: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    if name == "bank":
        return loss(embeddings, labels, ids=images)
    if name == "references":  # this process's part of the references
        return loss(embeddings, labels, None, embeddings * 1.0 + 0.1, labels)
    return loss(embeddings, labels)


def run(
    model: nn.Module, parts: list[list[tuple[Tensor, Tensor, Tensor]]], gather: bool
) -> dict[str, list[Any]]:
    """Loss and gradient at each step; `parts[step]` are the batches that this process joins into one."""
    results: dict[str, list[Any]] = {}
    for name, loss in make_losses(gather).items():
        for step in parts:
            inputs, labels, images = (torch.cat(x) for x in zip(*step, strict=True))
            model.zero_grad()
            torch.manual_seed(0)  # virtual examples are drawn the same in every process
            value = value_of(loss, name, model(inputs), labels, images)
            value.backward()
            grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            results.setdefault(name, []).append((value.detach(), grads.clone()))
    return results


def work(rank: int, sizes: list[list[int]], folder: str) -> None:
    """One of the processes: this file, run as a program."""
    faulthandler.dump_traceback_later(LIMIT - 60, exit=True)  # a deadlock shows where it stands
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=len(sizes[0]))
    model = DistributedDataParallel(make_model())
    mine = [[joint_batch(step, part)[rank]] for step, part in enumerate(sizes)]
    torch.save(run(model, mine, gather=True), f"{folder}/{rank}.pt")
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()


UNEVEN = [[[6, 6], [6, 3], [1, 7]], [[4, 4, 4], [4, 4, 1], [5, 0, 3]]]  # batch sizes, by step and process


@pytest.mark.parametrize("sizes", UNEVEN, ids=["2", "3"])
def test_processes_equal_one(sizes: list[list[int]], tmp_path: Path) -> None:
    ranks = range(len(sizes[0]))
    command = [sys.executable, __file__, json.dumps(sizes), str(tmp_path)]
    processes = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in ranks]
    for process, (_, errors) in zip(processes, finish(*processes), strict=True):
        assert process.returncode == 0, errors
    whole = [joint_batch(step, part) for step, part in enumerate(sizes)]
    expected = run(make_model(), whole, gather=False)
    for rank in ranks:
        results = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name in expected:
            for (value, grads), (wanted, wanted_grads) in zip(results[name], expected[name], strict=True):
                torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(grads, wanted_grads, rtol=1e-9, atol=1e-12)


def test_gather_alone_changes_nothing() -> None:
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    loss: RankingLoss = PNPLoss(gather=True)
    assert loss(x, labels) == PNPLoss()(x, labels)


if __name__ == "__main__":
    work(int(sys.argv[3]), json.loads(sys.argv[1]), sys.argv[2])
