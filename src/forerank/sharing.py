"""Work shared out among the processes that `torchrun` started; one process alone has all of it.

Joining the others is the command's business (`forerank.training.processes.joined`). What is here asks torch
whether that has happened, so that the rest of the code is the same for one process and for many.
"""

import os
from typing import TypeVar

T = TypeVar("T")


def rank() -> int:
    """The number of this process among the others, 0 for the first.

    >>> rank(), count()
    (0, 1)
    """
    return int(os.environ.get("RANK", "0")) if count() > 1 else 0


def count() -> int:
    """How many processes have joined to do this work."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 1  # without asking torch, whose import takes a second
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else 1


def exchange(value: T) -> list[T]:
    """The values of all processes, by rank; every process has to come here.

    >>> exchange("mine")
    ['mine']
    """
    if count() == 1:
        return [value]
    import torch.distributed as dist

    # torch pickles the values: they go between the processes of one run and never through a file.
    values: list[T] = [value] * count()
    dist.all_gather_object(values, value)
    return values


def gather(value: T) -> list[T]:
    """The values of all processes, by rank, in the first one; nothing in the others, which all come here.

    >>> gather("mine")
    ['mine']
    """
    if count() == 1:
        return [value]
    import torch.distributed as dist

    values: list[T] | None = [value] * count() if rank() == 0 else None
    dist.gather_object(value, values)
    return values or []
