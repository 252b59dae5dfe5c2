"""All weights of one network among several side by side: trained alone, then put back beside the others.

Training one network on small views costs a fraction of training all of them at their full sizes, and the
features of the others stay as they are. A new head then sees the changed features beside the old ones.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from forerank.models import load_model, save_model
from forerank.models.backbones import is_name, split_names
from forerank.training.assemble import assemble, build_model
from forerank.training.candidates import BackboneCandidates, seconds_in_torch
from forerank.training.loop import take_step
from forerank.training.recipe import Recipe, override

# Views of this side train a network that sees larger images in use.
SMALL_VIEWS = 192
MOST_STEPS = 1500
# This share of the layers, the first ones, stays as it is: a step is much cheaper and little is lost.
FIRST_LAYERS = 0.31


def tuning_recipe(recipe: Recipe, fixed: frozenset[str]) -> Recipe:
    """The recipe that trains all weights of the first network of a head's recipe, but for its steps.

    Args:
        recipe: of the head; complete.
        fixed: dotted keys that the user chose.
    """
    b = recipe.batch
    classes = min(16, (b.batch_size or 64) // b.images_per_class)
    backbone = recipe.model.backbone
    first = split_names(backbone)[0] if is_name(backbone) else backbone
    values = [
        f"model.backbone={first}", "mode=full", "evaluation.report=false", "evaluation.patience=null",
        "optimiser.lr=1e-4", "optimiser.blend=0.5", "optimiser.weight_decay=4e-4",
        "schedule.kind=cosine", "schedule.warmup_steps=10",
        f"batch.batch_size={classes * b.images_per_class}",
        "model.head_start=features", "model.embedding_dim=0", "model.shrinkage=null",
        f"model.frozen={FIRST_LAYERS}",
    ]  # fmt: skip
    model = build_model(replace(recipe, model=replace(recipe.model, backbone=first)))
    if len(model.single_models()) == 1 and model.preprocessing.resize > 224:
        values.append(f"data.train_size={SMALL_VIEWS}")
    own = ("model.backbone", "mode", "evaluation.report")
    keys = {value: value.partition("=")[0] for value in values}
    return override(recipe, [value for value, key in keys.items() if key in own or key not in fixed])


@dataclass
class TuningCost:
    """Seconds that training all weights of one network takes.

    Attributes:
        step: of one step.
        features: of all images by that network, for the head that follows.
        validation: of measuring it before and after.
        steps: how many are taken.
    """

    step: float
    features: float
    validation: float
    steps: int = 0

    def fitting(self, seconds: float) -> int:
        """How many steps fit if all is done twice: for the measured model and for that of all classes.

        >>> TuningCost(step=2.0, features=50.0, validation=30.0).fitting(500)
        85
        """
        return min(MOST_STEPS, int((seconds / 2 - self.features - self.validation) / self.step))


def tuning_cost(recipe: Recipe, candidates: BackboneCandidates) -> TuningCost:
    """Measure what a recipe of `tuning_recipe` costs here: the faster of two steps, and a few images."""
    tables, processes = candidates.tables, candidates.processes
    a = assemble(recipe, tables, processes, build_model(recipe))
    batches, times = iter(a.open_batches(0, 3)), list[float]()
    for step in range(2):
        batch, began = next(batches), time.monotonic()
        take_step(a, batch, step)
        times.append(time.monotonic() - began)
    images = sum(len(table) for table in tables.values())
    features = images * candidates.speed(recipe.model.backbone)
    validation = 2 * len(tables["validation"]) * seconds_in_torch(a.model.eval(), processes.device)
    return TuningCost(min(times), features, validation)


def put_beside(recipe: Recipe, tuned: Path, folder: Path) -> None:
    """Save the backbone of a head's recipe with its first network as it is in a tuned run.

    Args:
        recipe: of the head.
        tuned: the run that trained all weights of the first network.
        folder: of the model to write; it has no head.
    """
    model = build_model(replace(recipe, model=replace(recipe.model, embedding_dim=None)))
    source = load_model(tuned)
    singles = model.single_models()  # they share their weights with the whole
    target = model if len(singles) == len(source.single_models()) else singles[0]
    target.backbone.load_state_dict(source.backbone.state_dict())
    if target.pool is not None and source.pool is not None:
        target.pool.load_state_dict(source.pool.state_dict())
    save_model(model, folder)
