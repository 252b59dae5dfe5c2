"""Several processes as one: gathering a batch, and gradients that come out as if one process had held it all.

Each process ranks its own queries against everyone's items: the work is shared, not repeated. The
gradient that other processes' queries give an item is sent back to its process in the backward pass.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def world_size() -> int:
    """How many processes share the work; 1 where there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def meeting_place(device: torch.device) -> torch.device:
    """Where sizes and labels are exchanged: on the host if the processes can meet there, else on the device.

    To read them from a GPU is to wait for it.
    """
    return torch.device("cpu") if "cpu:" in dist.get_backend_config() else device


def gather_rows(rows: Tensor) -> tuple[Tensor, slice]:
    """The rows (N, ...) of all processes in order of rank, and where ours are. N may differ, and may be zero.

    The gradient of our rows is the sum of what all processes make of them.
    """
    place = meeting_place(rows.device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=place) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=place))
    counts = torch.cat(sizes).tolist()
    begin = sum(counts[: dist.get_rank()])
    everyone: Tensor = _GatherRows.apply(rows, counts, begin)  # type: ignore[no-untyped-call]
    return everyone, slice(begin, begin + len(rows))


def sum_over_processes(loss: Tensor) -> Tensor:
    """The sum of every process's share of a loss.

    Its gradient is multiplied by the number of processes, because `DistributedDataParallel` divides by it.
    """
    total: Tensor = _SumOverProcesses.apply(loss)  # type: ignore[no-untyped-call]
    return total


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], begin: int) -> Tensor:
        ctx.mine = slice(begin, begin + len(rows))
        # Collectives want equal shapes: short batches are padded to the longest and cut again.
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad[ctx.mine], None, None


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        total = loss.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * world_size()
