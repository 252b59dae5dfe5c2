"""ProxyNCA and ProxyNCA++: every image is drawn to the proxy of its class and away from all others."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.data import Table
from forerank.training.methods.method import Ingredients, Method, Objective, usable_images
from forerank.training.recipe import Recipe


class ProxyNCA(Objective):
    """−log of exp(−scale ‖x̂ − p̂_y‖²) over the sum of it over proxies.

    Args:
        classes: how many proxies.
        dim: their width.
        scale: on the squared distance.
        count_positive: whether the proxy of the image's own class is in the sum (ProxyNCA++), or only the
            others (ProxyNCA).
    """

    def __init__(self, classes: int, dim: int, scale: float, count_positive: bool) -> None:
        super().__init__()
        self.scale, self.count_positive = scale, count_positive
        self.proxies = nn.Parameter(torch.randn(classes, dim) / 8)

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        squared = 2 - 2 * vectors @ F.normalize(self.proxies).T  # (N, classes)
        scores = -self.scale * squared
        own = scores.gather(1, labels[:, None])
        if not self.count_positive:
            scores = scores.scatter(1, labels[:, None], -torch.inf)
        return (scores.logsumexp(1, keepdim=True) - own).mean()


def fit_warm_up(recipe: Recipe, train: Table) -> Recipe:
    """The warm-up in steps: `warmup_epochs`, but no larger share of the run than in the paper (5 of 80)."""
    images, _ = usable_images(train)
    per_epoch = -(-images // (recipe.batch.batch_size or images))
    steps = recipe.schedule.steps or recipe.schedule.epochs * per_epoch
    warm_up = min(recipe.method.options["warmup_epochs"] * per_epoch, steps // 16)
    return replace(recipe, optimiser=replace(recipe.optimiser, head_warmup=warm_up))


def build(ingredients: Ingredients, *, count_positive: bool = False) -> Objective:
    """The objective of ProxyNCA, or of ProxyNCA++ if the proxy of the image's own class counts."""
    scale = ingredients.options["scale"]
    return ProxyNCA(ingredients.classes, ingredients.output_dim, scale, count_positive)


PROXY_NCA = Method(
    title="ProxyNCA",
    about="a learned proxy for each class stands for its images in neighbourhood component analysis",
    paper="Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017",
    options={"scale": 1.0},
    above_zero=("scale",),
    deviations=(
        "scale 1, which is what pytorch-metric-learning has and ProxyNCA++ says of it, not checked against "
        "the paper; a published re-implementation has 9 on CUB",
        "the rate of the proxies is 100 times that of the network, which is not the paper's",
    ),
    build=build,
)

PROXY_NCA_PLUS_PLUS = Method(
    title="ProxyNCA++",
    about="ProxyNCA as a probability over all proxies, with max pooling, layer norm and fast proxies",
    paper="Teh et al., ProxyNCA++: Revisiting and Revitalizing Proxy NCA, ECCV 2020",
    options={"scale": 9.0, "warmup_epochs": 5},
    above_zero=("scale",),
    values=(
        "pooling=max", "layer_norm=true", "freeze_batch_norm=false", "eps=1.0", "optimiser.lr=0.024",
        "loss_lr=240", "weight_decay=0", "clip_value=10", "blend=null",
    ),
    published=(
        "embedding_dim=2048", "crop=official", "batch_size=192", "images_per_class=3", "model.image_size=256",
        "schedule.kind=constant", "epochs=80", "schedule.steps=null",
    ),
    deviations=(
        "the warm-up of the head is 5 epochs or a sixteenth of the run, whichever is less",
        "the rate is constant; the published code lowers it when the validation stands still",
        "the rates are those for SOP (0.024 and 240); for CUB the published code has 0.004 and 400",
        "with a head on cached features there is no batch norm to train, and no backbone to hold still",
        "with the published settings the test view is cut from 293 pixels, not 288",
    ),
    fit=fit_warm_up,
    build=partial(build, count_positive=True),
)  # fmt: skip
