"""`forerank train`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from forerank.console import print_json, say


def train(
    source: str,
    /,
    *values: str,
    run: Annotated[Path | None, Parameter(name="--run")] = None,
    minutes: float | None = None,
    refit: bool | None = None,
    json: bool = False,
) -> None:
    """Train a model, evaluate it before and after, write a report.

    After an interruption the same command (or: forerank train RUN) continues where it stopped.

    Examples:

        forerank train ./my_images
        forerank train ./my_images --minutes 20
        forerank train glyphs seed=1 loss=PNP-Ds
        forerank train ./my_images method=divide-and-conquer method.clusters=4
        forerank train sop root=/data/sop batch_size=4096 micro_batch=64
        forerank train runs/my_images
        forerank train runs/my_images --refit
        torchrun --nproc-per-node 2 -m forerank train glyphs run=runs/two

    Parameters
    ----------
    source:
        A folder of images (one sub-folder per class), a .csv table, a recipe's name (forerank recipe list), a
        recipe file, or the folder of a run to resume.
    values:
        Values of the recipe to change, as key=value; forerank recipe show folder lists the keys.
    run:
        Folder to write; by default runs/ and a name made of the source and the values. torchrun has an option
        --run of its own: with torchrun, write run=FOLDER.
    minutes:
        Use about this many minutes as well as possible: compare many trainings on validation classes, take
        the best, train all weights if time is left, then once more on all classes (RUN/refit). Values that
        you give are left as they are. Needs the extra budget (see: forerank doctor).
    refit:
        Afterwards train the chosen settings once more on all classes, into RUN/refit: the model to ship. The
        numbers belong to the measured model in RUN/best. Of a finished run, only this is done. With --minutes
        this happens by itself; --no-refit leaves it out.
    json:
        Print the results as JSON.
    """
    from forerank.data import BadImageError
    from forerank.errors import InputError
    from forerank.models import keep_freed_memory
    from forerank.models.storage import shipped_model
    from forerank.training import is_first_process, is_run, prepare_run, train_within
    from forerank.training import refit as train_on_all_classes
    from forerank.training import train as start
    from forerank.training.recipe import assigned_keys
    from forerank.training.record import has_budget

    keep_freed_memory()
    recipe, folder = prepare_run(source, values, run)
    given = [value for value in values if not value.startswith("run=")]
    named = run is not None or len(given) < len(values)
    if minutes is not None and not named and not is_run(Path(source)):
        folder = folder.with_name(f"{folder.name},minutes={minutes:g}")
    try:
        if minutes is not None or has_budget(folder):
            # A run folder alone stands for what its search was begun with.
            fixed = assigned_keys(given) if given or not is_run(Path(source)) else None
            outcome = train_within(recipe, folder, minutes, fixed=fixed, refitted=refit)
        else:
            outcome = start(recipe, folder)
            if refit:
                train_on_all_classes(folder)
    except BadImageError as error:
        raise InputError(
            f"{error}: mend or remove the file, or leave such files out with on_bad=skip"
        ) from error
    if not is_first_process():
        return
    if json:
        print_json({"run": str(folder), **outcome.results})
        return
    print(outcome)
    if outcome.results["report"]:
        say(f"\nreport: {outcome.results['report']}")
    if "next" not in outcome.results:  # a model of all classes: its words have said everything
        return
    if outcome.learned_nothing:
        say(outcome.model_to_ship)
    elif shipped_model(str(folder)) != str(folder):
        say(f"model to ship, trained on all classes: {shipped_model(str(folder))}")
    else:
        say(f"train it once more on all classes, to ship it: forerank train {quote(str(folder))} --refit")
    say(f"search with it: {outcome.results['next']}")
