"""k-means on the unit sphere and the normalised mutual information of clusters and labels."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.ranking.hard_rows import UnitRows


def normalized_mutual_information(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Mutual information of two labellings over the arithmetic mean of their entropies.

    Example:
        >>> normalized_mutual_information(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
        1.0
    """
    a = np.unique(first, return_inverse=True)[1].astype(np.int64)
    b = np.unique(second, return_inverse=True)[1].astype(np.int64)
    joint = np.unique(a * (int(b.max()) + 1) + b, return_counts=True)[1]
    entropy_a, entropy_b, entropy = (_entropy(c) for c in (np.bincount(a), np.bincount(b), joint))
    if entropy_a + entropy_b == 0:
        return 1.0  # both put everything in one cluster: they agree
    return float(np.clip(2 * (entropy_a + entropy_b - entropy) / (entropy_a + entropy_b), 0.0, 1.0))


def _entropy(counts: NDArray[np.int64]) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def kmeans(
    rows: UnitRows,
    clusters: int,
    *,
    iterations: int = 20,
    seed: int = 0,
    chosen: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], float]:
    """Cluster unit vectors: assignment (N,) and the within-cluster sum of squares.

    Lloyd's iterations from `clusters` different random points; an empty cluster takes half of the largest.
    """
    index = np.arange(len(rows), dtype=np.int64) if chosen is None else chosen
    points = rows.float32(index)  # (N, D)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randperm(len(index), generator=generator)[:clusters]
    centres = points[start.to(points.device)].clone()  # (K, D)
    assigned, distance = _assign(points, centres)
    for _ in range(iterations):
        centres = _update(points, assigned, centres)
        assigned, distance = _assign(points, centres)
    return assigned.cpu().numpy(), float(distance.double().sum())


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest centre (N,) and squared distance (N,): |x|^2 - 2 (x.c - |c|^2 / 2)."""
    half = centres.square().sum(dim=1) / 2
    assigned = torch.empty(len(points), dtype=torch.int64, device=points.device)
    best = torch.empty(len(points), device=points.device)
    step = max(1, (1 << 22) // len(centres))
    for i in range(0, len(points), step):
        score = torch.addmm(-half, points[i : i + step], centres.T)
        best[i : i + step], assigned[i : i + step] = score.max(dim=1)
    return assigned, (points.square().sum(dim=1) - 2 * best).clamp_min(0)


def _update(points: Tensor, assigned: Tensor, centres: Tensor) -> Tensor:
    sums = torch.zeros_like(centres).index_add_(0, assigned, points)
    size = torch.bincount(assigned, minlength=len(centres)).float()
    means = sums / size.clamp_min(1)[:, None]
    for empty in torch.nonzero(size == 0).flatten().tolist():
        largest = int(size.argmax())
        # Part it in two by a small push either way, as faiss does.
        sign = torch.ones(centres.shape[1], device=centres.device)
        sign[::2] = -1
        means[empty] = means[largest] * (1 + sign / 1024)
        means[largest] = means[largest] * (1 - sign / 1024)
        size[empty] = size[largest] / 2
        size[largest] = size[largest] / 2
    return means
