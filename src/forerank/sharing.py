"""Work shared out among the processes that `torchrun` started; one process alone has all of it.

Joining the others is the command's business (`forerank.training.processes.joined`). What is here asks torch
whether that has happened, so that the rest of the code is the same for one process and for many.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from forerank.errors import InputError

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


@contextmanager
def first_of_machine_first() -> Iterator[None]:
    """Let one process of each machine go through a block before the others, which find what it prepared.

    >>> with first_of_machine_first():
    ...     "a network is converted once, not by all processes at the same time"
    'a network is converted once, not by all processes at the same time'
    """
    first = int(os.environ.get("LOCAL_RANK", rank())) == 0
    if not first:
        exchange(None)
    try:
        yield
    finally:  # also after an error, or the others would wait for ever
        if first:
            exchange(None)


def refuse_differences(computed_with: Mapping[str, object]) -> None:
    """Raise in every process, with the same sentence, unless all of them compute with the same things.

    What they compute goes into one result, where it can no longer be told apart.

    >>> refuse_differences({"engine": "torch", "precision": "fp32"})
    """
    everyone = exchange(dict(computed_with))
    for process, theirs in enumerate(everyone):
        different = [name for name, value in everyone[0].items() if theirs[name] != value]
        if different:
            said = " and ".join(f"{name} ({everyone[0][name]} and {theirs[name]})" for name in different)
            raise InputError(
                f"processes 0 and {process} of this run differ in {said}, and their vectors would be mixed: "
                "give all processes the same options, and all machines the same model and packages."
            )
