"""MIC: a second head learns what the classes share, and the class head is kept apart from it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.data import Table
from forerank.errors import InputError
from forerank.metrics import kmeans, unit_rows
from forerank.models import EmbeddingModel
from forerank.training.methods.margin import distance_weighted_margin, new_boundaries
from forerank.training.methods.method import Ingredients, Method, Objective, TrainingSet
from forerank.training.recipe import Recipe

PUBLISHED_DIM = 128  # the width that the paper's weight of the separation belongs to


class _Reversal(torch.autograd.Function):
    """The identity whose gradient changes its sign."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reverse_gradient(values: Tensor) -> Tensor:
    """The same values; what is minimised behind this point is maximised before it."""
    reversed_: Tensor = _Reversal.apply(values)  # type: ignore[no-untyped-call]
    return reversed_


def dependence(class_vectors: Tensor, shared_vectors: Tensor, predictor: nn.Module) -> Tensor:
    """How much of class vectors x the predictor finds in shared ones y, (N, D): mean((x ⊙ R(y)/|R(y)|)²)."""
    return (class_vectors * F.normalize(predictor(shared_vectors))).square().mean()


class MIC(Objective):
    """Margin loss on two heads, and a term that keeps them apart.

    Attributes:
        shared_label: (n,) cluster of each training image by what it shares with other classes; -1 at first.
    """

    shared_label: Tensor

    def __init__(self, ingredients: Ingredients) -> None:
        super().__init__()
        o, dim = ingredients.options, ingredients.output_dim
        self.clusters, self.renew_epochs = o["clusters"], o["renew_epochs"]
        self.margin = o["margin"]
        # The mean product of coordinates of unit vectors falls with the square of their number.
        self.separation = o["separation"] * (dim / PUBLISHED_DIM) ** 2
        self.shared = nn.Linear(ingredients.feature_dim, dim)
        self.predictor = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, dim))
        self.class_beta = new_boundaries(ingredients.classes)
        self.shared_beta = new_boundaries(self.clusters)
        self.register_buffer("shared_label", torch.full((len(ingredients.table),), -1))

    def embed(self, model: EmbeddingModel, features: Tensor) -> Tensor:
        """Class vectors and shared vectors side by side: (n, 2 D)."""
        shared = F.normalize(self.shared(features).float())
        return torch.cat([model.embed_features(features), shared], dim=1)

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        class_vectors, shared_vectors = vectors.chunk(2, dim=1)
        of_classes = distance_weighted_margin(class_vectors, labels, self.class_beta, self.margin)
        of_shared = distance_weighted_margin(
            shared_vectors, self.shared_label[rows], self.shared_beta, self.margin
        )
        # The predictor raises the dependence that it finds; reversed, the two heads lower it.
        found_again = dependence(
            reverse_gradient(class_vectors), reverse_gradient(shared_vectors), self.predictor
        )
        total: Tensor = of_classes + of_shared - self.separation * found_again
        return total

    def head_parameters(self) -> list[nn.Parameter]:
        return [*self.shared.parameters(), *self.predictor.parameters()]

    @torch.no_grad()
    def renew(self, training: TrainingSet) -> None:
        """Cluster what is left of the images when the mean of their class is taken away."""
        first = bool(self.shared_label[0] < 0)
        seen = training.features if first else self.shared(training.features.to(self.class_beta.device))
        seen = F.normalize(seen.float().cpu())
        count = torch.bincount(training.labels)
        mean = torch.zeros(len(count), seen.shape[1]).index_add_(0, training.labels, seen) / count[:, None]
        rest = seen - mean[training.labels]
        # The image of a class of one is its mean: a trace of itself gives it a direction.
        assigned, _ = kmeans(unit_rows(rest + 1e-6 * seen), self.clusters, seed=training.seed + training.step)
        self.shared_label.copy_(torch.from_numpy(assigned))


def fit(recipe: Recipe, train: Table) -> Recipe:
    """Too few images for the clusters are refused."""
    clusters = recipe.method.options["clusters"]
    if clusters < 2 or len(train) < 2 * clusters:
        raise InputError(
            f"mic with {clusters} clusters needs at least 2 clusters and {2 * clusters} training images, and "
            f"{train.name} has {len(train):,}: give method.clusters={max(2, len(train) // 2)} or fewer"
        )
    return recipe


MIC_METHOD = Method(
    title="MIC",
    about="a second head learns from clusters what classes have in common, so that the class head need not",
    paper="Roth et al., MIC: Mining Interclass Characteristics for Improved Metric Learning, ICCV 2019",
    options={"clusters": 50, "renew_epochs": 3, "margin": 0.2, "separation": 250.0},
    above_zero=("renew_epochs",),
    published=(
        "embedding_dim=128", "crop=official", "lr=1e-5", "loss_lr=5e-4", "weight_decay=4e-4",
        "batch_size=112", "images_per_class=4",
        "schedule.kind=steps", "milestones=[20,35]", "gamma=0.3", "epochs=45", "schedule.steps=null",
    ),
    deviations=(
        "the weight of the separation is that of the paper at 128 dimensions, and grows with the square of "
        "the width at others",
        "the first clusters come from the pooled features of the last layer, not of an early one",
        "both heads learn from the same batch in every step; the published code draws a batch of its own by "
        "the clusters for the shared head, in half of the steps on SOP",
        "k-means runs on unit vectors with at most 20 iterations",
    ),
    fit=fit,
    build=MIC,
)  # fmt: skip
