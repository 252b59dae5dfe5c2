"""One process or many in the same lines of code: the rank of this process, and what the others hold.

Every function here does the obvious thing in a single process, so the loop never asks how many there are.
"""

import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from forerank.console import progress_bar
from forerank.errors import ForerankError

# A process that waits this long for another one takes it for dead. Long enough for rank 0 to write a
# checkpoint and cluster a large test set while the others wait.
PATIENCE = timedelta(minutes=30)
# Where the processes share out images, one may be hours behind the others at the end, on a slower machine or
# because it alone makes the index complete. One that was killed is noticed at once all the same.
LONG_PATIENCE = timedelta(days=1)
BUCKET_BYTES = 25 * 2**20  # gradients are averaged in messages of about this size


class LostProcessError(ForerankError):
    """Another process of this run ended or stopped answering."""


@dataclass(frozen=True)
class Processes:
    """This process among the others: rank `rank` of `count`, computing on `device`."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0


def is_first_process() -> bool:
    """Whether this process is the one that speaks, by the environment that `torchrun` sets."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def joined(
    device: str, advice: str = "start the same command again", patience: timedelta = PATIENCE
) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, or be the only one; leave them at the end.

    Args:
        device: of this process; "cuda" becomes the GPU of its own.
        advice: what to do if another process is lost.
        patience: how long a process waits for another one that says nothing.

    >>> with joined("cpu") as processes:
    ...     processes.rank, processes.count
    (0, 1)
    """
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    if count == 1 or dist.is_initialized():
        yield Processes(rank if count > 1 else 0, count, place)
        return
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"  # tensors of the host meet too
    dist.init_process_group(backend, timeout=patience)
    try:
        with _told_by_torchrun(advice), readable_loss_of_processes(advice):
            yield Processes(rank, count, place)
    except ForerankError as error:
        error.said_elsewhere = not _is_first_to_speak()
        raise
    finally:
        dist.destroy_process_group()


def _is_first_to_speak() -> bool:
    """Whether no other process of this run has had an error to tell: the first is the cause of the others."""
    try:
        spoken: int = dist.distributed_c10d._get_default_store().add("forerank/spoken", 1)
    except RuntimeError:  # whoever kept the count is gone
        return True
    return spoken == 1


@contextmanager
def _told_by_torchrun(advice: str) -> Iterator[None]:
    """Say why this process ends: when one dies, torchrun asks the others to stop, often before they notice.

    Who handles that signal already, such as the training loop, goes on doing so.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _lost("torchrun asked this one to stop", advice)

    signal.signal(signal.SIGTERM, stop)
    afterwards = signal.SIG_DFL
    try:
        yield
    except LostProcessError:
        afterwards = signal.SIG_IGN  # this process ends by itself, and first it has something to say
        raise
    finally:
        signal.signal(signal.SIGTERM, afterwards)


def _lost(reason: str, advice: str) -> LostProcessError:
    return LostProcessError(f"another process of this run ended or stopped answering ({reason}); {advice}")


@contextmanager
def readable_loss_of_processes(advice: str) -> Iterator[None]:
    """Turn the error of a broken collective call into a sentence."""
    try:
        yield
    except RuntimeError as error:
        signs = (
            "Connection closed",
            "Connection reset",
            "gloo",
            "NCCL",
            "Broken pipe",
            "Timed out",
            "timed out",
        )
        if isinstance(error, dist.DistBackendError) or any(sign in str(error) for sign in signs):
            raise _lost(str(error).strip().splitlines()[0], advice) from error
        raise


@contextmanager
def bar(title: str, total: int, processes: Processes) -> Iterator[Any]:
    """A progress bar of the first process; the others advance silently."""
    if not processes.first:
        yield lambda steps=1, note="": None
        return
    with progress_bar(title, total) as advance:
        yield advance


def average_gradients(parameters: Iterable[Tensor], processes: Processes) -> None:
    """Replace every gradient by its mean over the processes, a bucket at a time."""
    if processes.count == 1:
        return
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        bucket.append(parameter.grad)
        size += parameter.grad.numel() * parameter.grad.element_size()
        if size >= BUCKET_BYTES:
            _average(bucket, processes)
            bucket, size = [], 0
    if bucket:
        _average(bucket, processes)


def _average(tensors: Sequence[Tensor], processes: Processes) -> None:
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    flat /= processes.count
    for tensor, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def largest(value: int, processes: Processes) -> int:
    """The largest of the processes' values, known to all of them."""
    if processes.count == 1:
        return value
    tensor = torch.tensor(value)  # of the host: nobody waits for a GPU
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return int(tensor.item())


def from_first(tensor: Tensor, processes: Processes) -> Tensor:
    """The first process's tensor, in all of them; it has the same shape and type in each."""
    if processes.count == 1:
        return tensor
    there = tensor.to(processes.device)
    dist.broadcast(there, 0)
    return there.to(tensor.device)


def shard(n: int, processes: Processes) -> range:
    """The rows out of `n` that this process takes.

    >>> [list(shard(5, Processes(rank, 2, torch.device("cpu")))) for rank in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """
    each = -(-n // processes.count)
    return range(min(n, processes.rank * each), min(n, (processes.rank + 1) * each))


def collect(rows: Tensor, n: int, processes: Processes) -> Tensor:
    """The (n, ...) rows of all processes, from each one's `shard`."""
    if processes.count == 1:
        return rows
    each = -(-n // processes.count)
    padded = rows.new_zeros((each, *rows.shape[1:]), device=processes.device)
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(processes.count)]
    dist.all_gather(parts, padded)
    return torch.cat(parts)[:n].to(rows.device)


def wait_for_all(processes: Processes) -> None:
    """Return when every process has come here."""
    if processes.count > 1:
        dist.barrier()
