"""SoftTriple: several centres for each class, of which superfluous ones are merged by a regulariser."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.data import Table
from forerank.errors import InputError
from forerank.training.methods.method import Ingredients, Method, Objective
from forerank.training.recipe import Recipe


def centre_spread(centres: Tensor) -> Tensor:
    """Mean distance of two unit centres of a class: Σ ‖w_s − w_t‖ / (C K (K − 1)) over s < t.

    Args:
        centres: (C, K, D), unit vectors.
    """
    classes, each, _ = centres.shape
    first, second = torch.triu_indices(each, each, offset=1)
    similarity = (centres[:, first] * centres[:, second]).sum(-1)
    return (2 - 2 * similarity).clamp_min(1e-8).sqrt().sum() / (classes * each * (each - 1))


class SoftTriple(Objective):
    """Softmax over classes, each represented by a soft choice among its centres."""

    def __init__(self, ingredients: Ingredients) -> None:
        super().__init__()
        self.o = ingredients.options
        shape = (ingredients.classes, self.o["centres"], ingredients.output_dim)
        self.centres = nn.Parameter(F.normalize(torch.randn(shape), dim=-1))

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        centres = F.normalize(self.centres, dim=-1)
        similarity = torch.einsum("nd,ckd->nck", vectors, centres)
        to_class = ((similarity / self.o["gamma"]).softmax(-1) * similarity).sum(-1)  # (N, classes)
        margin = self.o["margin"] * F.one_hot(labels, to_class.shape[1])
        loss: Tensor = F.cross_entropy(self.o["scale"] * (to_class - margin), labels)
        spread: Tensor = self.o["merge"] * centre_spread(centres)
        return loss + spread


def fit(recipe: Recipe, train: Table) -> Recipe:
    """Centres can only be merged if a class has two."""
    if recipe.method.options["centres"] < 2:
        raise InputError("softtriple needs at least 2 centres per class: give method.centres=2")
    return recipe


SOFT_TRIPLE = Method(
    title="SoftTriple",
    about="each class has several learned centres; a regulariser merges those that are not needed",
    paper="Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019",
    options={"centres": 2, "scale": 20.0, "gamma": 0.1, "margin": 0.01, "merge": 0.2},
    above_zero=("scale", "gamma"),
    published=(
        "embedding_dim=64", "crop=official", "lr=1e-4", "loss_lr=1e-2", "eps=0.01", "weight_decay=1e-4",
        "batch_size=32",
        "schedule.kind=steps", "milestones=[19, 39]", "gamma=0.1", "epochs=50", "schedule.steps=null",
    ),
    deviations=(
        "two centres per class, not checked against the paper; the published code, for Cars, has ten",
        "the centres have no weight decay; in the published code they have that of the network",
        "batches hold several images of each class; the published code draws images at random",
        "the network is that of the recipe; the published code has BN-Inception",
    ),
    fit=fit,
    build=SoftTriple,
)  # fmt: skip
