"""Table + model + loss -> run folder. The loop, large batches, checkpoints, several processes.

Names are loaded on first use: reading a recipe does not import torch.
"""

from typing import TYPE_CHECKING

from forerank.lazy import import_on_demand

_MODULES = {
    "recipe": ["Recipe", "load_recipe", "override", "recipe_names"],
    "record": ["remove_finished_run", "is_run", "prepare_run", "read_history"],
    "large_batch": ["backward_in_chunks"],
    "processes": ["is_first_process", "joined"],
    "outcome": ["Outcome"],
    "run_evaluation": ["choose_run_reranking", "embed_run", "evaluate_run"],
    "refitting": ["refit"],
    "loop": ["train"],
    "budget": ["train_within"],
}

__all__ = [
    "Outcome",
    "Recipe",
    "backward_in_chunks",
    "choose_run_reranking",
    "embed_run",
    "evaluate_run",
    "is_first_process",
    "is_run",
    "joined",
    "load_recipe",
    "override",
    "prepare_run",
    "read_history",
    "recipe_names",
    "refit",
    "remove_finished_run",
    "train",
    "train_within",
]

if TYPE_CHECKING:
    from forerank.training.budget import train_within
    from forerank.training.large_batch import backward_in_chunks
    from forerank.training.loop import train
    from forerank.training.outcome import Outcome
    from forerank.training.processes import is_first_process, joined
    from forerank.training.recipe import Recipe, load_recipe, override, recipe_names
    from forerank.training.record import is_run, prepare_run, read_history, remove_finished_run
    from forerank.training.refitting import refit
    from forerank.training.run_evaluation import choose_run_reranking, embed_run, evaluate_run


__getattr__ = import_on_demand(__name__, _MODULES)
