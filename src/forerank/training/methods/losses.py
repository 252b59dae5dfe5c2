"""Methods that are a loss with settings: recipe values are all they need."""

from dataclasses import replace

import numpy as np

from forerank.data import Table
from forerank.training.methods.method import Method
from forerank.training.recipe import Recipe


def fit_super_categories(recipe: Recipe, train: Table) -> Recipe:
    """Batches from two super categories, where the data has them and the sampling knows them."""
    chosen = recipe.batch.super_categories is not None or recipe.batch.sampling == "official"
    if chosen or train.category is None or len(np.unique(train.category)) < 2:
        return recipe
    return replace(recipe, batch=replace(recipe.batch, super_categories=2))


FAST_AP = Method(
    title="FastAP",
    about="average precision by binned distances; batches from two super categories, where there are any",
    paper="Cakir et al., Deep Metric Learning to Rank, CVPR 2019",
    values=("loss=pml:FastAPLoss", "loss.num_bins=10"),
    published=(
        "embedding_dim=512", "lr=1e-5", "head_lr=1e-4", "weight_decay=0", "batch_size=256",
        "schedule.kind=constant", "epochs=30", "schedule.steps=null",
    ),
    deviations=(
        "10 bins and the published settings are the defaults of the authors' code, not read from the paper",
        "data without super categories gives batches from all classes, and so does batch.sampling=official",
    ),
    fit=fit_super_categories,
)  # fmt: skip

SMOOTH_AP = Method(
    title="Smooth-AP",
    about="average precision with the step function replaced by a sigmoid",
    paper="Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020",
    values=("loss=Smooth-AP", "loss.temperature=0.01"),
    deviations=("a query is not counted among its own positives, as code that follows the paper does",),
)

BLACKBOX_AP = Method(
    title="Blackbox AP",
    about="average precision of exact ranks; the gradient is that of an interpolation of the ranks",
    paper="Rolinek et al., Optimizing Rank-based Metrics with Blackbox Differentiation, CVPR 2020",
    values=("loss=Blackbox-AP", "loss.interpolation=4", "loss.margin=0.02"),
    deviations=(
        "interpolation 4 and margin 0.02 are those of ROADMAP's comparison, not of the method's own paper",
        "the margin is the same for all images; the authors' version for AP multiplies it by random numbers",
        "only the batch is ranked; the authors' versions also rank the embeddings of past batches",
    ),
)

ROADMAP = Method(
    title="ROADMAP",
    about="an upper bound of one minus average precision, and similarities calibrated across queries",
    paper="Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021",
    values=("loss=ROADMAP",),
    published=(
        "embedding_dim=512", "optimiser.lr=1e-5", "head_lr=2e-5", "weight_decay=1e-4", "batch_size=128",
        "images_per_class=4", "model.image_size=256", "crop=official", "schedule.kind=steps",
        "milestones=[30, 70]", "gamma=0.3", "epochs=100", "schedule.steps=null",
    ),
    deviations=(
        "the calibration is averaged over all pairs of a query, as the paper writes it; the published code "
        "averages over the pairs of the batch that miss their margin (loss.active_only=true)",
        "the weight of the calibration is a half: the published configuration has 1 for both parts, which is "
        "the same but for a factor of 2",
        "batches hold images of all super categories; the published code takes two at a time "
        "(batch.super_categories=2)",
        "beyond a gap of 0.05 the line begins where the curve ends, at 1.49; the published configuration "
        "has 1.44",
        "with the published settings a training view has 8% to 100% of the picture, not 16% to 100%, and the "
        "test view is cut from 293 pixels, not 288",
    ),
)  # fmt: skip

RECALL_AT_K = Method(
    title="Recall@k surrogate",
    about="recall at several k, smoothed; virtual examples between two images of a class (SiMix)",
    paper="Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022",
    values=("loss=Recall@k", "loss.mixup=true", "loss.rank_temperature=[1, 2, 4, 8, 16]"),
    published=(
        "embedding_dim=512", "pooling=gem", "layer_norm=true", "crop=official", "batch_size=4000",
        "micro_batch=200", "images_per_class=4", "optimiser.lr=2e-4", "weight_decay=4e-4",
        "schedule.kind=steps", "milestones=[25, 50]", "gamma=0.3", "epochs=55", "schedule.steps=null",
    ),
    deviations=(
        "the temperature of the cut at k is k, as in the published code of 2022; a later version has 1",
        "the batch is that of the comparison, not the 4,000 images of the paper, and pooling and layer norm "
        "are those of the recipe, unless the published settings are taken",
        "the layer norm of the published settings has no parameters; that of the published code has",
    ),
)  # fmt: skip
