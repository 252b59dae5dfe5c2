"""The model to ship: the settings of a measured run, trained once more on all classes.

A measured run keeps classes back, so that its numbers are honest; the model that people ship should have
learned from them too. The second training repeats the first one's number of steps. It has no numbers of its
own, because no class is left that it has not seen.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerank.console import say
from forerank.models.storage import REFIT
from forerank.training.loop import train
from forerank.training.outcome import Outcome, finished_outcome
from forerank.training.recipe import Recipe, load_recipe
from forerank.training.record import RECIPE, is_run
from forerank.training.whitening import WHITENED

# Where a search within a time keeps the head from which all weights were trained.
HEADS = "heads"


def refit_recipe(recipe: Recipe, results: Mapping[str, Any]) -> Recipe:
    """The recipe that repeats a finished run on all classes: what validation chose is now fixed.

    Args:
        recipe: complete, as the run folder holds it.
        results: of the run.
    """
    start, kept = results["start"], results["kept"]
    model = recipe.model
    if start is not None:
        whitened = start["whitening"] and kept in (None, WHITENED)
        model = replace(
            model, head_start="whitening" if whitened else "features", shrinkage=start["shrinkage"]
        )
    return replace(
        recipe,
        name=f"{recipe.name}, all classes",
        device="auto",
        data=replace(recipe.data, all_classes=True),
        model=model,
        schedule=replace(recipe.schedule, steps=results["planned_steps"], stop=results["best_step"]),
        evaluation=replace(recipe.evaluation, patience=None, report=False, choose_on="validation"),
    )


def refit(run: Path, deadline: float | None = None) -> Outcome:
    """Train the settings of a finished run once more on all its classes, into ``RUN/refit``; resumable."""
    run = Path(run)
    results, source = finished_outcome(run).results, run
    if results["kept"] == "head" and is_run(run / HEADS):  # training all weights did not help the head
        source = run / HEADS
        results = finished_outcome(source).results
    recipe = refit_recipe(load_recipe(source / RECIPE), results)
    say(f"\ntraining once more, on all classes, for the model to ship: {run / REFIT}")
    return train(recipe, run / REFIT, deadline=deadline)
