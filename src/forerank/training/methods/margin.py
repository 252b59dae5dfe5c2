"""Margin with distance-weighted sampling, and the parts of it that other methods use."""

import torch
from torch import Tensor, nn

from forerank.training.methods.method import Ingredients, Method, Objective

CUTOFF = 0.5  # distances are clipped below at this, so that no negative is drawn for being noise
BETA = 1.2  # the boundary between positives and negatives, where it begins


def distances(vectors: Tensor) -> Tensor:
    """Euclidean distances (N, N) of unit vectors (N, D).

    >>> [round(d, 3) for d in distances(torch.eye(2))[0].tolist()]
    [0.0, 1.414]
    """
    # Below the root a small number instead of zero, where the gradient would be infinite.
    return (2 - 2 * vectors @ vectors.T).clamp_min(1e-8).sqrt()


def log_inverse_density(distance: Tensor, dim: int) -> Tensor:
    """log 1/q(d): q is the density of the distance of two random points on the sphere in `dim` dimensions."""
    d = distance.clamp(CUTOFF, 2 - 1e-4)
    return -((dim - 2) * d.log() + (dim - 3) / 2 * (1 - d.square() / 4).log())


def negative_weights(distance: Tensor, labels: Tensor, dim: int) -> Tensor:
    """Probability (N, N) with which each anchor (row) draws each negative: min(λ, 1/q(d)), λ = 1/q(0.5).

    Positives and the anchor itself have probability zero. A row without negatives is all zero.
    """
    negative = labels[:, None] != labels[None, :]
    limit = log_inverse_density(distance.new_tensor(CUTOFF), dim)
    log_weight = torch.minimum(log_inverse_density(distance.detach(), dim), limit)
    log_weight = log_weight.masked_fill(~negative, -torch.inf)
    return torch.nan_to_num(log_weight.softmax(1))  # a row of -inf alone has no softmax


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Anchor and positive of every ordered pair of one class: two times (M,).

    >>> [x.tolist() for x in positive_pairs(torch.tensor([0, 1, 0]))]
    [[0, 2], [2, 0]]
    """
    same = labels[:, None] == labels[None, :]
    same.fill_diagonal_(False)
    anchor, positive = torch.nonzero(same, as_tuple=True)
    return anchor, positive


def draw_negatives(distance: Tensor, labels: Tensor, anchor: Tensor, dim: int) -> Tensor:
    """A negative (M,) for each anchor (M,), drawn by `negative_weights`."""
    weights = negative_weights(distance, labels, dim)
    times = torch.bincount(anchor, minlength=len(labels))
    draws = torch.multinomial(
        weights + 1e-30, int(times.max()), replacement=True
    )  # (N, most pairs per anchor)
    first = times.cumsum(0) - times  # anchors come in order, so a pair's number within its anchor is
    return draws[anchor, torch.arange(len(anchor), device=anchor.device) - first[anchor]]


def margin_loss(to_positive: Tensor, to_negative: Tensor, beta: Tensor | float, margin: float) -> Tensor:
    """[d⁺ − β + margin]₊ + [β − d⁻ + margin]₊ over pairs (M,), averaged over the terms that are not zero."""
    losses = torch.cat([(to_positive - beta + margin).relu(), (beta - to_negative + margin).relu()])
    return losses.sum() / (losses > 0).sum().clamp_min(1)


def distance_weighted_margin(vectors: Tensor, labels: Tensor, beta: Tensor, margin: float) -> Tensor:
    """Margin loss of unit vectors (N, D) with negatives drawn by their distance; `beta` (classes,)."""
    anchor, positive = positive_pairs(labels)
    if len(anchor) == 0 or bool((labels == labels[0]).all()):
        return vectors.sum() * 0  # a batch without a pair or without a negative says nothing
    distance = distances(vectors)
    negative = draw_negatives(distance, labels, anchor, vectors.shape[1])
    return margin_loss(distance[anchor, positive], distance[anchor, negative], beta[labels[anchor]], margin)


def new_boundaries(*shape: int) -> nn.Parameter:
    """Boundaries β that learn."""
    return nn.Parameter(torch.full(shape, BETA))


class MarginObjective(Objective):
    """Margin loss with one learned boundary for each class, or one for all."""

    def __init__(self, classes: int, margin: float, per_class: bool) -> None:
        super().__init__()
        self.classes, self.margin = classes, margin
        self.beta = new_boundaries(classes if per_class else 1)

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return distance_weighted_margin(vectors, labels, self.beta.expand(self.classes), self.margin)


def build(ingredients: Ingredients) -> Objective:
    return MarginObjective(
        ingredients.classes, ingredients.options["margin"], ingredients.options["per_class"]
    )


MARGIN = Method(
    title="Margin",
    about="pairs are pulled and pushed across a learned boundary; negatives are drawn evenly over distances",
    paper="Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017",
    options={"margin": 0.2, "per_class": True},
    deviations=(
        "a boundary for each class; the paper also has one for all classes (method.per_class=false)",
        "a negative of any distance can be drawn; the published code leaves out those farther than 1.4",
        "boundaries are not regularised",
    ),
    build=build,
)
