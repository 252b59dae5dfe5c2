"""DCML-MDW: sub-embeddings, mixed by compositors that each look for their own way to weigh them."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.data import Table
from forerank.errors import InputError
from forerank.models import EmbeddingModel
from forerank.training.methods.margin import distance_weighted_margin, new_boundaries
from forerank.training.methods.method import Ingredients, Method, Objective
from forerank.training.recipe import Recipe


def self_reinforced(weights: Tensor) -> Tensor:
    """−log of the largest weight of each compositor, averaged over images, summed over compositors.

    Args:
        weights: (N, compositors, parts), each row of parts sums to one.

    >>> self_reinforced(torch.tensor([[[1.0, 0.0]]])).item() == 0
    True
    """
    return -weights.max(-1).values.log().mean(0).sum()


class DCML(Objective):
    """The margin loss on every compositor's mixture of the sub-embeddings."""

    def __init__(self, ingredients: Ingredients) -> None:
        super().__init__()
        o = ingredients.options
        self.parts, self.margin = o["parts"], o["margin"]
        self.compositors = nn.Linear(ingredients.output_dim, o["compositors"] * self.parts, bias=False)
        self.beta = new_boundaries(o["compositors"], ingredients.classes)

    def embed(self, model: EmbeddingModel, features: Tensor) -> Tensor:
        """The sub-embeddings side by side, not normalised: (n, D)."""
        return model.project(features)

    def weights(self, vectors: Tensor) -> Tensor:
        """How each compositor weighs the parts of each image: (N, compositors, parts).

        Compositors look at the sub-embeddings and do not change them.
        """
        scores: Tensor = self.compositors(vectors.detach())
        return scores.reshape(len(vectors), -1, self.parts).softmax(-1)

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        parts = vectors.reshape(len(vectors), self.parts, -1)  # (N, parts, D / parts)
        weights = self.weights(vectors)
        mixtures: Sequence[Tensor] = torch.einsum("nck,nkd->cnd", weights, parts).unbind(0)
        margins = [
            distance_weighted_margin(F.normalize(mixture), labels, beta, self.margin)
            for mixture, beta in zip(mixtures, self.beta, strict=True)
        ]
        return torch.stack(margins).sum() + self_reinforced(weights)

    def head_parameters(self) -> list[nn.Parameter]:
        return [*self.compositors.parameters()]


def fit(recipe: Recipe, train: Table) -> Recipe:
    """The embedding is cut into equal parts."""
    o, dim = recipe.method.options, recipe.model.embedding_dim
    if o["parts"] < 2 or o["compositors"] < 1:
        raise InputError("dcml-mdw needs at least 2 parts and 1 compositor")
    if dim is None or dim % o["parts"]:
        raise InputError(
            f"dcml-mdw cuts the embedding into {o['parts']} parts: model.embedding_dim {dim} is not "
            f"divisible by {o['parts']}"
        )
    return recipe


def build(ingredients: Ingredients) -> Objective:
    if ingredients.output_dim % ingredients.options["parts"]:
        raise InputError(
            f"dcml-mdw cuts the embedding into {ingredients.options['parts']} parts, and "
            f"{ingredients.output_dim} dimensions are not divisible by that: give model.embedding_dim"
        )
    return DCML(ingredients)


DCML_MDW = Method(
    title="DCML-MDW",
    about="several sub-embeddings are mixed by learned compositors, each of which has a margin loss",
    paper="Zheng et al., Deep Compositional Metric Learning, CVPR 2021",
    options={"parts": 4, "compositors": 4, "margin": 0.2},
    published=(
        "embedding_dim=512", "crop=official", "lr=1e-5", "weight_decay=4e-4", "batch_size=100",
        "images_per_class=2", "schedule.kind=steps", "milestones=[55]", "gamma=0.2", "epochs=300",
        "schedule.steps=null",
    ),
    deviations=(
        "the test vector is the concatenation of the sub-embeddings, normalised as a whole: a "
        "reconstruction, because the published code does not run",
        "boundaries are learned for each compositor and class",
        "the published settings are those of the published code for CUB, four parts of 128",
    ),
    fit=fit,
    build=build,
)  # fmt: skip
