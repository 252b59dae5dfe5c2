"""What the plots show: similarities of positives and negatives, and where first positives stand."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerank.ranking.hard_rows import UnitRows


@dataclass(frozen=True)
class SimilarityHistogram:
    """Shares of pairs in equal bins of similarity."""

    edges: NDArray[np.float64]  # (B + 1,)
    positives: NDArray[np.float64]  # (B,) adds up to 1
    negatives: NDArray[np.float64]  # (B,)


def similarity_histogram(
    rows: UnitRows,
    labels: NDArray[np.int64],
    queries: NDArray[np.int64],
    gallery: NDArray[np.int64],
    *,
    ignore: NDArray[np.int64] | None = None,
    bins: int = 100,
    sample: int = 1000,
    seed: int = 0,
) -> SimilarityHistogram:
    """Histogram over up to `sample` random queries, each against the whole gallery.

    The query itself is left out, and so are items of the query's label and its `ignore` code.
    """
    generator = np.random.default_rng(seed)
    some = np.sort(generator.choice(queries, min(sample, len(queries)), replace=False))
    edges = np.linspace(-1.0, 1.0, bins + 1)
    histogram = np.zeros((2, bins))
    unit = rows.float32(some)
    for start in range(0, len(gallery), 4096):
        items = gallery[start : start + 4096]
        similarity = (unit @ rows.float32(items).T).cpu().numpy()  # (S, G)
        where = np.clip(((similarity + 1) * (bins / 2)).astype(np.int64), 0, bins - 1)
        positive = labels[some][:, None] == labels[items]
        counted = some[:, None] != items
        if ignore is not None:
            counted &= ignore[some][:, None] != ignore[items]
        for row, mask in enumerate((positive & counted, ~positive)):
            histogram[row] += np.bincount(where[mask], minlength=bins)
    positives, negatives = histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1)
    return SimilarityHistogram(edges, positives, negatives)
