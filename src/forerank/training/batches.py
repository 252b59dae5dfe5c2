"""The stream of training batches: a function of the seed and the step, wherever it begins."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from forerank.data import ClassBalancedSampler, ImageDataset, Table
from forerank.data.dataset import collate
from forerank.errors import InputError
from forerank.training.interruption import leave_signals_to_parent
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe
from forerank.training.whitening import Spread, principal_axes, within_class_spread

# Inputs (n, ...) on the device; label ids (n,) and rows of the table (n,) on the host, which decides by them.
Chunk = tuple[Tensor, Tensor, Tensor]
Key = tuple[int, int]  # row of the table, number of the random view
SMALL_IMAGES = 64  # images up to this side are decoded once and kept in memory


class BatchPlan:
    """Which rows of the training table belong to a step: this process's share of the global batch.

    Args:
        groups: (n,) group of each row. Every batch then comes from one group, the groups in turn; rows with a
            group below 0 are left out. None: all rows are one group.
    """

    def __init__(
        self, recipe: Recipe, table: Table, processes: Processes, groups: NDArray[np.int64] | None = None
    ) -> None:
        assert recipe.batch.batch_size is not None
        self.processes, self.images_per_class = processes, recipe.batch.images_per_class
        self.share = recipe.batch.batch_size // processes.count  # the most images of a step in this process
        everything = _sampler(recipe, table, np.arange(len(table)), processes)
        assert everything is not None
        self.steps_per_epoch = len(everything)
        self._groups = [(np.arange(len(table)), everything)]
        if groups is not None:
            members = [np.flatnonzero(groups == g) for g in range(int(groups.max()) + 1)]
            samplers = [_sampler(recipe, table, rows, processes, g + 1) for g, rows in enumerate(members)]
            self._groups = [(r, s) for r, s in zip(members, samplers, strict=True) if s is not None]
            if not self._groups:
                raise InputError(
                    f"none of the {len(members)} groups of training images has {max(2, processes.count)} "
                    "classes of two images or more: use fewer groups"
                )
        self._epochs: dict[tuple[int, int], list[list[int]]] = {}

    def keys(self, step: int) -> list[Key]:
        """(row, draw) of each image of a step, steps counted from 0 over all epochs.

        Draws are numbered by step, so that no random view of an image comes twice.
        """
        visit, which = divmod(step, len(self._groups))
        rows, sampler = self._groups[which]
        epoch, place = divmod(visit, len(sampler))
        if (which, epoch) not in self._epochs:
            sampler.set_epoch(epoch)
            # The data loader asks ahead of the loop, so around a boundary two epochs are in use.
            self._epochs = {k: b for k, b in self._epochs.items() if k[0] != which or abs(k[1] - epoch) <= 1}
            self._epochs[which, epoch] = list(sampler)
        draw = step * self.images_per_class
        batch = self._epochs[which, epoch][place]
        # Whole classes for each process; where they cannot be shared evenly, some have one more.
        edges = [
            sampler.classes_per_batch * rank // self.processes.count * self.images_per_class
            for rank in (self.processes.rank, self.processes.rank + 1)
        ]
        mine = batch[slice(*edges)]
        return [(int(rows[i]), draw + j % self.images_per_class) for j, i in enumerate(mine)]


def _sampler(
    recipe: Recipe, table: Table, rows: NDArray[np.int64], processes: Processes, group: int = 0
) -> ClassBalancedSampler | None:
    """The batches of some rows; None if they hold too few classes. `group` 0 is the whole table."""
    batch, labels = recipe.batch, table.label_ids[rows]
    assert batch.batch_size is not None
    classes = batch.batch_size // batch.images_per_class
    if group:  # a group may have fewer classes than a batch
        usable = int((np.bincount(labels) >= 2).sum()) if len(labels) else 0
        classes = min(classes, usable)
        if classes < max(2, processes.count):  # every process has at least one class of a batch
            return None
    categories = table.category if batch.super_categories and not group else None
    return ClassBalancedSampler(
        labels,
        classes,
        batch.images_per_class,
        seed=recipe.seed + 7919 * group,
        mode=batch.sampling,
        categories=categories,
        categories_per_batch=batch.super_categories or 1,
    )


@dataclass(frozen=True)
class Batch:
    """One step's images, chunk by chunk; every chunk carries its own labels and rows.

    Chunks that fit into memory together are lists. Others are read from the disk twice, each time in order.
    """

    chunks: Iterable[Chunk]
    again: Iterable[Chunk]  # the same chunks once more
    chunked: bool  # more than one chunk


class _Keys(Sampler[list[Key]]):
    """What the data loader is asked for: a list of keys for every chunk, in the order of reading."""

    def __init__(self, plan: BatchPlan, steps: range, chunk: int, readings: int) -> None:
        self.plan, self.steps, self.chunk, self.readings = plan, steps, chunk, readings

    def __iter__(self) -> Iterator[list[Key]]:
        for step in self.steps:
            keys = self.plan.keys(step)
            for _ in range(self.readings):
                for start in range(0, len(keys), self.chunk):
                    yield keys[start : start + self.chunk]


class Batches:
    """Batches of steps `start` to `stop`, with the seconds spent waiting for data in `waited`."""

    def __init__(
        self, recipe: Recipe, plan: BatchPlan, data: Dataset[Any], steps: range, device: torch.device
    ) -> None:
        self.plan, self.steps, self.device = plan, steps, device
        self.waited = 0.0
        self.chunk = min(recipe.batch.micro_batch or plan.share, plan.share)
        held = plan.share * _bytes_each(data)
        self.readings = 2 if self.chunk < plan.share and held > recipe.batch.hold_mb * 2**20 else 1
        workers = loading_processes(recipe, data)
        self.loader = DataLoader(
            data,
            batch_sampler=_Keys(plan, self.steps, self.chunk, self.readings),
            num_workers=workers,
            collate_fn=collate,
            pin_memory=device.type == "cuda",
            worker_init_fn=leave_signals_to_parent,
            generator=torch.Generator().manual_seed(recipe.seed),  # the loader's own draw leaves ours alone
            prefetch_factor=4 if workers else None,
        )

    def __iter__(self) -> Iterator[Batch]:
        self.waited = 0.0
        stream = self._timed(iter(self.loader))
        for step in self.steps:
            chunks = math.ceil(len(self.plan.keys(step)) / self.chunk)
            if self.readings == 2:
                first, second = islice(stream, chunks), islice(stream, chunks)
                yield Batch(first, second, chunks > 1)
                for _ in chain(first, second):  # what the step left unread must not reach the next step
                    pass
            else:
                held = list(islice(stream, chunks))
                yield Batch(held, held, chunks > 1)

    def _timed(self, loader: Iterator[Chunk]) -> Iterator[Chunk]:
        while True:
            began = time.perf_counter()
            chunk = next(loader, None)
            self.waited += time.perf_counter() - began
            if chunk is None:
                return
            inputs, labels, rows = chunk
            yield inputs.to(self.device, non_blocking=True), labels, rows


class BatchStream:
    """The batches of a run, one after the other.

    Args:
        open_batches: step -> the batches from this step on, up to where the next ones have to be opened.
        step: where the run stands.
    """

    def __init__(self, open_batches: Callable[[int], Batches], step: int) -> None:
        self._open, self._step = open_batches, step
        self._batches: Batches | None = None
        self._iterator: Iterator[Batch] = iter(())
        self._waited_before = 0.0

    @property
    def waited(self) -> float:
        """Seconds spent waiting for data so far."""
        return self._waited_before + (self._batches.waited if self._batches is not None else 0.0)

    def __next__(self) -> Batch:
        if self._batches is None or self._step not in self._batches.steps:
            self._waited_before, self._batches = self.waited, None
            self._iterator = iter(())  # ends the loading processes before new ones start
            self._batches = self._open(self._step)
            self._iterator = iter(self._batches)
        self._step += 1
        return next(self._iterator)


def _bytes_each(data: object) -> int:
    """Memory of one input as float32; no row is read for it, since the first may be one that is skipped."""
    if isinstance(data, ImageDataset):
        return math.prod(data.preprocessing.shape) * 4
    return int(data.features[0].numel() * 4) if isinstance(data, FeatureRows) else 0


def loading_processes(recipe: Recipe, data: object) -> int:
    """How many processes read images: none for what is in memory already."""
    if not isinstance(data, ImageDataset) or data.preprocessing.resize <= SMALL_IMAGES:
        return 0
    if recipe.data.workers is not None:
        return recipe.data.workers
    return min(8, max(1, (os.cpu_count() or 2) // 2))


class FeatureRows(Dataset[Any]):
    """Cached backbone features as a data set: row -> (features (C,), label id, row), alike at every step."""

    def __init__(self, features: Tensor, labels: Sequence[int]) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def spread(self) -> Spread:
        """The spread within classes, computed once however many heads are tried."""
        return within_class_spread(self.features, torch.tensor(self.labels))

    @cached_property
    def axes(self) -> Tensor:
        """The principal axes, computed once."""
        return principal_axes(self.features)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, int, int]:
        row = key[0] if isinstance(key, tuple) else key
        return self.features[row], int(self.labels[row]), row

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """A whole batch in one pass, which the data loader asks for."""
        rows = torch.tensor([key[0] if isinstance(key, tuple) else key for key in keys])
        return self.features[rows], self._label_ids[rows], rows

    @cached_property
    def _label_ids(self) -> Tensor:
        return torch.tensor(self.labels)
