"""Everything a run computes with, put together from a complete recipe."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forerank.data import Table
from forerank.data.preprocessing import SeveralViews
from forerank.errors import InputError
from forerank.models import EmbeddingModel, create_model, load_model, save_model
from forerank.models.embedding import channels_last
from forerank.models.storage import saved_spec
from forerank.training.batches import SMALL_IMAGES, Batches, BatchPlan, FeatureRows
from forerank.training.checkpoint import BEST, optimiser_tensors, restore_optimiser, save_state
from forerank.training.features import part_features
from forerank.training.measure import Part, embed, feature_part, image_part, measure
from forerank.training.methods import Ingredients, Objective, TrainingSet, find_method, loss_objective
from forerank.training.optimise import Blend, RunningMean, build_optimiser
from forerank.training.prepare import starts_from_saved
from forerank.training.processes import Processes, from_first
from forerank.training.recipe import Recipe
from forerank.training.whitening import HeadStart, choose_start, start_from_principal_axes

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Assembly:
    """Model, objective, optimiser and data of a run."""

    recipe: Recipe
    processes: Processes
    model: EmbeddingModel
    objective: Objective
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    mean: RunningMean | None
    blend: Blend | None
    plan: BatchPlan
    train: Part
    chooser: Part | None  # the part that chooses the checkpoint; None: the last one is taken
    test: Part
    head_start: HeadStart | None = None  # the whitening, if the recipe asks to consider it

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters that learn, the objective's own included."""
        return [p for group in self.optimiser.param_groups for p in group["params"]]

    def encode(self, inputs: Tensor) -> Tensor:
        """Images, or cached features in head mode, to unit vectors (n, D) in the recipe's precision."""
        return encode(self.model, inputs, self.recipe, self.processes.device)

    def encode_for_loss(self, inputs: Tensor) -> Tensor:
        """Images, or cached features in head mode, to the vectors (n, V) that the objective reads."""
        with precision(self.recipe, self.processes.device):
            return self.objective.embed(self.model, features_of(self.model, inputs, self.recipe)).float()

    def open_batches(self, step: int, steps: int) -> Batches:
        """The batches from a step on, up to the next renewal of the objective or the end of the run."""
        renewals = self.objective.renewals(self.plan.steps_per_epoch, steps)
        if step in renewals:
            self.renew_objective(step, steps)
        groups = self.objective.groups()
        plan = (
            self.plan if groups is None else BatchPlan(self.recipe, self.train.table, self.processes, groups)
        )
        until = next((renewal for renewal in renewals if renewal > step), steps)
        return Batches(self.recipe, plan, self.train.data, range(step, until), self.processes.device)

    def renew_objective(self, step: int, steps: int) -> None:
        """Let the objective derive from all training images what it needs; the same in all processes."""
        self.model.eval()

        def features(inputs: Tensor) -> Tensor:
            with precision(self.recipe, self.processes.device):
                return features_of(self.model, inputs, self.recipe).float()

        embedded = embed(features, self.train, self.recipe, self.processes, title=None)
        if len(embedded.table) != len(self.train.table):
            lost = len(self.train.table) - len(embedded.table)
            raise InputError(f"{lost} training images can no longer be read: check the files and resume")
        self.objective.renew(
            TrainingSet(
                torch.from_numpy(embedded.vectors),
                torch.from_numpy(self.train.table.label_ids),
                step,
                steps,
                self.recipe.seed,
            )
        )
        for buffer in self.objective.buffers():
            buffer.copy_(from_first(buffer, self.processes))

    def set_training(self, only_head: bool) -> None:
        """Training mode; in the warm-up of the head the backbone stands still."""
        if not self.model.training:  # walking through the modules of a large backbone takes milliseconds
            self.model.train()
        for group in self.optimiser.param_groups:
            if group["name"] == "backbone":
                for parameter in group["params"]:
                    parameter.requires_grad_(not only_head)

    @contextmanager
    def final_weights(self) -> Iterator[None]:
        """Inside, the model is what would be shipped: in evaluation mode, its weights averaged or blended."""
        if self.mean is not None:
            self.mean.swap(self.model)
        self.model.eval()
        try:
            with self.blend.inside(self.model) if self.blend is not None else nullcontext():
                yield
        finally:
            if self.mean is not None:
                self.mean.swap(self.model)

    def write(self, folder: Path, state: Mapping[str, Any], link: str) -> None:
        """Fill a checkpoint folder: the model to ship for `best`, all that resuming needs for `last`."""
        if link == BEST:
            with self.final_weights():
                save_model(self.model, folder)
            save_state(folder, state, {})
            return
        save_model(self.model, folder)
        tensors = {f"optimiser.{k}": v for k, v in optimiser_tensors(self.optimiser).items()}
        tensors |= {f"objective.{k}": v for k, v in self.objective.state_tensors().items()}
        tensors |= {f"mean.{k}": v for k, v in (self.mean.tensors if self.mean else {}).items()}
        tensors |= {
            f"scaler.{k}": torch.tensor(v, dtype=torch.float64) for k, v in self.scaler.state_dict().items()
        }
        save_state(folder, state, tensors)

    def restore(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `write` wrote under `last`."""

        def named(prefix: str) -> dict[str, Tensor]:
            return {
                key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
            }

        self.model.load_state_dict(load_model(folder).state_dict())
        restore_optimiser(self.optimiser, named("optimiser."))
        self.objective.restore_tensors(named("objective."))
        if self.mean is not None:
            self.mean.restore(named("mean."))
        scaler = {key: value.item() for key, value in named("scaler.").items()}
        if scaler:
            whole = ("growth_interval", "_growth_tracker")
            self.scaler.load_state_dict({k: int(v) if k in whole else v for k, v in scaler.items()})

    def describe(self, steps: int, done: int) -> str:
        """One line about what is going to happen."""
        r = self.recipe
        learning = sum(p.numel() for p in self.parameters)
        what = "all weights but those of the first layers" if r.model.frozen else "all weights"
        what = "a head on cached features" if r.mode == "head" else what
        several = f", {self.processes.count} processes" if self.processes.count > 1 else ""
        begun = f", from step {done:,}" if done else ""
        return (
            f"training {what} of {r.model.backbone} ({learning:,} parameters) with "
            f"{r.method.name or r.loss.name} on {len(self.train.table):,} images of "
            f"{len(self.train.table.classes):,} classes: {steps:,} steps of "
            f"{r.batch.batch_size}{several}{begun}"
        )


def precision(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Inside, the model computes in the recipe's precision."""
    dtype = DTYPES.get(recipe.precision)
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def features_of(model: EmbeddingModel, inputs: Tensor, recipe: Recipe) -> Tensor:
    """Pooled features (n, C) of images; in head mode the inputs are these features."""
    if recipe.mode == "head":
        return inputs
    return model.features(channels_last(inputs))


def encode(model: EmbeddingModel, inputs: Tensor, recipe: Recipe, device: torch.device) -> Tensor:
    """Images, or features in head mode, to unit vectors (n, D) float32."""
    with precision(recipe, device):
        return model.embed_features(features_of(model, inputs, recipe)).float()


def build_objective(recipe: Recipe, table: Table, model: EmbeddingModel) -> Objective:
    """What the recipe's method minimises; its parameters start alike in every process."""
    build = loss_objective if recipe.method.name is None else find_method(recipe.method.name).build
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.seed)
        return build(Ingredients(recipe, table, model.feature_dim, model.output_dim))


def build_model(recipe: Recipe, *, plain: bool = False) -> EmbeddingModel:
    """The recipe's model; `plain`: what training is measured by.

    That is the pretrained network without a head; or the run or saved model that the recipe starts from, just
    as it is, with the head it has.
    """
    m = recipe.model

    def build(width: int | None) -> EmbeddingModel:
        return create_model(
            m.backbone,
            embedding_dim=width,
            pooling=m.pooling,
            layer_norm=m.layer_norm and not plain,
            pretrained=m.pretrained,
            freeze_batch_norm=m.freeze_batch_norm,
            head_start="random" if m.head_start == "random" else "features",  # whitening comes later
            slices=1 if plain else m.slices,
            seed=recipe.seed,
        )

    if plain and starts_from_saved(recipe):
        model = load_model(m.backbone)
    else:
        model = build(None if plain else m.embedding_dim or None)
        if not plain and m.embedding_dim == 0:
            model = build(model.feature_dim)
    d = recipe.data
    model.preprocessing = model.preprocessing.with_training_view(d.crop, d.colour, d.erase)
    if m.image_size is not None:
        model.preprocessing = model.preprocessing.at_size(m.image_size)
        _check_size(model, "model.image_size", m.image_size)
    if recipe.data.train_size is not None:
        if isinstance(model.preprocessing, SeveralViews):
            raise InputError("data.train_size needs a single backbone: several see images of their own sizes")
        _check_size(model, "data.train_size", recipe.data.train_size)
    return model


def _keeps_a_trained_head(recipe: Recipe, model: EmbeddingModel) -> bool:
    """Whether the head is that of the saved model which the recipe starts from, not a new one."""
    if not starts_from_saved(recipe):
        return False
    saved = saved_spec(recipe.model.backbone)
    return bool(
        model.head is not None
        and saved["embedding_dim"] == model.head.out_features
        and saved["layer_norm"] == (model.layer_norm is not None)
    )


def _check_size(model: EmbeddingModel, key: str, size: int) -> None:
    """Refuse a size that the network cannot take before the long work: some are built for one size."""
    training = model.training
    try:
        with torch.inference_mode():
            model.eval().features(torch.zeros(1, *model.preprocessing.at_size(size).shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f"{key}={size} does not suit {model.spec['backbone']}: leave it out, or give a multiple of 32"
        ) from error
    finally:
        model.train(training)


def assemble(
    recipe: Recipe,
    tables: Mapping[str, Table],
    processes: Processes,
    model: EmbeddingModel | None = None,
    inputs: Mapping[str, Part] | None = None,
) -> Assembly:
    """Build all parts of a run; in head mode this computes the backbone's features or finds them cached.

    Args:
        model: of `build_model`, if the caller has it already.
        inputs: of `open_inputs`, if the caller has them already.
    """
    device = processes.device
    model = (build_model(recipe) if model is None else model).to(device)
    plan = BatchPlan(recipe, tables["train"], processes)  # refuses impossible batches before the long work
    if recipe.mode == "full":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        freeze_first_layers(model.backbone, recipe.model.frozen)
    parts = open_inputs(recipe, tables, model, processes) if inputs is None else inputs
    head = [p for module in (model.layer_norm, model.head) if module is not None for p in module.parameters()]
    inside = {id(p) for p in head}
    backbone = (
        []
        if recipe.mode == "head"
        else [p for p in model.parameters() if p.requires_grad and id(p) not in inside]
    )
    if recipe.mode == "head":
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in inside)
    if recipe.mode == "head" and len(parts["train"].table) != len(tables["train"]):
        plan = BatchPlan(recipe, parts["train"].table, processes)  # some images could not be read
    if recipe.mode == "head" and model.layer_norm is None and model.head is not None:
        data = parts["train"].data
        new = recipe.model.head_start != "random" and not _keeps_a_trained_head(recipe, model)
        if new and isinstance(data, FeatureRows) and model.output_dim < model.feature_dim:
            start_from_principal_axes(model.head, data.axes)
            # The strongest axes are dealt out to the slices in turn: each gets its part of them.
            dealt = model.head.weight.detach().unflatten(0, (-1, model.slices)).transpose(0, 1).flatten(0, 1)
            model.head.weight.data.copy_(dealt)
    chooser = parts["test"] if recipe.evaluation.choose_on == "test" else parts["validation"]
    head_start = start_from_whitening(recipe, model, parts["train"], chooser, processes)
    objective = build_objective(recipe, parts["train"].table, model).to(device)
    head += objective.head_parameters()
    return Assembly(
        recipe, processes, model, objective,
        build_optimiser(recipe, backbone, head, objective.loss_parameters()),
        torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16"),
        None if recipe.optimiser.ema is None else RunningMean(model, recipe.optimiser.ema),
        None if recipe.optimiser.blend is None else Blend(model, recipe.optimiser.blend),
        plan, parts["train"], chooser if len(chooser.table) else None, parts["test"], head_start,
    )  # fmt: skip


def freeze_first_layers(backbone: nn.Module, share: float) -> None:
    """Let the first layers of a backbone, a share of them below 1, keep their weights.

    No gradient is computed below the first layer that learns. The first layers work on the largest maps, so
    this saves more of the time than of the weights.

    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    >>> freeze_first_layers(network, 0.5)
    >>> [part[0].weight.requires_grad for part in (network[:1], network[1:2], network[2:3])]
    [False, False, True]
    """
    modules = [module for module in backbone.modules() if [*module.parameters(recurse=False)]]
    layers = [i for i, module in enumerate(modules) if any(p.dim() > 1 for p in module.parameters(False))]
    frozen = int(share * len(layers))
    for module in modules[: layers[frozen]] if frozen else []:  # with the norms behind each of them
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)


def start_from_whitening(
    recipe: Recipe, model: EmbeddingModel, train: Part, chooser: Part, processes: Processes
) -> HeadStart | None:
    """Let a new head start from the whitened features, if the recipe asks for it and it helps."""
    m, head = recipe.model, model.head
    linear = head is not None and model.layer_norm is None and model.slices == 1
    considered = linear and m.head_start in ("whitening", "auto")
    if not considered or not isinstance(train.data, FeatureRows) or _keeps_a_trained_head(recipe, model):
        return None
    assert head is not None

    def figure_of(weight: Tensor | None) -> float:
        def vectors(features: Tensor) -> Tensor:
            return features if weight is None else features @ weight.to(features.device).T

        embedded = embed(vectors, chooser, recipe, processes, title=None)
        return float(measure(embedded, recipe, processes, full=False)[recipe.evaluation.choose_by])

    start = choose_start(
        train.data.spread,
        head.out_features,
        recipe.evaluation.choose_by,
        figure_of if len(chooser.table) else None,
        shrinkage=m.shrinkage,
        wanted=m.head_start == "whitening",
    )
    if start.taken:
        with torch.no_grad():
            head.weight.copy_(from_first(start.whitening, processes))
            head.bias.zero_()
    return start


def open_inputs(
    recipe: Recipe, tables: Mapping[str, Table], model: EmbeddingModel, processes: Processes
) -> dict[str, Part]:
    """What the encoder reads of each part: images, or in head mode features."""
    preprocessing = model.preprocessing
    smaller = recipe.data.train_size if recipe.mode == "full" else None
    views = {"train": preprocessing.at_size(smaller)} if smaller else {}
    # For a head every image is read once, or never if its features are known: nothing to keep decoded.
    small = preprocessing.resize <= SMALL_IMAGES and recipe.mode == "full"
    images = {
        name: image_part(table, views.get(name, preprocessing), recipe, name, cache=small)
        for name, table in tables.items()
    }
    if recipe.mode == "full":
        return images
    model.eval()
    parts: dict[str, Part] = {}
    for name, part in images.items():
        if len(part.table) == 0:
            parts[name] = part
            continue
        features, table = part_features(model, part, recipe, processes)
        parts[name] = feature_part(table, features, name)
    return parts
