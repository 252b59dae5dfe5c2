"""Divide & Conquer: clusters of the training images, and one slice of the embedding for each of them."""

import math
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from forerank.data import Table
from forerank.errors import InputError
from forerank.metrics import kmeans, unit_rows
from forerank.training.methods.margin import BETA, CUTOFF, distances, margin_loss, positive_pairs
from forerank.training.methods.method import Ingredients, Method, Objective, TrainingSet, usable_images
from forerank.training.recipe import Recipe


def match_clusters(new: NDArray[np.int64], old: NDArray[np.int64], clusters: int) -> NDArray[np.int64]:
    """New assignments (n,) with their clusters renamed, so that each learner keeps its part of the images.

    The Hungarian method finds the renaming with the smallest symmetric differences of old and new clusters.

    >>> match_clusters(np.array([1, 1, 1, 0, 0]), np.array([0, 0, 1, 1, 1]), 2).tolist()
    [0, 0, 0, 1, 1]
    """
    from scipy.optimize import linear_sum_assignment

    both = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(both, (new, old), 1)
    sizes = [np.bincount(x, minlength=clusters) for x in (new, old)]
    difference = sizes[0][:, None] + sizes[1][None, :] - 2 * both
    renamed: NDArray[np.int64] = linear_sum_assignment(difference)[1][new]
    return renamed


def nearest_negatives(distance: Tensor, labels: Tensor, anchor: Tensor) -> Tensor:
    """Distance (M,) of each anchor to its nearest negative that is not closer than the cutoff.

    Where all negatives are closer, as in a network that is not trained yet, the farthest one is taken.
    """
    negative = labels[:, None] != labels[None, :]
    nearest = distance.masked_fill(~negative | (distance < CUTOFF), torch.inf).min(1).values
    farthest = distance.masked_fill(~negative, 0.0).max(1).values
    return torch.where(nearest.isinf(), farthest, nearest)[anchor]


class DivideAndConquer(Objective):
    """The margin loss on the slice of a cluster; all images of a batch come from one cluster.

    Attributes:
        cluster: (n,) cluster of each training image, which is also its slice; -1 before the first clustering.
        whole: whether the divided part of the run is over, and the loss reads the whole vector.
    """

    cluster: Tensor
    whole: Tensor

    def __init__(self, labels: Tensor, clusters: int, epochs: int, whole_from: float, margin: float) -> None:
        super().__init__()
        self.clusters, self.renew_epochs, self.whole_from, self.margin = clusters, epochs, whole_from, margin
        self.labels = labels.cpu().numpy()
        self.register_buffer("cluster", torch.full((len(labels),), -1))
        self.register_buffer("whole", torch.tensor(False))

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        if not self.whole:
            vectors = F.normalize(self.slice(vectors, int(self.cluster[rows[0]])))
        distance = distances(vectors)
        anchor, positive = positive_pairs(labels)
        to_negative = nearest_negatives(distance, labels, anchor)
        return margin_loss(distance[anchor, positive], to_negative, BETA, self.margin)

    def slice(self, vectors: Tensor, number: int) -> Tensor:
        """The columns (N, D / clusters) that belong to a learner."""
        return vectors.reshape(len(vectors), self.clusters, -1)[:, number]

    def renewals(self, steps_per_epoch: int, steps: int) -> list[int]:
        """Every clustering, and the step from which the whole vector is trained: in short runs too."""
        whole = math.ceil(self.whole_from * steps)
        divided = [step for step in super().renewals(steps_per_epoch, steps) if step < whole]
        return divided + [whole] * (whole < steps)

    def renew(self, training: TrainingSet) -> None:
        if training.step >= math.ceil(self.whole_from * training.steps):
            self.whole.fill_(True)
            return
        assigned, _ = kmeans(unit_rows(training.features), self.clusters, seed=training.seed + training.step)
        old = self.cluster.cpu().numpy()
        if old[0] >= 0:
            assigned = match_clusters(assigned, old, self.clusters)
        self.cluster.copy_(torch.from_numpy(assigned))

    def groups(self) -> NDArray[np.int64] | None:
        """The clusters; a class with a single image in a cluster is left out there."""
        if self.whole:
            return None
        cluster: NDArray[np.int64] = self.cluster.cpu().numpy().copy()
        _, pair, count = np.unique(
            np.stack([cluster, self.labels]), axis=1, return_inverse=True, return_counts=True
        )
        cluster[count[pair.reshape(-1)] < 2] = -1
        return cluster


def fit(recipe: Recipe, train: Table) -> Recipe:
    """One slice of the model's vector for each cluster; too little data is refused."""
    clusters = recipe.method.options["clusters"]
    images, classes = usable_images(train)
    if clusters < 2:
        raise InputError(f"divide-and-conquer needs at least 2 clusters, not {clusters}")
    if classes < 2 * clusters:
        advice = f"give method.clusters={classes // 2} or fewer" if classes >= 4 else "use another method"
        raise InputError(
            f"divide-and-conquer with {clusters} clusters needs at least {2 * clusters} training classes of "
            f"two images or more, and {train.name} has {classes} ({images:,} images): {advice}"
        )
    if recipe.model.embedding_dim is None or recipe.model.embedding_dim % clusters:
        raise InputError(
            f"divide-and-conquer cuts the embedding into {clusters} slices: model.embedding_dim "
            f"{recipe.model.embedding_dim} is not divisible by {clusters}"
        )
    return replace(recipe, model=replace(recipe.model, slices=clusters))


def build(ingredients: Ingredients) -> Objective:
    o = ingredients.options
    labels = torch.from_numpy(ingredients.table.label_ids)
    return DivideAndConquer(labels, o["clusters"], o["renew_epochs"], o["whole_from"], o["margin"])


DIVIDE_AND_CONQUER = Method(
    title="Divide & Conquer",
    about="images are clustered every few epochs, and each cluster trains its own slice of the embedding",
    paper="Sanakoyeu et al., Divide and Conquer the Embedding Space for Metric Learning, CVPR 2019",
    options={"clusters": 8, "renew_epochs": 2, "whole_from": 0.95, "margin": 0.2},
    above_zero=("renew_epochs",),
    published=(
        "embedding_dim=128", "crop=official", "lr=1e-5", "weight_decay=1e-4", "batch_size=80",
        "images_per_class=4",
        "schedule.kind=constant", "epochs=200", "schedule.steps=null",
    ),
    deviations=(
        "the whole vector is trained in the last twentieth of the run, as in the paper (from epoch 190 of "
        "200); the published code begins at epoch 80",
        "k-means runs on unit vectors with at most 20 iterations",
        "an anchor whose negatives are all nearer than 0.5 takes the farthest of them",
        "a cluster with fewer classes than a batch needs gives smaller batches, and one with fewer than two "
        "classes is passed over until the next clustering",
    ),
    fit=fit,
    build=build,
)  # fmt: skip
