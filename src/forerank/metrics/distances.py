"""How tight the classes are and how far apart: the paper's dists@intra and dists@inter."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.ranking.hard_rows import BLOCK_ELEMENTS, UnitRows, blocks


def class_distances(
    rows: UnitRows, labels: NDArray[np.int64], chosen: NDArray[np.int64] | None = None
) -> tuple[float, float]:
    """dists@intra and dists@inter of the chosen rows (default: all), in cosine distance, 1 - cosine.

    Intra: the mean over classes, of at least two images, of the mean distance of two different images.
    Inter: the mean distance between two different classes' centres, each the normalised mean of its class.
    NaN where there is nothing to average: no class of two images, only one class. Both come from class sums
    alone: the squared length of a sum of n unit vectors is n plus all pairwise cosines, so no pair is looped
    over.

    Example:
        >>> from forerank.metrics import unit_rows
        >>> rows = unit_rows(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> class_distances(rows, np.array([0, 0, 1, 2]))
        (0.0, 1.3333333333333333)
    """
    chosen = np.arange(len(rows), dtype=np.int64) if chosen is None else chosen
    code = np.unique(labels[chosen], return_inverse=True)[1]
    order = chosen[np.argsort(code, kind="stable")]  # class by class, so only a few sums are held at a time
    size = np.bincount(code)
    end = np.cumsum(size)
    distances: list[Tensor] = []
    centre_sum = torch.zeros(rows.dim, dtype=torch.float64, device=rows.device)
    centre_squares = 0.0
    first = 0
    while first < len(size):
        begin = end[first] - size[first]
        stop = max(first + 1, int(np.searchsorted(end, begin + BLOCK_ELEMENTS // rows.dim, side="right")))
        sums, squares = _class_sums(rows, order[begin : end[stop - 1]], size[first:stop])
        number = torch.from_numpy(size[first:stop]).to(sums)
        several = number > 1
        cosine = (sums.square().sum(dim=1) - squares)[several] / (number * (number - 1))[several]
        distances.append(1.0 - cosine)
        length = sums.norm(dim=1, keepdim=True)
        # A class whose vectors cancel has no centre direction; its centre stays zero, at distance 1 of all.
        centres = torch.where(length > 1e-12, sums / length.clamp_min(1e-300), 0.0)
        centre_sum += centres.sum(dim=0)
        centre_squares += float(centres.square().sum())
        first = stop

    every = torch.cat(distances)
    intra = max(0.0, float(every.mean())) if len(every) else float("nan")
    inter = float("nan")
    if len(size) > 1:
        between = (float(centre_sum.square().sum()) - centre_squares) / (len(size) * (len(size) - 1))
        inter = max(0.0, 1.0 - between)  # rounding alone would show equal centres at -0.0000
    return intra, inter


def _class_sums(rows: UnitRows, order: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Sums (L, D) of the unit vectors of consecutive classes, and of their squared lengths (L,)."""
    sums = torch.zeros(len(size), rows.dim, dtype=torch.float64, device=rows.device)
    # |x|^2 is 1 only up to rounding: adding up what it really is makes equal vectors exactly 0 apart.
    squares = torch.zeros(len(size), dtype=torch.float64, device=rows.device)
    owner = torch.from_numpy(np.repeat(np.arange(len(size)), size)).to(rows.device)
    for start, stop in blocks(len(order), rows.dim):
        unit = rows.float64(order[start:stop])
        sums.index_add_(0, owner[start:stop], unit)
        squares.index_add_(0, owner[start:stop], unit.square().sum(dim=1))
    return sums, squares
