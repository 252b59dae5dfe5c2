"""The folder of a search within a time: what it was begun with, and whose it is."""

from pathlib import Path
from typing import Any

from forerank.errors import InputError
from forerank.training.prepare import with_absolute_paths
from forerank.training.recipe import Recipe, differences, load_recipe, recipe_text
from forerank.training.record import (
    RECIPE,
    RESULTS,
    begun_recipe,
    has_budget,
    read_json,
    recipe_source,
    refuse_other_run,
    refuse_other_values,
    write_json,
)

# Where a search keeps its trials, and the file of what the user gave.
SEARCH, FIXED = "search", "fixed.json"


def search_file(run: Path, file: str, *keys: str) -> dict[str, Any]:
    """What an earlier start of the search wrote."""
    return read_json(run / SEARCH / file, keys, f"remove {run} to start again")


def claim_search(
    run: Path, recipe: Recipe, fixed: frozenset[str] | None, refitted: bool | None
) -> tuple[Recipe, frozenset[str], bool]:
    """Make a folder that of this search, or refuse if it is that of another search or of a plain run.

    Returns:
        What the search was begun with: recipe, keys that are left alone, whether all classes are trained on.
    """
    recipe = with_absolute_paths(recipe)
    base_file = run / SEARCH / RECIPE
    if not has_budget(run):
        if begun_recipe(run) is not None or (run / RESULTS).exists():
            raise InputError(
                f"{run} was trained without --minutes, so it has no search to continue: begin one with "
                "another --run"
            )
        refuse_other_run(run, recipe)
        for place in (run / RECIPE, base_file):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(recipe_text(recipe), encoding="utf-8")
        fixed, refitted = fixed or frozenset(), refitted is not False
        write_json(run / SEARCH / FIXED, {"keys": sorted(fixed), "refit": refitted})
        return recipe, fixed, refitted
    begun = with_absolute_paths(load_recipe(base_file))
    # In the run folder stands the same recipe, or that of the winner once its training has begun.
    if differences(with_absolute_paths(load_recipe(recipe_source(run))), recipe):
        refuse_other_values(run, differences(begun, recipe))
    known = search_file(run, FIXED, "keys")
    keys = frozenset(known["keys"])
    if fixed is not None:
        left = {True: "left alone", False: "chosen by the search"}
        refuse_other_values(
            run, {key: (left[key in keys], left[key in fixed]) for key in sorted(keys ^ fixed)}
        )
    if refitted is None:
        refitted = bool(known.get("refit", True))
    elif refitted != known.get("refit", True):
        write_json(run / SEARCH / FIXED, {"keys": sorted(keys), "refit": refitted})
    return begun, keys, refitted
