"""What a method is: recipe values, and an objective where a loss of (embeddings, labels) is not enough.

An entry of the registry (`Method`) says what the method is called, where it comes from, which recipe values
belong to it and where it differs from its paper. An `Objective` is what a running method computes with: the
vectors that its loss reads, the loss, its own parameters, and what it does with the features of all training
images from time to time. All of its state is tensors, so a run that is resumed continues exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from forerank.data import Table
from forerank.errors import InputError, check_name
from forerank.losses.gather import gather_rows, world_size
from forerank.training.checkpoint import optimiser_tensors, restore_optimiser
from forerank.training.recipe import OWN_LOSS, Recipe

if TYPE_CHECKING:
    from forerank.models import EmbeddingModel

INNER = "inner_optimiser."  # prefix of the inner optimiser's state


@dataclass(frozen=True)
class Ingredients:
    """What an objective is built from.

    Attributes:
        recipe: complete, with all options of the method.
        table: the training images.
        feature_dim: C, width of the pooled features.
        output_dim: D, width of the model's vectors.
    """

    recipe: Recipe
    table: Table
    feature_dim: int
    output_dim: int

    @property
    def classes(self) -> int:
        """How many classes the training images have."""
        return len(self.table.classes)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the method, all of them."""
        return self.recipe.method.options


@dataclass(frozen=True)
class TrainingSet:
    """All training images as the present model sees them, when an objective renews what it derives from them.

    Attributes:
        features: (n, C) pooled features, in the order of the table.
        labels: (n,) their classes.
        step, steps: where the run stands, and where it ends.
        seed: the run's seed.
    """

    features: Tensor
    labels: Tensor
    step: int
    steps: int
    seed: int


class Objective(nn.Module):
    """What a method minimises. The defaults are those of a loss of unit vectors and labels.

    Attributes:
        renew_epochs: `renew` is called at the first step and every this many epochs; None: never.
        inner_optimiser: moves parameters that the loss itself trains; the run's optimiser leaves them alone.
    """

    renew_epochs: int | None = None
    inner_optimiser: torch.optim.Optimizer | None = None

    def embed(self, model: "EmbeddingModel", features: Tensor) -> Tensor:
        """Pooled features (n, C) to the vectors (n, V) that the loss reads, each row by itself."""
        return model.embed_features(features)

    def forward(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """The loss of the batches of all processes together; its gradient is ready to be averaged over them.

        Args:
            vectors: (n, V) of this process, from `embed`.
            labels: (n,) classes, on the host.
            rows: (n,) which images of the training table they are, on the host.
        """
        labels, rows = (x.to(vectors.device, non_blocking=True) for x in (labels, rows))
        if world_size() > 1:  # each process computes the whole loss
            (vectors, _), (labels, _), (rows, _) = (gather_rows(x) for x in (vectors, labels, rows))
        return self.loss(vectors, labels, rows)

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """The loss of a whole batch: (N, V), (N,), (N,) to a scalar."""
        raise NotImplementedError

    def head_parameters(self) -> list[nn.Parameter]:
        """Parameters that learn like the embedding layer: at its rate, with weight decay."""
        return []

    def loss_parameters(self) -> list[nn.Parameter]:
        """Parameters that are positions, such as proxies: at the rate `loss_lr`, without weight decay."""
        inner = self.inner_optimiser.param_groups if self.inner_optimiser is not None else []
        elsewhere = {id(p) for p in [*self.head_parameters(), *(p for g in inner for p in g["params"])]}
        return [p for p in self.parameters() if id(p) not in elsewhere]

    def renewals(self, steps_per_epoch: int, steps: int) -> list[int]:
        """The steps of a run before which `renew` is called, in order."""
        if self.renew_epochs is None:
            return []
        return list(range(0, steps, max(1, self.renew_epochs) * steps_per_epoch))

    def renew(self, training: TrainingSet) -> None:
        """Derive from all training images what the next steps need, and keep it in buffers."""

    def groups(self) -> NDArray[np.int64] | None:
        """(n,) group of each training image, taken in turn by batches; below 0: left out. None: one group."""
        return None

    def state_tensors(self) -> dict[str, Tensor]:
        """All state by name."""
        tensors = {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}
        if self.inner_optimiser is not None:
            tensors |= {
                INNER + name: value for name, value in optimiser_tensors(self.inner_optimiser).items()
            }
        return tensors

    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state_tensors` gave."""
        inner = {name.removeprefix(INNER): value for name, value in tensors.items() if name.startswith(INNER)}
        self.load_state_dict({name: value for name, value in tensors.items() if not name.startswith(INNER)})
        if self.inner_optimiser is not None:
            restore_optimiser(self.inner_optimiser, inner)


class LossObjective(Objective):
    """The loss of the recipe, ours or a peer's, with its memory bank."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.recipe_loss = loss

    def forward(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        from forerank.training.baselines import joint_loss

        return joint_loss(self.recipe_loss, vectors, labels, rows)


def loss_objective(ingredients: Ingredients) -> Objective:
    """The objective of a method that is a loss with settings."""
    from forerank.training.baselines import build_loss

    return LossObjective(build_loss(ingredients.recipe, ingredients.classes, ingredients.output_dim))


def as_it_is(recipe: Recipe, train: Table) -> Recipe:
    """No value depends on the data."""
    return recipe


@dataclass(frozen=True)
class Method:
    """An entry of the registry.

    Attributes:
        title: as tables print it.
        about: one line: what it does.
        paper: where it was published.
        values: recipe assignments (``key=value``) that belong to the method on any data.
        published: further assignments: the training settings of its paper, taken with
            ``method.settings=published``.
        options: its own options with their defaults.
        above_zero: those of them that cannot be 0.
        deviations: where what is done here differs from the paper, one sentence each.
        fit: (recipe, training table) -> the recipe with what depends on the data, or a refusal with numbers.
        build: makes the objective.
    """

    title: str
    about: str
    paper: str
    values: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    above_zero: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    fit: Callable[[Recipe, Table], Recipe] = as_it_is
    build: Callable[[Ingredients], Objective] = loss_objective

    @property
    def own_loss(self) -> bool:
        """Whether the objective brings its loss, so that the recipe's `loss` has nothing to say."""
        return self.build is not loss_objective

    def assignments(self, *, published: bool) -> list[str]:
        """The recipe assignments that choosing this method means."""
        own = [f"loss.name={OWN_LOSS}"] if self.own_loss else []
        return [*own, *self.values, *(self.published if published else ())]


def complete_options(key: str, method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method, those given over the defaults; unknown ones and wrong types are refused."""
    for name, value in given.items():
        check_name(f"option of the method {key}", name, method.options)
        default = method.options[name]
        whole = isinstance(default, int) and not isinstance(default, bool)
        right = isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
        if not right or (isinstance(value, bool) and not isinstance(default, bool)):
            kind = "true or false" if isinstance(default, bool) else "a whole number" if whole else "a number"
            raise InputError(f"method.{name} must be {kind}, not {value!r}")
        if not isinstance(default, bool) and value < 0:
            raise InputError(f"method.{name} must be 0 or more, not {value}")
        if value == 0 and name in method.above_zero:
            raise InputError(f"method.{name} must be above 0, not {value}")
    return {name: type(default)(given.get(name, default)) for name, default in method.options.items()}


def usable_images(train: Table) -> tuple[int, int]:
    """Images and classes of the training part that can be used: those of classes with two images or more.

    >>> from pathlib import Path
    >>> usable_images(Table(["a", "b", "c"], ["x", "x", "y"], ["train"] * 3, root=Path()))
    (2, 1)
    """
    counts = np.bincount(train.label_ids)
    return int(counts[counts >= 2].sum()), int((counts >= 2).sum())
