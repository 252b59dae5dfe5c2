"""`forerank train`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.console import print_json, say


def train(
    source: str,
    /,
    *values: str,
    run: Annotated[Path | None, Parameter(name="--run")] = None,
    json: bool = False,
) -> None:
    """Train a model, evaluate it before and after, write a report.

    Killed or interrupted, the same command (or: forerank train RUN) continues where it stopped.

    Examples:

        forerank train ./my_images
        forerank train glyphs seed=1 loss=PNP-Ds
        forerank train ./my_images method=divide-and-conquer method.clusters=4
        forerank train sop root=/data/sop batch_size=4096 micro_batch=64
        forerank train runs/my_images
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
    json:
        Print the results as JSON.
    """
    from forerank.models import keep_freed_memory
    from forerank.training import is_first_process, prepare_run
    from forerank.training import train as start

    keep_freed_memory()
    recipe, folder = prepare_run(source, values, run)
    outcome = start(recipe, folder)
    if not is_first_process():
        return
    if json:
        print_json({"run": str(folder), **outcome.results})
    else:
        print(outcome)
        if outcome.results["report"]:
            say(f"\nreport: {outcome.results['report']}")
        say(f"search with it: forerank index {folder} IMAGES -o INDEX && forerank serve INDEX")
