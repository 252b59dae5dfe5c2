"""The ranked list of an indexed image as a loss sees it."""

import numpy as np

from forerank.errors import InputError
from forerank.report import derivative, rank_query, ranking_svg
from forerank.search.index import Index
from forerank.search.rows import Row
from forerank.web.answers import PenaltiesAnswer, PenaltyAnswer

# Deep enough for every class that people look at one by one, shallow enough to answer at once.
DEPTH = 2000


def penalties_of(index: Index, query: Row, loss: str, shown: int) -> PenaltiesAnswer:
    """The first `shown` images found for a labelled row, with charges within the first `DEPTH` images."""
    if not query.label:
        raise InputError("penalties need labels: this image has none.")
    hits = sorted((hit for hit in index.search_row(query.id, DEPTH) if hit.label), key=lambda hit: hit.id)
    # The engine finds who takes part; the order and the charges are those of every other ranked list, so that
    # ties stand where the evaluation counts them. Rows of the ranking are places in `ids`.
    ids = [query.id, *(hit.id for hit in hits)]
    labels = np.array([query.label, *(hit.label for hit in hits)])
    vectors = index.engine.vectors(ids)
    ranking = rank_query(vectors, labels, 0, derivative(loss), shown=shown)
    told = [
        PenaltyAnswer(
            rank=place + 1,
            id=ids[row],
            label=str(labels[row]),
            similarity=round(float(ranking.similarities[place]), 6),
            positive=bool(ranking.is_positive[place]),
            charge=float(ranking.charges[place]),
            penalty=float(ranking.penalties[place]),
        )
        for place, row in enumerate(ranking.rows.tolist())
    ]
    return PenaltiesAnswer(
        loss=loss,
        positives_below=ranking.hidden_positives,
        considered=len(hits),
        ranking=told,
        figure=ranking_svg(ranking, lambda row: f"images/{ids[row]}", labels),
    )
