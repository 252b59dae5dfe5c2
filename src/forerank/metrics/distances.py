"""How tight the classes are and how far apart: the paper's dists@intra and dists@inter."""

import numpy as np
import torch
from numpy.typing import NDArray

from forerank.ranking.hard_rows import UnitRows, blocks


def class_distances(
    rows: UnitRows, labels: NDArray[np.int64], chosen: NDArray[np.int64] | None = None
) -> tuple[float, float]:
    """dists@intra and dists@inter of the chosen rows (default: all), in cosine distance, 1 - cosine.

    Intra: the mean over classes, of at least two images, of the mean distance of two different images.
    Inter: the mean distance between two different classes' centres, each the normalised mean of its class.
    Both come from class sums alone: the squared length of a sum of n unit vectors is n plus all pairwise
    cosines, so no pair is looped over.

    Example:
        >>> from forerank.ranking.hard_rows import unit_rows
        >>> rows = unit_rows(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> class_distances(rows, np.array([0, 0, 1, 2]))
        (0.0, 1.3333333333333333)
    """
    chosen = np.arange(len(rows), dtype=np.int64) if chosen is None else chosen
    names, code = np.unique(labels[chosen], return_inverse=True)
    sums = torch.zeros(len(names), rows.dim, dtype=torch.float64, device=rows.device)  # (L, D)
    # |x|^2 is 1 only up to rounding: adding up what it really is makes equal vectors exactly 0 apart.
    squares = torch.zeros(len(names), dtype=torch.float64, device=rows.device)
    where = torch.from_numpy(code).to(rows.device)
    for start, stop in blocks(len(chosen), rows.dim):
        unit = rows.float64(chosen[start:stop])
        sums.index_add_(0, where[start:stop], unit)
        squares.index_add_(0, where[start:stop], unit.square().sum(dim=1))

    size = torch.bincount(where, minlength=len(names)).double()
    several = size > 1
    intra = float("nan")
    if bool(several.any()):
        pairs = size[several] * (size[several] - 1)
        cosine = (sums[several].square().sum(dim=1) - squares[several]) / pairs
        intra = max(0.0, float((1.0 - cosine).mean()))

    inter = float("nan")
    if len(names) > 1:
        length = sums.norm(dim=1, keepdim=True)
        # A class whose vectors cancel has no centre direction; its centre stays the zero vector (distance 1).
        centres = torch.where(length > 1e-12, sums / length.clamp_min(1e-300), torch.zeros_like(sums))
        total = centres.sum(dim=0).square().sum() - centres.square().sum()
        inter = float(1.0 - total / (len(names) * (len(names) - 1)))
    return intra, inter
