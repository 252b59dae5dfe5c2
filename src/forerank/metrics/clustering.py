"""k-means on the unit sphere and the normalised mutual information of clusters and labels."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.errors import InputError
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

    Lloyd's iterations from different random points. A centre whose members did not change has not moved,
    so only centres that moved are compared with all points, and all centres only with points whose own
    centre moved: the same result for a fraction of the work, and an early end when nothing moves. The points
    are read into float32 once and stay in memory.

    Example:
        >>> from forerank.metrics import unit_rows
        >>> rows = unit_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]]))
        >>> assigned, squares = kmeans(rows, 2)
        >>> bool(assigned[0] == assigned[2] != assigned[1] == assigned[3]), round(squares, 4)
        (True, 0.0099)
    """
    index = np.arange(len(rows), dtype=np.int64) if chosen is None else chosen
    if not 1 <= clusters <= len(index):
        raise InputError(f"{len(index):,} points cannot form {clusters:,} clusters.")
    points = rows.float32(index)  # (N, D)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randperm(len(index), generator=generator)[:clusters]
    centres = points[start.to(points.device)].clone()  # (K, D)
    best, assigned = _nearest(points, centres)
    moved = torch.ones(clusters, dtype=torch.bool, device=points.device)
    for _ in range(iterations):
        moved = _move(points, best, assigned, centres, moved)
        if not bool(moved.any()):
            break
        before = assigned.clone()
        _reassign(points, centres, moved, best, assigned)
        changed = before != assigned
        moved = torch.zeros_like(moved)
        moved[before[changed]] = True
        moved[assigned[changed]] = True
    squares = sum(
        float((points[i : i + 4096] - centres[assigned[i : i + 4096]]).double().square().sum())
        for i in range(0, len(points), 4096)
    )
    return assigned.cpu().numpy(), squares


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """x.c - |c|^2 / 2, greatest for the nearest centre: that value (N,) and which centre (N,)."""
    half = centres.square().sum(dim=1) / 2
    best = torch.empty(len(points), device=points.device)
    assigned = torch.empty(len(points), dtype=torch.int64, device=points.device)
    step = max(64, (1 << 22) // len(centres))
    score = torch.empty(step, len(centres), device=points.device)
    for i in range(0, len(points), step):
        some = points[i : i + step]
        values = torch.mm(some, centres.T, out=score[: len(some)])
        # max, not argmax, which is several times slower on the CPU
        best[i : i + step], assigned[i : i + step] = values.sub_(half).max(dim=1)
    return best, assigned


def _reassign(points: Tensor, centres: Tensor, moved: Tensor, best: Tensor, assigned: Tensor) -> None:
    """Give every point its nearest centre, knowing which centres moved since its last comparison."""
    those = torch.nonzero(moved).flatten()
    value, which = _nearest(points, centres[those])
    which = those[which]
    lost = moved[assigned]  # their best centre is no longer where it was
    closer = lost | (value > best)
    best[closer], assigned[closer] = value[closer], which[closer]
    rest = torch.nonzero(~moved).flatten()
    if len(rest) and bool(lost.any()):
        some = torch.nonzero(lost).flatten()
        value, which = _nearest(points[some], centres[rest])
        closer = value > best[some]
        best[some[closer]], assigned[some[closer]] = value[closer], rest[which[closer]]


def _move(points: Tensor, best: Tensor, assigned: Tensor, centres: Tensor, changed: Tensor) -> Tensor:
    """Put the changed centres in the middle of their members, in place; which centres moved (K,)."""
    size = torch.bincount(assigned, minlength=len(centres))
    members = torch.nonzero(changed[assigned]).flatten()
    sums = torch.zeros_like(centres).index_add_(0, assigned[members], points[members])
    refill = changed & (size > 0)
    centres[refill] = sums[refill] / size[refill, None]
    moved = refill.clone()
    # An empty cluster begins again at one of the points farthest from their centres.
    empty = torch.nonzero(size == 0).flatten()
    if len(empty):
        centres[empty] = points[best.argsort(stable=True)[: len(empty)]]
        moved[empty] = True
    return moved
