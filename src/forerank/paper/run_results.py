"""What is kept of an ended run: its metrics, and what the claims need beyond them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from forerank.files import read_json_with_checksum, write_atomically
from forerank.paper.study import RESULT, Run
from forerank.training.recipe import Recipe, recipe_from_dict, recipe_text

if TYPE_CHECKING:
    from forerank.metrics import Evaluation
    from forerank.metrics.charges import DerivativeFunction
    from forerank.training.measure import Embedded

# Random batches of test images on which a loss's gradients are looked at.
BATCHES, CLASSES, IMAGES = 20, 16, 4


def write_result(run: Run, seconds: float) -> None:
    """Measure an ended run and keep what tables and claims need, in one small file that says it has ended.

    The file has "validation" (the figure that chose the checkpoint), "seconds", "steps", "broke" (the loss
    was no longer a number), "learned" (false if the model before training is what was measured). Of a run
    that measures it also has "metrics" (name -> value), "start" (the same of the network before training) and
    "classes" (right first answers and queries of every test class).
    """
    results = read_json_with_checksum(run.folder / "results.json")
    values = {
        "validation": results["validation"]["best"],
        "seconds": round(seconds, 1),
        "steps": results["steps"],
        "broke": bool(results["broken"]),
        "learned": results["best_step"] > 0,
    }
    if not run.chooses:
        values |= _on_test_classes(run, results["test"]["trained"])
    write_atomically(run.folder / RESULT, json.dumps(values))


def _on_test_classes(run: Run, measured: Mapping[str, float]) -> dict[str, Any]:
    """What `write_result` keeps of the test classes, beyond what the run itself measured."""
    from forerank.training import embed_run

    test, recipe = embed_run(run.folder)
    metrics = dict(measured)
    if run.recipe.data.source == "vehicle_id":
        metrics |= vehicle_tests(run)
    if run.recipe.data.merge_classes:
        metrics["centres_kept"] = centres_kept(run)
    correlation = push_correlation(run, test.vectors, test.table.label_ids)
    if correlation is not None:
        metrics["correlation"] = correlation
    alike = Recipe(
        seed=recipe.seed,
        mode=recipe.mode,
        precision=recipe.precision,
        data=replace(recipe.data, merge_classes=0, noisy_labels=0.0),  # these change the training part alone
        model=replace(recipe.model, embedding_dim=None, layer_norm=False, slices=1),
    )
    return {"metrics": metrics, "start": start_metrics(recipe_text(alike)), "classes": first_answers(test)}


@cache
def start_metrics(recipe: str) -> dict[str, float]:
    """Recall@1 and mAP@R on the test classes of the network before training.

    Args:
        recipe: as text, with only what this depends on, so that it is measured once for many methods.
    """
    from forerank.training.run_evaluation import embed_start

    measured = _evaluate(embed_start(recipe_from_dict(yaml.safe_load(recipe), "the run's recipe")))
    return {name: float(measured[name]) for name in ("recall@1", "map@r")}


def _evaluate(test: "Embedded", **options: Any) -> "Evaluation":
    """Rankings of the test part by its own protocol."""
    from forerank.metrics import evaluate

    table = test.table
    return evaluate(
        test.vectors,
        table.label_ids,
        queries=np.flatnonzero(table.is_query),
        gallery=np.flatnonzero(table.is_gallery),
        ks=(1,),
        nmi=False,
        distances=False,
        ignore=table.sequence,
        bootstrap=0,
        **options,
    )


def first_answers(test: "Embedded") -> dict[str, list[int]]:
    """For each test class in the order of its name: right first answers, and queries that have a positive."""
    table = test.table
    ranks = _evaluate(test, per_query=True).per_query
    assert ranks is not None  # because it was asked for
    label, number = table.label_ids[ranks.query], int(table.label_ids.max()) + 1
    right = np.bincount(label[ranks.first_rank == 1], minlength=number)
    queries = np.bincount(label, minlength=number)
    return {"right": right.tolist(), "queries": queries.tolist()}


def vehicle_tests(run: Run) -> dict[str, float]:
    """VehicleID's three test lists by the run's best model, each under both protocols.

    "small/recall@1" and so on: every image queries all others, as in the paper. "small, ten galleries/...":
    the data set's own protocol, one random image of each vehicle as the gallery, averaged over ten draws.
    """
    from forerank.data import open_table
    from forerank.data.vehicle_id import TEST_LISTS
    from forerank.metrics import evaluate, repeated_gallery
    from forerank.models import Retriever

    retriever, ks = Retriever.load(run.folder), run.recipe.evaluation.ks
    metrics: dict[str, float] = {}
    for size in TEST_LISTS:
        table = open_table("vehicle_id", run.recipe.data.root, test=size).select("test")
        vectors = retriever.embed(table.files)
        everything = evaluate(vectors, table.label_ids, ks=ks, nmi=False)
        ks_of_gallery = [k for k in ks if k <= len(table.classes)]
        galleries = repeated_gallery(vectors, table.label_ids, ks=ks_of_gallery)
        metrics |= {f"{size}/{name}": float(value) for name, value in everything.items()}
        metrics |= {f"{size}, ten galleries/{name}": float(value) for name, value in galleries.items()}
    return metrics


def centres_kept(run: Run) -> float:
    """Whether the classes that were merged into one can still be told apart inside it.

    The share of training images whose nearest neighbour in their merged class comes from their own original
    class. A third means that nothing is left of three centres, 1 that each has stayed whole.
    """
    from dataclasses import replace

    from forerank.training import embed_run
    from forerank.training.prepare import open_parts

    embedded, _ = embed_run(run.folder, "train")
    unmerged = open_parts(replace(run.recipe, data=replace(run.recipe.data, merge_classes=0)))["train"]
    original = dict(zip(unmerged.path.tolist(), unmerged.label.tolist(), strict=True))
    names = np.array([original[path] for path in embedded.table.path.tolist()])
    return same_origin(embedded.vectors, embedded.table.label_ids, names)


def same_origin(vectors: NDArray[np.float32], merged: NDArray[Any], original: NDArray[Any]) -> float:
    """Share of images whose nearest neighbour within their merged class is of their original class.

    >>> vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], dtype=np.float32)
    >>> same_origin(vectors, np.zeros(4, int), np.array(list("aabb")))
    1.0
    >>> same_origin(vectors, np.zeros(4, int), np.array(list("abab")))
    0.0
    """
    from forerank.metrics import neighbours

    right = total = 0
    for label in np.unique(merged):
        rows = np.flatnonzero(merged == label)
        if len(rows) < 2:
            continue
        right += int(neighbours(vectors[rows], original[rows], k=1).is_positive.sum())
        total += len(rows)
    return right / max(total, 1)


def push_correlation(run: Run, vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> float | None:
    """Are negatives that stand before more positives pushed away harder? The rank correlation of the two.

    On random batches of test images, under the run's own loss; None for a loss that is not one of ours.
    """
    from forerank.losses import known_losses
    from forerank.report.penalties import derivative

    loss = run.recipe.loss
    if loss.name not in known_losses() or loss.options.get("naive"):
        return None
    slope = derivative(loss.name, **{k: float(v) for k, v in loss.options.items() if k in ("alpha", "b")})
    temperature = float(loss.options.get("temperature", 0.01))
    correlations = []
    generator = np.random.default_rng(0)
    many = np.flatnonzero(np.bincount(labels) >= IMAGES)
    for _ in range(BATCHES):
        drawn = generator.choice(many, min(CLASSES, len(many)), replace=False)
        of_class = [generator.choice(np.flatnonzero(labels == c), IMAGES, replace=False) for c in drawn]
        rows = np.concatenate(of_class)
        unit = vectors[rows].astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        similarity = unit @ unit.T
        for query in range(len(rows)):
            others = np.arange(len(rows)) != query
            positive = (labels[rows] == labels[rows[query]])[others]
            value = query_correlation(similarity[query, others], positive, slope, temperature)
            if value is not None:
                correlations.append(value)
    return float(np.mean(correlations)) if correlations else None


def query_correlation(
    similarity: NDArray[np.float64],
    positive: NDArray[np.bool_],
    slope: "DerivativeFunction",
    temperature: float,
) -> float | None:
    """Spearman's correlation, over the negatives that stand before a positive, of how many positives they
    stand before with the size of the loss's gradient on their similarity.

    None if there are fewer than three such negatives, or all stand before equally many.

    Args:
        similarity: (n,) of each item to the query.
        positive: (n,) whether the item is of the query's class.
        slope: the derivative f'(R, P) of the loss.
    """
    from scipy.special import expit
    from scipy.stats import spearmanr

    s_positive, s_negative = similarity[positive], similarity[~positive]
    ahead = expit((s_negative[:, None] - s_positive[None, :]) / temperature)  # (N, P)
    same = expit((s_positive[:, None] - s_positive[None, :]) / temperature).sum(axis=0) - 0.5  # not itself
    gradient = (slope(ahead.sum(axis=0), same) * ahead * (1 - ahead)).sum(axis=1) / temperature  # (N,)
    before = (s_negative[:, None] > s_positive[None, :]).sum(axis=1)
    misplaced = before > 0
    if misplaced.sum() < 3 or len(np.unique(before[misplaced])) < 2:
        return None
    value = float(spearmanr(before[misplaced], gradient[misplaced]).statistic)
    return value if np.isfinite(value) else None
