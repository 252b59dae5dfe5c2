"""The loss of a recipe: ours by name, or pytorch-metric-learning's as a baseline under the same protocol."""

import copy
import inspect
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from forerank.console import say
from forerank.errors import InputError, check_name, require
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
ARGUMENTS: dict[str, dict[str, Any]] = {"HistogramLoss": {"n_bins": 100}, "MarginLoss": {"learn_beta": True}}
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
    miner = options.pop("miner", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # proxies start at random, alike in every process
        if name.startswith(PREFIX):
            loss = baseline(name.removeprefix(PREFIX), options, classes, embedding_dim)
        else:
            loss = create_loss(name, gather=True, **options)  # in one process gathering does nothing
    if miner is not None:
        loss = _with_miner(loss, name, miner, classes, embedding_dim)
    if recipe.loss.memory < 0:
        raise InputError(f"loss.memory must be 0 (no memory bank) or more, not {recipe.loss.memory}")
    if not recipe.loss.memory:
        return loss
    if not isinstance(loss, RankingLoss):
        _refuse_without_references(loss, name, classes, embedding_dim)
    return CrossBatchMemory(loss, recipe.loss.memory)


def _refuse_without_references(loss: nn.Module, name: str, classes: int, embedding_dim: int) -> None:
    """Refuse a loss that cannot compare a batch with a memory bank now, and not at the second step."""
    try:
        _try_on_four_vectors(loss, classes, embedding_dim, with_references=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot use a memory bank ({error}): give loss.memory=0") from error


def _try_on_four_vectors(
    loss: nn.Module, classes: int, embedding_dim: int, *, with_references: bool = False
) -> None:
    """Call a copy of the loss, whose parameters and statistics nobody sees, for what it refuses."""
    vectors = torch.eye(4, embedding_dim) + 0.1
    labels = torch.arange(4) % min(2, classes)
    references = {"ref_emb": vectors.flip(0), "ref_labels": labels.flip(0)} if with_references else {}
    with suppress(RuntimeError, IndexError):  # four vectors may be too few for it; it refused nothing
        copy.deepcopy(loss)(vectors, labels, **references)


def baseline(name: str, options: dict[str, Any], classes: int, embedding_dim: int) -> nn.Module:
    """A loss of pytorch-metric-learning; what it must know of the data is filled in."""
    if name in REPLACED:
        ours, why = REPLACED[name]
        say(f"pytorch-metric-learning's {name} {why}: Forerank's own {ours} is used instead")
        return create_loss(ours, gather=True, **options)
    losses = require("pytorch_metric_learning.losses")
    available = _classes(losses, losses.BaseMetricLossFunction)
    known = {"num_classes": classes, "embedding_size": embedding_dim} | ARGUMENTS.get(name, {})
    if name == "HistogramLoss":
        known["distance"] = _below_one()
    return _peer(name, "loss", available, known | options, options)


def _classes(module: ModuleType, base: type) -> dict[str, type]:
    """What a module of the peer offers: name -> class."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and not name.startswith("Base")
        and name not in APART
    }


def _peer(
    name: str, kind: str, available: Mapping[str, type], arguments: dict[str, Any], given: dict[str, Any]
) -> nn.Module:
    """One of the peer's classes built with those of `arguments` that it accepts; `given` are all checked."""
    check_name(f"{kind} of pytorch-metric-learning", name, sorted(available))
    accepted = _arguments(available[name])
    for key in given:
        check_name(f"argument of {PREFIX}{name}", key, sorted(accepted))
    arguments = {key: value for key, value in arguments.items() if key in accepted}
    try:
        return cast(nn.Module, available[name](**arguments))
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(f"{PREFIX}{name} cannot be built with {arguments}: {error}") from error


def _below_one() -> nn.Module:
    """Its cosine similarity, kept below 1: rounding above that is a bin which its histogram does not have."""

    class BelowOne(require("pytorch_metric_learning.distances").CosineSimilarity):  # type: ignore[misc]
        def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
            similarity: Tensor = super().compute_mat(query_emb, ref_emb)
            return similarity.clamp(max=1 - 1e-6)

    return cast(nn.Module, BelowOne())


class MinedLoss(nn.Module):
    """A peer's loss on the pairs or triplets that a peer's miner chooses."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch (N, D), against the references (M, D) if they are given."""
        chosen = self.miner(embeddings, labels, ref_emb, ref_labels)
        loss: Tensor = self.loss(embeddings, labels, chosen, ref_emb, ref_labels)
        return loss


def build_miner(given: Any) -> nn.Module:
    """A miner of pytorch-metric-learning from its name, or from a mapping of its name and arguments.

    >>> build_miner({"name": "pml:TripletMarginMiner", "type_of_triplets": "semihard"}).type_of_triplets
    'semihard'
    >>> build_miner("pml:HDC")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown miner of pytorch-metric-learning 'HDC': did you mean 'HDCMiner'? ...
    """
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = str(options.pop("name", ""))
    if not name.startswith(PREFIX):
        raise InputError(
            f"loss.miner is written pml:NAME, or {{name: pml:NAME, argument: value}}, not {given!r}."
        )
    miners = require("pytorch_metric_learning.miners")
    return _peer(name.removeprefix(PREFIX), "miner", _classes(miners, miners.BaseMiner), options, options)


def _with_miner(loss: nn.Module, name: str, given: Any, classes: int, embedding_dim: int) -> nn.Module:
    """The loss with its miner; a loss that takes no pairs or triplets is refused."""
    if isinstance(loss, RankingLoss):
        raise InputError(
            f"{name} takes no miner, because it ranks all positives against all negatives: remove loss.miner."
        )
    mined = MinedLoss(loss, build_miner(given))
    try:
        _try_on_four_vectors(mined, classes, embedding_dim)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} takes no miner ({error}): remove loss.miner.") from error
    return mined


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
    inner = loss.loss if isinstance(loss, CrossBatchMemory) else loss
    ours = isinstance(inner, RankingLoss)
    if not ours:  # ours takes its labels from the host, without waiting for the device
        labels, rows = (x.to(embeddings.device, non_blocking=True) for x in (labels, rows))
    if not ours and world_size() > 1:  # a peer's loss knows one process only, so each computes the whole
        (embeddings, _), (labels, _), (rows, _) = (gather_rows(x) for x in (embeddings, labels, rows))
    images = {"ids": rows} if isinstance(loss, CrossBatchMemory) else {}
    try:
        result: Tensor = loss(embeddings, labels, **images)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if ours or isinstance(error, InputError):
            raise
        peer = inner.loss if isinstance(inner, MinedLoss) else inner
        raise InputError(
            f"{PREFIX}{type(peer).__name__} failed on a batch of {len(labels)}: {error}"
        ) from error
    return result
