"""The stream of training batches: a function of the seed and the step, wherever it begins."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from forerank.data import ClassBalancedSampler, ImageDataset, Table
from forerank.data.dataset import collate
from forerank.training.interruption import leave_signals_to_parent
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe

Chunk = tuple[Tensor, Tensor, Tensor]  # inputs (n, ...), label ids (n,), rows of the table (n,)
Key = tuple[int, int]  # row of the table, number of the random view
SMALL_IMAGES = 64  # images up to this side are decoded once and kept in memory


class Plan:
    """Which rows of the training table belong to a step: this process's share of the global batch."""

    def __init__(self, recipe: Recipe, table: Table, processes: Processes) -> None:
        batch = recipe.batch
        assert batch.batch_size is not None
        self.sampler = ClassBalancedSampler(
            table.label_ids,
            batch.batch_size // batch.images_per_class,
            batch.images_per_class,
            seed=recipe.seed,
            rank=processes.rank,
            world_size=processes.count,
            mode=batch.sampling,
            categories=table.category if batch.super_categories else None,
            categories_per_batch=batch.super_categories or 1,
            with_draws=True,
        )
        self.steps_per_epoch = len(self.sampler)
        self._epochs: dict[int, list[list[Key]]] = {}

    def keys(self, step: int) -> list[Key]:
        """(row, draw) of each image of a step, steps counted from 0 over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch not in self._epochs:
            self.sampler.set_epoch(epoch)
            # The data loader asks ahead of the loop, so around a boundary two epochs are in use.
            self._epochs = {e: b for e, b in self._epochs.items() if abs(e - epoch) <= 1}
            self._epochs[epoch] = list(self.sampler)
        return self._epochs[epoch][place]


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

    def __init__(self, plan: Plan, steps: range, chunk: int, readings: int) -> None:
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
        self, recipe: Recipe, plan: Plan, data: Dataset[Any], steps: range, device: torch.device
    ) -> None:
        self.plan, self.steps, self.device = plan, steps, device
        self.waited = 0.0
        share = len(plan.keys(0))
        self.chunk = min(recipe.batch.micro_batch or share, share)
        self.chunked = self.chunk < share
        self.readings = 2 if self.chunked and share * _bytes_each(data) > recipe.batch.hold_mb * 2**20 else 1
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
                yield Batch(first, second, self.chunked)
                for _ in chain(first, second):  # what the step left unread must not reach the next step
                    pass
            else:
                held = list(islice(stream, chunks))
                yield Batch(held, held, self.chunked)

    def _timed(self, loader: Iterator[Chunk]) -> Iterator[Chunk]:
        while True:
            began = time.perf_counter()
            found = next(loader, None)
            self.waited += time.perf_counter() - began
            if found is None:
                return
            inputs, labels, rows = found
            yield inputs.to(self.device, non_blocking=True), labels.to(self.device), rows


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

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, int, int]:
        row = key[0] if isinstance(key, tuple) else key
        return self.features[row], int(self.labels[row]), row
