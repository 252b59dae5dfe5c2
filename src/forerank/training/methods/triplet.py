"""Triplet loss with semi-hard negatives."""

import torch
from torch import Tensor

from forerank.training.methods.margin import distances, positive_pairs
from forerank.training.methods.method import Ingredients, Method, Objective


class SemiHardTriplet(Objective):
    """[d²(a, p) − d²(a, n) + margin]₊ for the nearest negative that is farther away than the positive."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        squared = distances(vectors).square()
        anchor, positive = positive_pairs(labels)
        to_positive = squared[anchor, positive]  # (M,)
        allowed = (labels[anchor, None] != labels[None, :]) & (squared[anchor] > to_positive[:, None])
        to_negative = squared[anchor].masked_fill(~allowed, torch.inf).min(1).values
        losses = (to_positive - to_negative + self.margin).relu()
        # Easy triplets, and pairs without such a negative, have no loss and do not count.
        return losses[losses > 0].sum() / (losses > 0).sum().clamp_min(1)


def build(ingredients: Ingredients) -> Objective:
    return SemiHardTriplet(ingredients.options["margin"])


TRIPLET = Method(
    title="Triplet",
    about="a positive must be nearer than a negative by a margin; negatives are semi-hard",
    paper="Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015",
    options={"margin": 0.2},
    deviations=(
        "margin 0.2 on squared distances is FaceNet's; the paper that compares takes its numbers from other "
        "papers, whose margins were not checked",
        "each pair takes the nearest semi-hard negative of the batch, and the loss is the mean over triplets "
        "that violate the margin",
    ),
    build=build,
)
