"""Recall@1 over the whole catalogue: every image of every class searched among all others."""

from typing import Any

import numpy as np

from forerank.console import percent
from forerank.data.table import concatenate
from forerank.models import EmbeddingModel
from forerank.training.assemble import Assembly, encode
from forerank.training.measure import Embedded, Part, embed, image_part, measure


def measure_catalogue(model: EmbeddingModel, a: Assembly, test: Embedded) -> dict[str, Any] | None:
    """Every image searches among all others, of all classes; None where labels were changed for a study.

    The headline searches among the test classes only. A shop's search page holds all classes, which is harder
    (more images to confuse) and easier (most classes were trained on); so both kinds are told apart.

    Args:
        test: the vectors of the test part by the same model.

    Returns:
        "recall@1" of all images; of images of "new_classes" (test) and of "known_classes"; "images";
        "classes".
    """
    recipe, processes = a.recipe, a.processes
    if recipe.data.merge_classes or recipe.data.noisy_labels or recipe.evaluation.choose_on == "test":
        return None
    parts = [part for part in (_as_evaluated(a), a.chooser) if part is not None]
    embedded = [
        embed(lambda x: encode(model, x, recipe, processes.device), part, recipe, processes) for part in parts
    ]
    embedded.append(test)
    table = concatenate([one.table for one in embedded])
    # Whatever an image does when its own part is evaluated: in a catalogue each is found, and searched with.
    everyone = np.ones(len(table), dtype=bool)
    table = table.with_columns(is_query=everyone, is_gallery=everyone)
    vectors = np.concatenate([one.vectors for one in embedded])
    evaluation = measure(Embedded(vectors, table), recipe, processes, full=False, per_query=True, nmi=False)
    assert evaluation.per_query is not None
    right = evaluation.per_query.first_rank == 1
    new = evaluation.per_query.query >= len(table) - len(embedded[-1].table)
    return {
        "recall@1": float(right.mean()),
        "new_classes": float(right[new].mean()) if new.any() else None,
        "known_classes": float(right[~new].mean()) if not new.all() else None,
        "images": len(table),
        "classes": len(table.classes),
    }


def _as_evaluated(a: Assembly) -> Part:
    """The training images as the model sees them in use, not at the size of the training views."""
    if a.recipe.mode == "head" or a.recipe.data.train_size is None:
        return a.train
    return image_part(a.train.table, a.model.preprocessing, a.recipe, "train", cache=False)


def catalogue_sentence(catalogue: dict[str, Any], test_classes: int, headline: float) -> str:
    """Which number belongs to which search.

    >>> print(catalogue_sentence({"recall@1": 0.7, "new_classes": 0.57, "known_classes": 0.75,
    ...                           "images": 1200, "classes": 40}, 12, 0.82))
    among all 1,200 images of all 40 classes, 70.0 of 100 searches find the right class first \
(57.0 for images of the 12 test classes, 75.0 for images of the other classes); the 82.0 above is for the \
test classes searched among themselves
    """
    everywhere, new, known, among_test = (
        percent(share, mark=False)
        for share in (*(catalogue[key] for key in ("recall@1", "new_classes", "known_classes")), headline)
    )
    return (
        f"among all {catalogue['images']:,} images of all {catalogue['classes']:,} classes, "
        f"{everywhere} of 100 searches find the right class first "
        f"({new} for images of the {test_classes:,} test classes, {known} for images of the other "
        f"classes); the {among_test} above is for the test classes searched among themselves"
    )
