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
from forerank.training.record import RECIPE
from forerank.training.search_folder import SEARCH
from forerank.training.tuning import put_beside
from forerank.training.whitening import WHITENED

# Of a search: the run that trained all weights of one network; the backbone with that network in it.
TUNED_RUN, TUNED_MODEL = f"{SEARCH}/tuned", f"{SEARCH}/backbone"


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


def refit(run: Path, deadline: float | None = None, after_tuning: float = 0.0) -> Outcome:
    """Train the settings of a finished run once more on all its classes, into ``RUN/refit``; resumable.

    Args:
        deadline: moment of `time.monotonic` at which training ends; None: never.
        after_tuning: seconds that follow the training of all weights of a tuned backbone.

    Returns:
        The outcome of the second training; that of the run itself where the run learned nothing, so that
        there is nothing to train once more.
    """
    run = Path(run)
    measured = finished_outcome(run)
    if measured.learned_nothing:
        return measured
    recipe = refit_recipe(load_recipe(run / RECIPE), measured.results)
    say(f"\ntraining once more, on all classes, for the model to ship: {run / REFIT}")
    if Path(recipe.model.backbone) == (run / TUNED_MODEL).resolve():
        tuned, model = run / SEARCH / "tuned_on_all", run / SEARCH / "backbone_of_all"
        again = refit_recipe(load_recipe(run / TUNED_RUN / RECIPE), finished_outcome(run / TUNED_RUN).results)
        until = None if deadline is None else deadline - after_tuning
        train(again, tuned, deadline=until, tested=False, names_data=False)
        put_beside(recipe, tuned, model)
        recipe = replace(recipe, model=replace(recipe.model, backbone=str(model.resolve())))
    return train(recipe, run / REFIT, deadline=deadline, names_data=False)
