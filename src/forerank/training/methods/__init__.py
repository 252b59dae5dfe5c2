"""Methods by name: what the paper compares, each as its own paper has it.

``method=NAME`` in a recipe or a command line chooses one. A method is one file and one line of `METHODS`.
"""

from typing import Any

from forerank.errors import look_up
from forerank.training.methods.cross_batch_contrastive import CONTRASTIVE_WITH_MEMORY
from forerank.training.methods.dcml_mdw import DCML_MDW
from forerank.training.methods.divide_and_conquer import DIVIDE_AND_CONQUER
from forerank.training.methods.histogram import HISTOGRAM
from forerank.training.methods.losses import (
    BLACKBOX_AP,
    FAST_AP,
    RECALL_AT_K,
    ROADMAP,
    SMOOTH_AP,
)
from forerank.training.methods.margin import MARGIN
from forerank.training.methods.method import (
    Ingredients,
    LossObjective,
    Method,
    Objective,
    TrainingSet,
    complete_options,
    loss_objective,
)
from forerank.training.methods.mic import MIC_METHOD
from forerank.training.methods.proxy_nca import PROXY_NCA, PROXY_NCA_PLUS_PLUS
from forerank.training.methods.rank_mi import RANK_MI
from forerank.training.methods.soft_triple import SOFT_TRIPLE
from forerank.training.methods.triplet import TRIPLET
from forerank.training.recipe import OWN_LOSS, Recipe

__all__ = [
    "METHODS",
    "Ingredients",
    "LossObjective",
    "Method",
    "Objective",
    "TrainingSet",
    "check_method",
    "complete_options",
    "describe_method",
    "find_method",
    "loss_objective",
]

METHODS: dict[str, Method] = {
    "blackbox-ap": BLACKBOX_AP,
    "contrastive-with-memory": CONTRASTIVE_WITH_MEMORY,
    "dcml-mdw": DCML_MDW,
    "divide-and-conquer": DIVIDE_AND_CONQUER,
    "fastap": FAST_AP,
    "histogram": HISTOGRAM,
    "margin": MARGIN,
    "mic": MIC_METHOD,
    "proxynca": PROXY_NCA,
    "proxynca++": PROXY_NCA_PLUS_PLUS,
    "rankmi": RANK_MI,
    "recall-at-k": RECALL_AT_K,
    "roadmap": ROADMAP,
    "smooth-ap": SMOOTH_AP,
    "softtriple": SOFT_TRIPLE,
    "triplet": TRIPLET,
}


def check_method(recipe: Recipe) -> None:
    """Refuse a method, an option, a loss or an argument of it that does not exist."""
    if recipe.method.name is not None:
        complete_options(recipe.method.name, find_method(recipe.method.name), recipe.method.options)
    if recipe.loss.name != OWN_LOSS:
        from forerank.training.baselines import build_loss

        build_loss(recipe, classes=2, embedding_dim=8)


def describe_method(key: str) -> dict[str, Any]:
    """What a table or a person wants to know of a method.

    >>> describe_method("triplet")["options"]
    ['margin=0.2']
    """
    method = find_method(key)
    return {
        "method": key,
        "title": method.title,
        "about": method.about,
        "paper": method.paper,
        "options": [f"{name}={value}" for name, value in method.options.items()],
        "values": method.assignments(published=False),
        "published": list(method.published),
        "deviations": list(method.deviations),
    }


def find_method(key: str) -> Method:
    """The method of a name.

    >>> find_method("mic").title
    'MIC'
    >>> find_method("divide")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown method 'divide': did you mean 'divide-and-conquer'? Valid: ...
    """
    return look_up("method", key, METHODS)
