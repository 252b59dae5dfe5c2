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
    deviations=("100 bins, which was not checked against the paper",),
)

FAST_AP = Method(
    title="FastAP",
    about="average precision by binned distances; batches from two super categories, where there are any",
    paper="Cakir et al., Deep Metric Learning to Rank, CVPR 2019",
    values=("loss=pml:FastAPLoss", "loss.num_bins=10"),
    deviations=(
        "10 bins, which was not checked against the paper",
        "data without super categories gives batches from all classes",
    ),
    fit=fit_super_categories,
)

SMOOTH_AP = Method(
    title="Smooth-AP",
    about="average precision with the step function replaced by a sigmoid",
    paper="Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020",
    values=("loss=Smooth-AP", "loss.temperature=0.01"),
)

BLACKBOX_AP = Method(
    title="Blackbox AP",
    about="average precision of exact ranks; the gradient is that of an interpolation of the ranks",
    paper="Rolinek et al., Optimizing Rank-based Metrics with Blackbox Differentiation, CVPR 2020",
    values=("loss=Blackbox-AP", "loss.interpolation=4", "loss.margin=0.02"),
    deviations=(
        "interpolation 4 and margin 0.02 are those of ROADMAP's comparison, not of the method's own paper",
        "similarities are not multiplied by random numbers, as the authors' version for AP does",
    ),
)

ROADMAP = Method(
    title="ROADMAP",
    about="an upper bound of one minus average precision, and similarities calibrated across queries",
    paper="Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021",
    values=("loss=ROADMAP",),
)

RECALL_AT_K = Method(
    title="Recall@k surrogate",
    about="recall at several k, smoothed; virtual examples between two images of a class (SiMix)",
    paper="Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022",
    values=("loss=Recall@k", "loss.mixup=true", "loss.rank_temperature=[1, 2, 4, 8, 16]"),
    published=(
        "batch_size=4000", "micro_batch=200", "images_per_class=4", "optimiser.lr=2e-4",
        "schedule.kind=steps", "milestones=[25, 50]", "gamma=0.3", "epochs=55", "schedule.steps=null",
    ),
)  # fmt: skip
