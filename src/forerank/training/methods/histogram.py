"""Histogram: the probability that a random negative pair is more similar than a random positive one."""

import torch
from torch import Tensor

from forerank.data import Table
from forerank.errors import InputError
from forerank.training.methods.method import Ingredients, Method, Objective
from forerank.training.recipe import Recipe


def soft_histogram(similarity: Tensor, bins: int) -> Tensor:
    """Shares (bins + 1,) of similarities (M,) at even places from -1 to 1; each counts at its two nearest.

    >>> soft_histogram(torch.tensor([-1.0, 0.5]), 4).tolist()  # places -1, -0.5, 0, 0.5, 1
    [0.5, 0.0, 0.0, 0.5, 0.0]
    """
    place = (similarity.clamp(-1, 1) + 1) / 2 * bins
    left = place.detach().floor().clamp(max=bins - 1)
    share = place - left
    empty = similarity.new_zeros(bins + 1)
    counts = empty.index_add(0, left.long(), 1 - share).index_add(0, left.long() + 1, share)
    return counts / max(1, len(similarity))


class HistogramOverlap(Objective):
    """Σ over places of the negatives there, times the positives at that place or below it."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=vectors.device)
        similarity, same = (vectors @ vectors.T)[first, second], labels[first] == labels[second]
        positive, negative = (soft_histogram(similarity[which], self.bins) for which in (same, ~same))
        return (negative * positive.cumsum(0)).sum()


def fit(recipe: Recipe, train: Table) -> Recipe:
    """A histogram has at least two places."""
    if recipe.method.options["bins"] < 1:
        raise InputError("histogram needs at least 1 bin: give method.bins=100")
    return recipe


def build(ingredients: Ingredients) -> Objective:
    return HistogramOverlap(ingredients.options["bins"])


HISTOGRAM = Method(
    title="Histogram",
    about="the overlap of the histograms of positive and negative similarities",
    paper="Ustinova and Lempitsky, Learning Deep Embeddings with Histogram Loss, NeurIPS 2016",
    options={"bins": 100},
    deviations=("100 bins, which was not checked against the paper or its code",),
    fit=fit,
    build=build,
)
