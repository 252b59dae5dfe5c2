"""How well each class is found again, and which classes stand in its way."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forerank.data import Table
from forerank.data.table import SPLITS
from forerank.metrics import neighbours

WORST = 3  # confusions listed per class


@dataclass(frozen=True)
class ClassFigures:
    """One class within its part of the data.

    Attributes:
        recall: share of its images whose nearest other image of the same part has the same label; None for a
            class of one image.
        confusions: the other classes that are nearest most often, with the number of images.
    """

    label: str
    split: str
    images: int
    recall: float | None
    confusions: tuple[tuple[str, int], ...]


def class_figures(vectors: npt.NDArray[Any], table: Table) -> list[ClassFigures]:
    """Recall@1 and worst confusions of every class, each part of the data for itself, worst class first.

    Every image of a part asks all the others of that part.

    >>> vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.8, 0.3]])
    >>> table = Table(list("1234"), ["cup", "cup", "pen", "pen"], ["test"] * 4)
    >>> [(c.label, c.recall, c.confusions) for c in class_figures(vectors, table)]
    [('pen', 0.5, (('cup', 1),)), ('cup', 1.0, ())]
    """
    figures = []
    for split in SPLITS:
        rows = np.flatnonzero(table.split == split)
        if len(rows) < 2:
            continue
        labels = table.label[rows]
        nearest = labels[neighbours(vectors[rows], labels, k=1).index[:, 0]]
        for label in np.unique(labels).tolist():
            answers = nearest[labels == label]
            wrong = Counter(answers[answers != label].tolist()).most_common(WORST)
            recall = float((answers == label).mean()) if len(answers) > 1 else None
            figures.append(ClassFigures(label, split, len(answers), recall, tuple(wrong)))
    return sorted(figures, key=lambda one: (2.0 if one.recall is None else one.recall, one.split, one.label))
