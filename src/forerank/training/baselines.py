"""The loss of a recipe: ours by name, or any of pytorch-metric-learning's as a baseline under the same protocol."""

import inspect
from typing import Any

from torch import Tensor, nn

from forerank.console import say
from forerank.errors import InputError, require, unknown
from forerank.losses import CrossBatchMemory, create_loss
from forerank.losses.gather import gather_rows, world_size
from forerank.training.recipe import Recipe

PREFIX = "pml:"
# Its loss -> ours, and why.
REPLACED = {
    "SmoothAPLoss": ("Smooth-AP", "is only right when a batch has as many classes as images of each"),
    "PNPLoss": ("PNP-Dq", "needs memory cubic in the batch and gives NaN gradients in half precision"),
}
# Arguments without which its constructor refuses to work, at the values its documentation names.
ARGUMENTS: dict[str, dict[str, Any]] = {"HistogramLoss": {"n_bins": 100}}
# Not losses of (embeddings, labels).
APART = {"CrossBatchMemory", "SelfSupervisedLoss", "VICRegLoss", "PNPLoss", "SmoothAPLoss"}


def build_loss(recipe: Recipe, classes: int, embedding_dim: int) -> nn.Module:
    """The recipe's loss, wrapped in its memory bank if it has one.

    >>> from forerank.training.recipe import Recipe, override
    >>> type(build_loss(Recipe(), 10, 8)).__name__
    'PNPLoss'
    >>> loss = build_loss(override(Recipe(), ["loss=pml:ProxyNCALoss"]), classes=10, embedding_dim=8)
    >>> [tuple(p.shape) for p in loss.parameters()]
    [(10, 8)]
    """
    name, options = recipe.loss.name, dict(recipe.loss.options)
    if name.startswith(PREFIX):
        loss = baseline(name.removeprefix(PREFIX), options, classes, embedding_dim)
    else:
        loss = create_loss(name, gather=True, **options)  # in one process gathering does nothing
    if recipe.loss.memory < 0:
        raise InputError(f"loss.memory must be 0 (no memory bank) or more, not {recipe.loss.memory}")
    return CrossBatchMemory(loss, recipe.loss.memory) if recipe.loss.memory else loss


def baseline(name: str, options: dict[str, Any], classes: int, embedding_dim: int) -> nn.Module:
    """A loss of pytorch-metric-learning; what it must know of the data is filled in."""
    if name in REPLACED:
        ours, why = REPLACED[name]
        say(f"pytorch-metric-learning's {name} {why}: Forerank's own {ours} is used instead")
        return create_loss(ours, gather=True, **options)
    losses = require("pytorch_metric_learning.losses")
    base = losses.BaseMetricLossFunction
    found = {
        key: value
        for key, value in vars(losses).items()
        if inspect.isclass(value) and issubclass(value, base) and not key.startswith("Base") and key not in APART
    }
    if name not in found:
        raise unknown("loss of pytorch-metric-learning", name, sorted(found))
    accepted = _arguments(found[name])
    known = {"num_classes": classes, "embedding_size": embedding_dim}
    arguments = {k: v for k, v in known.items() if k in accepted} | ARGUMENTS.get(name, {}) | options
    for key in options:
        if key not in accepted:
            raise unknown(f"argument of {PREFIX}{name}", key, sorted(accepted))
    try:
        loss: nn.Module = found[name](**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{PREFIX}{name} cannot be built with {arguments}: {error}") from error
    return loss


def _arguments(kind: type) -> set[str]:
    """The names that a constructor and those it passes on to accept."""
    names: set[str] = set()
    for owner in kind.__mro__:
        if "__init__" in owner.__dict__ and owner.__module__.startswith("pytorch_metric_learning"):
            parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
            names |= {p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.kind is not p.VAR_POSITIONAL}
    return names - {"self"}


def joint_loss(loss: nn.Module, embeddings: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """The loss of the batches of all processes together, its gradient ready to be averaged over them.

    Args:
        loss: from `build_loss`.
        embeddings: (n, D) of this process.
        labels: (n,) their classes.
        rows: (n,) their images, by which a memory bank knows an image's own stale copy.
    """
    if isinstance(loss, CrossBatchMemory):
        result: Tensor = loss(embeddings, labels, rows)
        return result
    if world_size() > 1 and not getattr(loss, "gather", False):  # a peer's loss sees one process only
        embeddings, _ = gather_rows(embeddings)
        labels, _ = gather_rows(labels)
    result = loss(embeddings, labels)
    return result
