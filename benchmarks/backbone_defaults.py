"""Zero-shot Recall@1 of pretrained backbones by pooling and image size: what the defaults were chosen by.

    python benchmarks/backbone_defaults.py PATH_TO_CUB:test ./flowers ./groceries

Each source is a folder or a data set that Forerank reads, with `:PART` behind it for one part of it. At most
`--images` images are taken, spread evenly over the classes. Every image is a query against all others. The
number behind each value is the change against average pooling at the first size, with its standard error over
the queries (both are measured on the same queries, so only those that changed count).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from forerank.console import format_table
from forerank.data import Table, open_table, read_image
from forerank.data.preprocessing import evaluation_array
from forerank.models import EmbeddingModel, create_model, keep_freed_memory
from forerank.models.inference import open_network
from forerank.models.pipeline import compute_vectors

Hits = NDArray[np.bool_]


def open_sample(source: str, images: int) -> Table:
    """At most `images` rows of a source, as many of each class as of any other."""
    place, _, part = source.partition(":")
    table = open_table(place)
    if part:
        table = table.select(part)
    each = max(2, images // len(table.classes))
    seen: dict[int, int] = {}
    keep = np.zeros(len(table), dtype=bool)
    for row in np.random.default_rng(0).permutation(len(table)):
        label = int(table.label_ids[row])
        seen[label] = seen.get(label, 0) + 1
        keep[row] = seen[label] <= each
    return table.where(keep)


class BothPoolings(nn.Module):
    """Images to the average and the generalised mean of one feature map, (N, 2 C)."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.backbone, self.pool = model.backbone, model.pool

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        assert self.pool is not None
        return torch.cat([features.mean((2, 3)), self.pool(features)], dim=1)


def pooled(table: Table, backbone: str, size: int) -> tuple[Tensor, Tensor]:
    """Unit features (N, C) by average pooling and by GeM, from one pass over the images."""
    model = create_model(backbone, embedding_dim=None, pooling="gem").eval()
    views = model.preprocessing.at_size(size)
    network = open_network(BothPoolings(model).eval(), views.shape, f"both-{backbone}-{size}")

    def read(file: Path) -> NDArray[np.float32]:
        return evaluation_array(read_image(file, shrink_to=views.resize), views)

    batches = [vectors for _, vectors, _ in compute_vectors(read, table.files, network, batch_size=32)]
    average, gem = torch.from_numpy(np.concatenate(batches)).chunk(2, dim=1)
    return F.normalize(average), F.normalize(gem)


def first_is_right(vectors: Tensor, labels: NDArray[np.int64]) -> Hits:
    """For each row (N,): whether its nearest other row has the same label."""
    similarities = vectors @ vectors.T
    similarities.fill_diagonal_(-torch.inf)
    right: Hits = labels[similarities.argmax(1).numpy()] == labels
    return right


def shown(hits: Hits, base: Hits) -> str:
    """Recall@1 in percent, the change against the base, and the standard error of that change."""
    change = hits.astype(float) - base
    error = change.std() / len(change) ** 0.5
    return f"{100 * hits.mean():.1f} ({100 * change.mean():+.1f} ± {100 * error:.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table per source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", help="FOLDER or FOLDER:PART")
    parser.add_argument("--backbones", nargs="+", default=["efficientnet-lite0", "efficientnet-lite2"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 256, 288, 320])
    parser.add_argument("--images", type=int, default=1500)
    options = parser.parse_args(arguments)
    keep_freed_memory()
    for source in options.sources:
        table = open_sample(source, options.images)
        labels = table.label_ids
        rows: list[list[object]] = []
        gems: dict[tuple[str, int], Tensor] = {}
        for backbone in options.backbones:
            base: Hits | None = None
            for size in options.sizes:
                average, gem = pooled(table, backbone, size)
                gems[backbone, size] = gem
                hits = [first_is_right(vectors, labels) for vectors in (average, gem)]
                base = hits[0] if base is None else base
                rows.append([backbone, size, *[shown(h, base) for h in hits]])
        if len(options.backbones) == 2:
            first, second = options.backbones
            for one in options.sizes:
                for other in options.sizes:
                    together = torch.cat([gems[first, one], gems[second, other]], dim=1)
                    right = first_is_right(together, labels)
                    rows.append([f"{first} + {second}", f"{one} + {other}", "", f"{100 * right.mean():.1f}"])
        print(f"\n{table.name}: {len(table):,} images of {len(table.classes):,} classes", flush=True)
        print(format_table(["backbone", "size", "average", "GeM"], rows), flush=True)


if __name__ == "__main__":
    main()
