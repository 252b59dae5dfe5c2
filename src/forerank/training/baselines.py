"""The loss of a recipe: ours by name, or pytorch-metric-learning's as a baseline under the same protocol."""

import copy
import inspect
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from forerank.console import say
from forerank.errors import InputError, MissingExtraError, require, unknown
from forerank.losses import CrossBatchMemory, RankingLoss, create_loss
from forerank.losses.gather import gather_rows, world_size
from forerank.training.recipe import Recipe

PREFIX = "pml:"
# Its loss -> ours, and why.
REPLACED = {
    "SmoothAPLoss": ("Smooth-AP", "is only right when a batch has as many classes as images of each"),
    "PNPLoss": ("PNP-Dq", "needs memory cubic in the batch and gives NaN gradients in half precision"),
}
# Arguments where its constructor has no default (its documentation's value), or one that is not the paper's.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "HistogramLoss": {"n_bins": 100},
    "MarginLoss": {"learn_beta": True},
}
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # proxies start at random, alike in every process
        if name.startswith(PREFIX):
            loss = baseline(name.removeprefix(PREFIX), options, classes, embedding_dim)
        else:
            loss = create_loss(name, gather=True, **options)  # in one process gathering does nothing
    if recipe.loss.memory < 0:
        raise InputError(f"loss.memory must be 0 (no memory bank) or more, not {recipe.loss.memory}")
    if not recipe.loss.memory:
        return loss
    if isinstance(loss, RankingLoss):
        return CrossBatchMemory(loss, recipe.loss.memory)
    _probe_references(loss, name, classes, embedding_dim)
    return PeerMemory(loss, recipe.loss.memory, name)


def check_loss(recipe: Recipe) -> None:
    """Refuse a loss or an argument of it that does not exist; a peer's that is not installed may be right.

    >>> from forerank.training.recipe import override
    >>> check_loss(override(Recipe(), ["loss=PNP-Dx"]))
    Traceback (most recent call last):
    forerank.errors.InputError: unknown loss 'PNP-Dx': did you mean 'PNP-Ds'? Valid: ...
    """
    with suppress(MissingExtraError):
        build_loss(recipe, classes=2, embedding_dim=8)


def _probe_references(loss: nn.Module, name: str, classes: int, embedding_dim: int) -> None:
    """Refuse a loss that cannot compare a batch with a memory bank, before the second step would."""
    vectors = torch.eye(4, embedding_dim) + 0.1
    labels = torch.arange(4) % min(2, classes)
    try:
        # On a copy, whose parameters and statistics nobody sees.
        copy.deepcopy(loss)(vectors, labels, ref_emb=vectors.flip(0), ref_labels=labels.flip(0))
    except (TypeError, ValueError) as error:
        raise no_memory(name, error) from error
    except (RuntimeError, IndexError):
        pass  # four vectors may be too few for it; that it takes references is all that was asked


def no_memory(name: str, error: Exception) -> InputError:
    """The sentence about a loss without references."""
    return InputError(f"{name} cannot use a memory bank ({error}): give loss.memory=0")


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
        if inspect.isclass(value)
        and issubclass(value, base)
        and not key.startswith("Base")
        and key not in APART
    }
    if name not in found:
        raise unknown("loss of pytorch-metric-learning", name, sorted(found))
    accepted = _arguments(found[name])
    known = {"num_classes": classes, "embedding_size": embedding_dim}
    arguments = {k: v for k, v in known.items() if k in accepted} | ARGUMENTS.get(name, {}) | options
    for key in options:
        if key not in accepted:
            raise unknown(f"argument of {PREFIX}{name}", key, sorted(accepted))
    if name == "HistogramLoss":
        arguments.setdefault("distance", _below_one())
    try:
        return cast(nn.Module, found[name](**arguments))
    except (TypeError, ValueError) as error:
        raise InputError(f"{PREFIX}{name} cannot be built with {arguments}: {error}") from error


def _below_one() -> nn.Module:
    """Its cosine similarity, kept below 1: rounding above that is a bin which its histogram does not have."""

    class BelowOne(require("pytorch_metric_learning.distances").CosineSimilarity):  # type: ignore[misc]
        def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
            similarity: Tensor = super().compute_mat(query_emb, ref_emb)
            return similarity.clamp(max=1 - 1e-6)

    return cast(nn.Module, BelowOne())


class PeerMemory(nn.Module):
    """A memory bank for a peer's pair loss: the loss within the batch plus the loss against what is stored.

    Unlike the peer's own bank, all of it is saved with a checkpoint and an image's stale copy is left out.

    References:
        Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020.
    """

    embeddings: Tensor  # (M, D), M grows to `size`
    labels: Tensor  # (M,)
    rows: Tensor  # (M,) which image each one is

    def __init__(self, loss: nn.Module, size: int, name: str) -> None:
        super().__init__()
        self.loss, self.size, self.name = loss, size, name
        for buffer in ("embeddings", "labels", "rows"):
            self.register_buffer(
                buffer, torch.empty(0, dtype=torch.float32 if buffer == "embeddings" else torch.int64)
            )

    def forward(self, embeddings: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Loss of a batch (N, D), which is stored afterwards."""
        result: Tensor = self.loss(embeddings, labels)
        fresh = ~torch.isin(self.rows, rows)
        kept, kept_labels = self.embeddings[fresh], self.labels[fresh]
        if len(kept):
            try:
                result = result + self.loss(embeddings, labels, ref_emb=kept, ref_labels=kept_labels)
            except ValueError as error:
                raise no_memory(self.name, error) from error
        past = kept if len(kept) else embeddings.new_empty(0, embeddings.shape[1])
        self.embeddings = torch.cat([past, embeddings.detach().float()])[-self.size :]
        self.labels = torch.cat([kept_labels, labels])[-self.size :]
        self.rows = torch.cat([self.rows[fresh], rows])[-self.size :]
        return result

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for buffer in ("embeddings", "labels", "rows"):  # as many rows as had been stored
            setattr(self, buffer, torch.empty_like(state_dict[prefix + buffer]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _arguments(kind: type) -> set[str]:
    """The names that a constructor and those it passes on to accept."""
    names: set[str] = set()
    for owner in kind.__mro__:
        if "__init__" in owner.__dict__ and owner.__module__.startswith("pytorch_metric_learning"):
            parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
            names |= {
                p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.kind is not p.VAR_POSITIONAL
            }
    return names - {"self"}


def joint_loss(loss: nn.Module, embeddings: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """The loss of the batches of all processes together, its gradient ready to be averaged over them.

    Args:
        loss: from `build_loss`.
        embeddings: (n, D) of this process.
        labels: (n,) their classes.
        rows: (n,) their images, by which a memory bank knows an image's own stale copy.
    """
    rows = rows.to(labels.device)
    if isinstance(loss, CrossBatchMemory):
        result: Tensor = loss(embeddings, labels, ids=rows)
    elif isinstance(loss, RankingLoss):
        result = loss(embeddings, labels)
    else:
        if world_size() > 1:  # a peer's loss knows one process only, so each computes the whole
            (embeddings, _), (labels, _), (rows, _) = (gather_rows(x) for x in (embeddings, labels, rows))
        extra = (rows,) if isinstance(loss, PeerMemory) else ()
        try:
            result = loss(embeddings, labels, *extra)
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            name = type(loss).__name__
            raise InputError(f"{PREFIX}{name} failed on a batch of {len(labels)}: {error}") from error
    return result
