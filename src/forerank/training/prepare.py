"""Before the first step: the parts of the data, and a recipe in which nothing is left open."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from forerank.data import Table, hold_out, merge_classes, noisy_labels, open_table
from forerank.data.registry import DATA_SETS
from forerank.errors import InputError
from forerank.machine import check_bf16, choose_device
from forerank.metrics.registry import find_metric
from forerank.models.backbones import has_weights, is_name, split_names, with_absolute_file
from forerank.models.storage import saved_folder, saved_spec
from forerank.training.optimise import peak_rate
from forerank.training.recipe import OWN_LOSS, Recipe
from forerank.training.trackers import tracker_modules

# Classes in a batch that nobody chose.
USUAL_CLASSES = 64


def check_choice(name: str) -> None:
    """Refuse a metric that cannot choose a checkpoint."""
    metric = find_metric(name)[0]
    if metric.of != "ranks" or metric.better is None:
        raise InputError(
            f"evaluation.choose_by must be a ranking metric, such as recall@1 or map@r, not {name}"
        )


def open_parts(recipe: Recipe) -> dict[str, Table]:
    """The tables "train", "validation" (may be empty) and "test", classes held out where there are none."""
    d = recipe.data
    for key in ("source", "root"):
        if key in d.options:
            raise InputError(f"data.options cannot hold {key!r}: give data.{key}")
    table = open_table(d.source, root=d.root, **d.options)
    check_choice(recipe.evaluation.choose_by)
    tracker_modules(recipe.tracking)  # refuses what cannot track before anything is computed
    if recipe.seed < 0:
        raise InputError(f"seed must be 0 or more, not {recipe.seed}")
    for name, share in (("data.validation", d.validation), ("data.test", d.test)):
        if not 0 <= share < 1:
            raise InputError(f"{name} must be at least 0 and below 1, not {share}")
    if d.all_classes:
        nothing = table.where(np.zeros(len(table), dtype=bool))
        everything = table.with_columns(split=np.full(len(table), "train"))
        return {"train": everything, "validation": nothing, "test": nothing}
    has = set(table.counts())
    needs_validation = "validation" not in has and d.validation > 0
    needs_test = "test" not in has
    if needs_test and d.test == 0:
        raise InputError(
            f"{table.name} has no test part and data.test is 0: give a share of the classes to test on"
        )
    if needs_validation or needs_test:
        # data.validation is a share of what remains for training once the test classes are taken away.
        share = d.validation * (1 - d.test) if needs_test else d.validation
        _check_class_number(table, validation=needs_validation, test=needs_test)
        table = hold_out(
            table, share if needs_validation else 0.0, recipe.seed, test=d.test if needs_test else 0.0
        )
    if d.merge_classes:
        table = merge_classes(table, d.merge_classes, recipe.seed)
    if d.noisy_labels:
        table = noisy_labels(table, d.noisy_labels, recipe.seed)
    parts = {split: table.select(split) for split in ("train", "validation", "test")}
    for split in ("train", "test"):
        if len(parts[split]) == 0:
            raise InputError(f"{table.name} has no {split} images (source: {d.source})")
    return parts


def _check_class_number(table: Table, *, validation: bool, test: bool) -> None:
    """Refuse data with fewer classes than each part must have, two of each."""
    parts = ["2 to learn from", *["2 for validation"] * validation, *["2 for test"] * test]
    classes, needed = len(np.unique(table.label[table.split == "train"])), 2 * len(parts)
    if classes < needed:
        has = f"{classes} {'class' if classes == 1 else 'classes'}"
        raise InputError(
            f"{table.name} has {has} to train with, and at least {needed} are needed "
            f"({', '.join(parts)}): add classes, one sub-folder or label each"
        )


def complete_recipe(recipe: Recipe, train: Table, processes: int, device: str) -> Recipe:
    """The recipe with every open value decided, or one sentence about what cannot work.

    Args:
        train: the training part.
        processes: how many compute together.
        device: where, as `choose_device` answered.
    """
    recipe = with_absolute_paths(recipe)
    _check_saved_pooling(recipe)
    b, e = recipe.batch, recipe.evaluation
    classes = int((np.bincount(train.label_ids) >= 2).sum())  # a class of one image has no positive
    _at_least(1, {"batch.images_per_class": b.images_per_class - 1, "evaluation.embed_batch": e.embed_batch},
              {"batch.images_per_class": "be at least 2: an image needs a positive"})  # fmt: skip
    optional = {
        "batch.batch_size": b.batch_size, "batch.micro_batch": b.micro_batch, "evaluation.every": e.every,
        "evaluation.patience": e.patience, "schedule.steps": recipe.schedule.steps,
        "schedule.epochs": recipe.schedule.epochs, "save_every": recipe.save_every,
        "batch.super_categories": b.super_categories,
        "data.train_size": recipe.data.train_size, "model.image_size": recipe.model.image_size,
    }  # fmt: skip
    _at_least(1, {key: value for key, value in optional.items() if value is not None}, {})
    _at_least(0, {"data.workers": recipe.data.workers or 0, "batch.hold_mb": b.hold_mb}, {})
    number = 0 if train.category is None else len(np.unique(train.category))
    if b.super_categories is not None and number < b.super_categories:
        raise InputError(
            f"batch.super_categories={b.super_categories} needs data with as many super categories, and "
            f"{train.name} has {number or 'none'}"
        )
    size = b.batch_size
    if size is None:
        fitting = min(USUAL_CLASSES, classes) // processes * processes
        size = max(fitting, processes) * b.images_per_class
    if size % b.images_per_class:
        raise InputError(
            f"batch_size {size} is not divisible by images_per_class {b.images_per_class}: "
            f"the nearest that is: {_nearest_multiple(size, b.images_per_class)}"
        )
    wanted = size // b.images_per_class
    if wanted % processes:
        raise InputError(
            f"a batch of {wanted} classes cannot be shared evenly by {processes} processes: "
            f"the nearest batch_size that can: {_nearest_multiple(size, processes * b.images_per_class)}"
        )
    if wanted < 2:
        raise InputError(
            f"batch_size {size} with images_per_class {b.images_per_class} is one class: no negatives"
        )
    if wanted > classes:
        raise InputError(
            f"a batch of {wanted} classes needs as many training classes of two images or more, "
            f"and {train.name} has {classes}: "
            f"give batch_size={classes // processes * processes * b.images_per_class} or fewer"
        )
    share = size // processes
    if b.micro_batch is not None and b.micro_batch > share:
        of = (
            f"the {share} images of each of {processes} processes"
            if processes > 1
            else f"the batch of {size}"
        )
        raise InputError(f"micro_batch {b.micro_batch} is larger than {of}: make it smaller or leave it out")
    if not recipe.model.freeze_batch_norm and (b.micro_batch is not None or processes > 1):
        what = "micro_batch needs" if processes == 1 else f"{processes} processes need"
        raise InputError(
            f"{what} freeze_batch_norm=true: batch statistics of a part are not those of the batch"
        )
    _check_rates(recipe)
    pretrained = recipe.model.pretrained and has_weights(recipe.model.backbone)
    kind = torch.device(device).type
    complete = dataclasses.replace(
        recipe,
        mode=recipe.mode if recipe.mode != "auto" else "head" if kind == "cpu" and pretrained else "full",
        device=device,
        precision=recipe.precision if recipe.precision != "auto" else "bf16" if _has_bf16(kind) else "fp32",
        batch=replace(b, batch_size=size),
    )
    _check_whitening(complete)
    complete = dataclasses.replace(complete, optimiser=replace(complete.optimiser, lr=peak_rate(complete)))
    return fit_method(complete, train)


def fit_method(recipe: Recipe, train: Table) -> Recipe:
    """The recipe with all options of its method and what the method derives from the data."""
    from forerank.training.methods import complete_options, find_method

    key, loss = recipe.method.name, recipe.loss
    if key is None:
        if loss.name == OWN_LOSS or recipe.method.options:
            raise InputError("the recipe names no method: give method=NAME (see: forerank methods)")
        return recipe
    method = find_method(key)
    if recipe.method.settings == "published" and not method.published:
        raise InputError(
            f"the training settings of the paper of {key} are not known here: leave out method.settings"
        )
    if method.own_loss and (loss.name != OWN_LOSS or loss.memory or loss.options):
        raise InputError(
            f"the method {key} brings its own loss: leave out loss, loss.memory and loss options"
        )
    if not method.own_loss and loss.name == OWN_LOSS:
        raise InputError(f"the method {key} has no loss of its own: leave out loss=method")
    options = complete_options(key, method, recipe.method.options)
    return method.fit(replace(recipe, method=replace(recipe.method, options=options)), train)


def starts_from_saved(recipe: Recipe) -> bool:
    """Whether a recipe starts from a run or a saved model, rather than from a backbone by name.

    >>> starts_from_saved(Recipe())
    False
    """
    return recipe.model.pretrained and not is_name(recipe.model.backbone)


def _check_saved_pooling(recipe: Recipe) -> None:
    """Refuse another pooling than that of the saved model a recipe starts from: its head knows no other."""
    if not starts_from_saved(recipe) or saved_folder(recipe.model.backbone) is None:
        return  # what is not there is refused when the model is built
    saved, asked = saved_spec(recipe.model.backbone)["pooling"], recipe.model.pooling
    if asked != "auto" and set(saved.split("+")) != {asked}:
        raise InputError(
            f"{recipe.model.backbone} was trained with pooling={saved}: leave out model.pooling={asked}"
        )


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Paths that are there, written so that the run's recipe works from any folder."""

    def absolute(path: str) -> str:
        place = Path(path).expanduser()
        return str(place.resolve()) if place.exists() else path

    d, backbone = recipe.data, recipe.model.backbone
    backbone = "+".join(with_absolute_file(name, absolute) for name in split_names(backbone))
    source = d.source if d.source in DATA_SETS else absolute(d.source)
    root = None if d.root is None else absolute(d.root)
    return replace(
        recipe, data=replace(d, source=source, root=root), model=replace(recipe.model, backbone=backbone)
    )


def _at_least(least: int, values: dict[str, int], reasons: dict[str, str]) -> None:
    for key, value in values.items():
        if value < least:
            raise InputError(f"{key} must {reasons.get(key, f'be at least {least}')}")


def _check_rates(recipe: Recipe) -> None:
    o, s = recipe.optimiser, recipe.schedule
    for key in ("lr", "head_lr", "loss_lr", "eps", "clip", "clip_value"):
        value = getattr(o, key)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"optimiser.{key} must be above 0 and finite, not {value}")
    if not 0 <= o.weight_decay < math.inf:
        raise InputError(f"optimiser.weight_decay must be 0 or more and finite, not {o.weight_decay}")
    if not 0 < s.gamma < math.inf:
        raise InputError(f"schedule.gamma must be above 0 and finite, not {s.gamma}")
    if any(epoch < 0 for epoch in s.milestones):
        raise InputError(f"schedule.milestones must be 0 or more, not {min(s.milestones)}")
    if o.ema is not None and not 0 < o.ema < 1:
        raise InputError(f"optimiser.ema must lie between 0 and 1, not {o.ema}")
    if o.blend is not None and not 0 < o.blend <= 1:
        raise InputError(f"optimiser.blend must be above 0 and at most 1, not {o.blend}")
    if o.blend is not None and not (recipe.model.pretrained and recipe.model.freeze_batch_norm):
        raise InputError("optimiser.blend mixes with pretrained weights: it needs pretrained=true and "
                         "freeze_batch_norm=true")  # fmt: skip
    if not 0 <= recipe.model.frozen < 1:
        raise InputError(f"model.frozen must be 0 or more and below 1, not {recipe.model.frozen}")
    if o.head_warmup < 0 or s.warmup_steps < 0 or (s.stop or 0) < 0:
        raise InputError("optimiser.head_warmup, schedule.warmup_steps and schedule.stop must be 0 or more")
    if recipe.precision == "fp16" and choose_device(recipe.device) == "cpu":
        raise InputError("precision fp16 needs a GPU: on a CPU give precision=bf16 or fp32")
    if recipe.precision == "bf16":
        check_bf16(choose_device(recipe.device))
    if recipe.mode == "head" and recipe.model.embedding_dim is None:
        raise InputError("mode=head needs model.embedding_dim: without a head there is nothing to train")


def _check_whitening(recipe: Recipe) -> None:
    m = recipe.model
    if m.shrinkage is not None and not 0 < m.shrinkage < math.inf:
        raise InputError(f"model.shrinkage must be above 0 and finite, not {m.shrinkage}")
    if m.head_start == "whitening" and (recipe.mode != "head" or m.layer_norm):
        raise InputError("head_start=whitening is computed from cached features: it needs mode=head and "
                         "layer_norm=false")  # fmt: skip


def _nearest_multiple(value: int, of: int) -> int:
    return max(1, round(value / of)) * of


def _has_bf16(kind: str) -> bool:
    return kind == "cuda" and torch.cuda.is_bf16_supported()
