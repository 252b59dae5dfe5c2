"""Embed a part of the data, sharded over the processes, and measure retrieval on it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from forerank.data import ImageDataset, Table
from forerank.data.dataset import collate
from forerank.data.preprocessing import Views
from forerank.metrics import Evaluation, evaluate
from forerank.metrics.inputs import checked_ks
from forerank.metrics.registry import usual_metrics
from forerank.models.pipeline import compute_vectors
from forerank.training.batches import SMALL_IMAGES, FeatureRows
from forerank.training.processes import Processes, bar, collect, shard
from forerank.training.recipe import Recipe

Encode = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Part:
    """Training, validation or test rows with what the encoder reads: images, or cached features."""

    table: Table
    data: Dataset[Any]
    title: str


@dataclass(frozen=True)
class Embedded:
    """Embeddings (n, D) float32 of the rows that could be read, and the table of just those rows."""

    vectors: np.ndarray
    table: Table


def embed(
    encode: Encode, part: Part, recipe: Recipe, processes: Processes, title: str | None = "embedding"
) -> Embedded:
    """Embed every row once, each process its share; all processes receive all rows."""
    rows = list(shard(len(part.table), processes))

    def network(views: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return encode(torch.from_numpy(views).to(processes.device)).float().cpu().numpy()

    vectors: np.ndarray | None = None
    with optional_bar(title, part, len(rows), processes) as advance:
        for positions, embedded, taken in _embedded_batches(part.data, rows, network, recipe):
            if vectors is None:
                # Rows that cannot be read stay NaN and are dropped below, whichever process met them.
                vectors = np.full((len(rows), embedded.shape[1]), np.nan, dtype=np.float32)
            vectors[positions] = embedded
            advance(taken)
    if vectors is None:  # more processes than rows: learn the width from the others
        vectors = np.empty((0, network(collate([part.data[0]])[0].numpy()).shape[1]), dtype=np.float32)
    everything = collect(torch.from_numpy(vectors), len(part.table), processes).numpy()
    readable = ~np.isnan(everything[:, 0])
    if readable.all():
        return Embedded(everything, part.table)
    return Embedded(everything[readable], part.table.where(readable))


def _embedded_batches(
    data: Dataset[Any], rows: Sequence[int], network: Callable[[np.ndarray], np.ndarray], recipe: Recipe
) -> Iterator[tuple[list[int], np.ndarray, int]]:
    """As `compute_vectors`; what lies in memory as one array is taken from it batch by batch."""
    size = recipe.evaluation.embed_batch
    if isinstance(data, FeatureRows) or (isinstance(data, ImageDataset) and data.gives_joined_batches):
        for start in range(0, len(rows), size):
            taken = rows[start : start + size]
            views, _, _ = collate(data.__getitems__(taken))
            yield list(range(start, start + len(taken))), network(views.numpy()), len(taken)
        return

    def read(row: int) -> np.ndarray | None:
        item = data[row]  # None: an image that cannot be read and is left out
        return None if item is None else item[0].numpy()

    # Small pictures that were kept are read by one thread: two would only wait for each other.
    from_files = isinstance(data, ImageDataset) and data.preprocessing.resize > SMALL_IMAGES
    yield from compute_vectors(read, rows, network, batch_size=size, workers=None if from_files else 1)


@contextmanager
def optional_bar(title: str | None, part: Part, total: int, processes: Processes) -> Iterator[Any]:
    """A bar, unless the caller shows one already."""
    if title is None:
        yield lambda steps=1, note="": None
        return
    with bar(f"{title} {part.title}", total, processes) as advance:
        yield advance


def measure(
    embedded: Embedded, recipe: Recipe, processes: Processes, *, full: bool, **options: Any
) -> Evaluation:
    """Retrieval metrics of embedded rows by the table's own protocol; all processes take part.

    Args:
        full: all metrics with confidence intervals, for the report; otherwise only what chooses a checkpoint.
        options: of `evaluate`, where they shall differ from the recipe's.
    """
    table = embedded.table
    queries, gallery = np.flatnonzero(table.is_query), np.flatnonzero(table.is_gallery)
    # A recipe is written before its gallery is known: its ks are cut to what a query can rank.
    ks = checked_ks(recipe.evaluation.ks if full else (1,), queries, gallery, cut=True)
    usual = {
        "ks": ks,
        "metrics": [*(usual_metrics() if full else ("recall@1", "map@r")), recipe.evaluation.choose_by],
        "nmi": recipe.evaluation.nmi,
        "ignore": table.sequence,
        "per_query": full,
        "categories": table.category if full else None,
        "bootstrap": 1000 if full else 0,
        "distributed": processes.count > 1,
        # Where the processes meet, and fastest; but counting needs float64, which MPS has not.
        "device": "cpu" if processes.device.type == "mps" else processes.device,
    }
    return evaluate(
        embedded.vectors, table.label_ids, queries=queries, gallery=gallery, **{**usual, **options}
    )


def image_part(table: Table, preprocessing: Views, recipe: Recipe, title: str, *, cache: bool) -> Part:
    """A part read as images."""
    data = ImageDataset(table, preprocessing, on_bad=recipe.data.on_bad, cache=cache, seed=recipe.seed)
    return Part(table, data, title)


def feature_part(table: Table, features: Tensor, title: str) -> Part:
    """A part read as cached features."""
    return Part(table, FeatureRows(features, table.label_ids.tolist()), title)
