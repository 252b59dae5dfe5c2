"""Figure: retrieval examples; each query with its nearest images, framed green if right and red if not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerank.errors import ForerankError, InputError
from forerank.metrics import neighbours, rank_queries
from forerank.paper.study import Condition, Study
from forerank.report.ranking_figure import Ranking, rank_query, ranking_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from forerank.data import Table

SHOWN = 10
# Queries are not chosen by hand: they stand at these places when all are sorted by average precision.
PLACES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)
RIGHT, WRONG, QUERY = "#14805a", "#c2402f", "#2f62c9"


@dataclass(frozen=True)
class Examples:
    """Queries (Q,) with the nearest rows of each (Q, SHOWN) and whether they are right."""

    table: "Table"
    query: NDArray[np.int64]
    nearest: NDArray[np.int64]
    is_positive: NDArray[np.bool_]
    average_precision: NDArray[np.float64]


def embed_test(run: Path) -> "tuple[NDArray[np.float32], Table]":
    """The test images of a run by its best model: vectors (N, D) and their table."""
    from forerank.training import embed_run

    embedded, _ = embed_run(run)
    return embedded.vectors, embedded.table


def choose_examples(study: Study) -> Examples:
    """Examples from the run of Dq with seed 0."""
    run = study.run(Condition("Dq"), 0)
    if run.result() is None:
        raise ForerankError(f"on {study.on} its run ({run.title}) has not ended")
    vectors, table = embed_test(run.folder)
    queries = np.flatnonzero(table.is_query)
    gallery = np.flatnonzero(table.is_gallery)
    each = rank_queries(vectors, table.label_ids, queries, gallery=gallery, ignore=table.sequence)
    order = np.argsort(each.average_precision, kind="stable")
    chosen = order[[round(place * (len(order) - 1)) for place in PLACES]]
    nearest = neighbours(
        vectors, table.label_ids, each.query[chosen], SHOWN, gallery=gallery, ignore=table.sequence
    )
    return Examples(table, nearest.query, nearest.index, nearest.is_positive, each.average_precision[chosen])


def notes(study: Study) -> tuple[str, ...]:
    """How the queries were chosen."""
    places = ", ".join(f"{place:.0%}" for place in PLACES)
    return (
        f"Test images of {study.on} under Dq, seed 0. The queries were not picked by hand: sorted by average "
        f"precision, they stand at {places} from the worst.",
    )


def draw(drawing: "Figure", shown: Sequence[Examples]) -> None:
    """One row per query: the query first, then its neighbours, nearest first; data sets side by side."""
    for part, examples in zip(drawing.subfigures(1, len(shown), squeeze=False)[0], shown, strict=True):
        part.suptitle(examples.table.name)
        axes = part.subplots(len(examples.query), SHOWN + 1, squeeze=False)
        files = examples.table.files
        for row, query in enumerate(examples.query):
            for column, axis in enumerate(axes[row]):
                index = query if column == 0 else examples.nearest[row, column - 1]
                right = column > 0 and examples.is_positive[row, column - 1]
                axis.imshow(_picture(files[int(index)]), cmap="gray")
                axis.set(xticks=[], yticks=[])
                axis.grid(False)
                for side in axis.spines.values():
                    colour = QUERY if column == 0 else RIGHT if right else WRONG
                    side.set(visible=True, color=colour, linewidth=3)
            axes[row, 0].set_ylabel(f"AP {examples.average_precision[row]:.2f}", fontsize=9)
        for column, axis in enumerate(axes[0]):
            axis.set_title("query" if column == 0 else str(column), fontsize=9)


def draw_ranking(
    run: Path, query: int, out: Path, *, variant: str = "Dq", shown: int = 12
) -> tuple[Ranking, list[Path]]:
    """The ranked list of a test query of any run with each negative's penalty, as `out`.png and .svg."""
    from forerank.report.penalties import derivative

    if shown < 1:
        raise InputError(f"a ranking shows at least 1 image, not {shown}")
    vectors, table = embed_test(run)
    ranking = rank_query(
        vectors,
        table.label_ids,
        query,
        derivative(variant),
        shown=shown,
        gallery=np.flatnonzero(table.is_gallery),
        ignore=table.sequence,
    )
    title = f"query {query} ({table.label[query]}), penalties under {variant}"
    return ranking, ranking_figure(ranking, out, table.files, table.label, title)


def _picture(file: Path) -> NDArray[np.uint8]:
    from forerank.data.decode import read_image

    return np.asarray(read_image(file, shrink_to=160))
