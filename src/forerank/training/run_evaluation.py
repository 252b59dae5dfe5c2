"""A run that has ended: its best model embeds and is evaluated on a part of its data."""

from pathlib import Path
from typing import Any

from forerank.data import Table
from forerank.errors import InputError
from forerank.machine import choose_device
from forerank.metrics import Evaluation, RerankChoice, choose_reranking
from forerank.models import EmbeddingModel, load_model
from forerank.training.assemble import build_model, encode, open_inputs
from forerank.training.checkpoint import BEST
from forerank.training.measure import Embedded, embed, measure
from forerank.training.prepare import open_parts
from forerank.training.processes import Processes, joined
from forerank.training.recipe import Recipe, load_recipe
from forerank.training.record import RECIPE, is_run, recipe_source


def embed_run(run: Path, split: str = "test") -> tuple[Embedded, Recipe]:
    """Embeddings of a part of a run's data by its best model, sharded over the processes."""
    run = Path(run)
    if not is_run(run):
        raise InputError(f"{run} is not a run folder: it has no {RECIPE}")
    recipe = load_recipe(recipe_source(run), ["device=auto", "train_size=null"])
    with joined(choose_device(recipe.device)) as processes:
        model = load_model(run / BEST)
        table = open_parts(recipe)[split]
        if not len(table):
            raise InputError(f"{run} has no {split} part: its recipe holds nothing out for it")
        return _embed(model, recipe, split, table, processes), recipe


def embed_start(recipe: Recipe) -> Embedded:
    """Embeddings of a recipe's test part by the network before training, without a head."""
    with joined(choose_device(recipe.device)) as processes:
        model = build_model(recipe, plain=True)
        return _embed(model, recipe, "test", open_parts(recipe)["test"], processes)


def _embed(model: EmbeddingModel, recipe: Recipe, split: str, table: Table, processes: Processes) -> Embedded:
    model = model.to(processes.device).eval()
    part = open_inputs(recipe, {split: table}, model, processes)[split]
    return embed(lambda x: encode(model, x, recipe, processes.device), part, recipe, processes)


def evaluate_run(run: Path, split: str = "test", *, by_category: bool = False, **options: Any) -> Evaluation:
    """Evaluate a run's best model on the part of its data that training never saw.

    `options` of `evaluate` (ks, nmi, ties, ...) replace what the recipe says.
    """
    with joined(choose_device()) as processes:
        embedded, recipe = embed_run(run, split)
        if by_category and embedded.table.category is None:
            raise InputError(f"--by-category needs data with categories, and {embedded.table.name} has none")
        options.setdefault("metrics", None)  # the usual ones, whatever chose the checkpoint
        options["categories"] = embedded.table.category if by_category else None
        return measure(embedded, recipe, processes, full=True, **options)


def choose_run_reranking(run: Path, *, seed: int = 0) -> RerankChoice:
    """The re-ranking that helps on a run's validation classes, by the figure that chose its checkpoint."""
    embedded, recipe = embed_run(run, "validation")
    table = embedded.table
    return choose_reranking(
        embedded.vectors,
        table.label_ids,
        queries=table.is_query,
        gallery=table.is_gallery,
        ignore=table.sequence,
        metric=recipe.evaluation.choose_by,
        seed=seed,
    )
