"""A start in closed form: the head that makes the spread within a class equal in every direction.

Directions in which images of one class differ (light, pose, background) say little about the class; dividing
each direction by the spread within classes makes them count less. It takes one eigendecomposition and no
step of training, and is often most of what training a head gains.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forerank.metrics.registry import is_better, shown

# Shrinkages that are tried on the validation classes, and the one taken where nothing can choose.
SHRINKAGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
USUAL_SHRINKAGE = 0.1
WHITENED = "whitened"


@dataclass(frozen=True)
class Spread:
    """The spread of features within and between classes, from which heads of any shrinkage are made.

    Attributes:
        values: (C,) variances within classes along the axes, smallest first.
        axes: (C, C) the axes as columns.
        total: (C, C) second moment of the unit features, which says what a narrow head must keep.
    """

    values: Tensor
    axes: Tensor
    total: Tensor


def within_class_spread(features: Tensor, labels: Tensor) -> Spread:
    """The spread of unit features (N, C) around the mean of their class; labels (N,) are class numbers."""
    unit = nn.functional.normalize(features.double())
    sums = torch.zeros(int(labels.max()) + 1, unit.shape[1], dtype=unit.dtype).index_add_(0, labels, unit)
    counts = torch.bincount(labels, minlength=len(sums)).clamp_min(1)
    values, axes = _moments(unit - (sums / counts[:, None])[labels])
    return Spread(values.flip(0), axes.flip(1), unit.T @ unit / len(unit))


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squares (C,) of rows (N, C) along their principal axes, strongest first, and the axes as columns.

    >>> few, many = torch.eye(9)[:2] * 3, torch.eye(9)[:2].repeat(9, 1) * 3
    >>> [_moments(rows)[0].round(decimals=4).tolist()[:3] for rows in (few, many)]
    [[4.5, 4.5, 0.0], [4.5, 4.5, 0.0]]
    """
    count, width = rows.shape
    if 4 * count <= width:  # few images: their own decomposition is many times cheaper than that of C x C
        _, singular, axes = torch.linalg.svd(rows)
        return nn.functional.pad(singular.square() / count, (0, width - count)), axes.T
    values, axes = torch.linalg.eigh(rows.T @ rows / count)
    return values.clamp_min(0).flip(0), axes.flip(1)


def whitening_weight(spread: Spread, shrinkage: float, width: int) -> Tensor:
    """Weights (width, C) of a head that whitens within classes.

    Each axis is divided by the root of its variance plus `shrinkage` times the mean variance: a small
    variance that was seen in few images is mostly chance and is not trusted.

    Args:
        shrinkage: small values whiten fully, large ones change nothing.
        width: D; below C the strongest axes of the whitened features are kept.

    >>> features = torch.tensor([[1.0, 0.9], [1.0, -0.9], [-1.0, 0.9], [-1.0, -0.9]])
    >>> spread = within_class_spread(features, torch.tensor([0, 0, 1, 1]))
    >>> weight = whitening_weight(spread, 0.01, 2)
    >>> bool(weight[0, 0] > 5 * weight[1, 1])  # the first number tells the classes apart
    True
    """
    scale = (spread.values + shrinkage * spread.values.mean().clamp_min(1e-12)).rsqrt()
    # From here on in single precision, which is twice as fast: many heads are tried.
    scale, axes = (scale / scale.mean()).float(), spread.axes.float()
    weight = (axes * scale) @ axes.T
    if width < len(weight):
        _, strongest = torch.linalg.eigh(weight @ spread.total.float() @ weight.T)
        weight = strongest[:, -width:].flip(1).T @ weight
    # As large as a head of orthonormal rows, so that learning rates mean the same.
    scaled: Tensor = weight * (width**0.5 / weight.norm())
    return scaled


def principal_axes(features: Tensor) -> Tensor:
    """Axes (C, C) as columns along which unit features (N, C) differ, the strongest first."""
    return _moments(nn.functional.normalize(features.double()))[1].float()


def start_from_principal_axes(head: nn.Linear, axes: Tensor) -> None:
    """Let a new head keep the axes along which the features differ most; axes (C, C) of `principal_axes`.

    A random projection of 1280 dimensions to 512 costs a pretrained model points before training begins; this
    one keeps nearly all of what the features say, so training starts from there.

    >>> head = nn.Linear(3, 2)
    >>> axes = principal_axes(torch.tensor([[3.0, 0, 0], [0, 2.0, 0], [3.0, 2.0, 0.1]]))
    >>> start_from_principal_axes(head, axes)
    >>> bool(head.weight[:, 2].abs().max() < 0.1), head.bias.tolist()
    (True, [0.0, 0.0])
    """
    with torch.no_grad():
        head.weight.copy_(axes[:, : head.out_features].T)
        head.bias.zero_()


@dataclass(frozen=True)
class HeadStart:
    """Where a new head starts.

    Attributes:
        whitening: (D, C) the whitened head, whether it was taken or not.
        shrinkage: of the whitening.
        taken: whether the head starts from it.
        sentence: what was decided and why.
    """

    whitening: Tensor
    shrinkage: float
    taken: bool
    sentence: str


def choose_start(
    spread: Spread,
    width: int,
    figure: str,
    measure: Callable[[Tensor | None], float] | None,
    *,
    shrinkage: float | None,
    wanted: bool,
) -> HeadStart:
    """Whiten as strongly as the validation classes say, and start there if it helps.

    Args:
        figure: the metric that chooses.
        measure: weights (D, C), or None for the features themselves -> the figure of the classes that choose;
            None where there are no such classes.
        shrinkage: fixed, or None to choose it.
        wanted: start from the whitening whatever the figures say.
    """
    if measure is None:
        shrinkage = USUAL_SHRINKAGE if shrinkage is None else shrinkage
        why = f"shrinkage {shrinkage:g}; there are no validation classes to choose it"
        return HeadStart(whitening_weight(spread, shrinkage, width), shrinkage, wanted, f"whitening: {why}")
    candidates = SHRINKAGES if shrinkage is None else (shrinkage,)
    weights = {one: whitening_weight(spread, one, width) for one in candidates}
    figures = {one: measure(weight) for one, weight in weights.items()}
    best = candidates[0]
    for one in candidates[1:]:
        if is_better(figure, figures[one], figures[best]):
            best = one
    plain = measure(None)
    taken = wanted or is_better(figure, figures[best], plain)
    told = f"validation {figure} {shown(figure, figures[best])}, features alone {shown(figure, plain)}"
    name = f"within-class whitening of shrinkage {best:g}" if taken else "the features as they are"
    return HeadStart(weights[best], best, taken, f"the head starts from {name} ({told})")
