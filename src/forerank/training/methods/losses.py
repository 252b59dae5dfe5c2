"""Methods that are a loss with settings: recipe values are all they need."""

from dataclasses import replace

from forerank.data import Table
from forerank.training.methods.method import Method
from forerank.training.recipe import Recipe


def fit_super_categories(recipe: Recipe, train: Table) -> Recipe:
    """Batches from two super categories, where the data has them."""
    if train.category is None or recipe.batch.super_categories is not None:
        return recipe
    return replace(recipe, batch=replace(recipe.batch, super_categories=2))


HISTOGRAM = Method(
    title="Histogram",
    about="the overlap of the histograms of positive and negative similarities",
    paper="Ustinova and Lempitsky, Learning Deep Embeddings with Histogram Loss, NeurIPS 2016",
    values=("loss=pml:HistogramLoss", "loss.n_bins=100"),
    own_loss=False,
)

FAST_AP = Method(
    title="FastAP",
    about="average precision by binned distances; batches from two super categories, where there are any",
    paper="Cakir et al., Deep Metric Learning to Rank, CVPR 2019",
    values=("loss=pml:FastAPLoss", "loss.num_bins=10"),
    deviations=("data without super categories gives batches from all classes",),
    own_loss=False,
    fit=fit_super_categories,
)

SMOOTH_AP = Method(
    title="Smooth-AP",
    about="average precision with the step function replaced by a sigmoid",
    paper="Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020",
    values=("loss=Smooth-AP", "loss.temperature=0.01"),
    own_loss=False,
)
