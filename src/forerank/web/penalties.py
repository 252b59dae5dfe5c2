"""The ranked list of an indexed image as a loss sees it."""

import numpy as np

from forerank.errors import InputError
from forerank.report import Ranking, derivative, ranking_svg
from forerank.report.penalties import positive_charges, ranking_penalties
from forerank.search.index import Index
from forerank.search.rows import Row
from forerank.web.answers import PenaltiesAnswer, PenaltyAnswer

# Deep enough for every class that people look at one by one, shallow enough to answer at once.
DEPTH = 2000


def penalties_of(index: Index, query: Row, loss: str, shown: int) -> PenaltiesAnswer:
    """Charges and penalties within the first `DEPTH` images found for a labelled row; `shown` are told."""
    if not query.label:
        raise InputError("penalties need labels: this image has none.")
    slope = derivative(loss)
    hits = [hit for hit in index.search_row(query.id, DEPTH) if hit.label]
    similarities = np.array([hit.similarity for hit in hits])
    positive = np.array([hit.label == query.label for hit in hits], dtype=bool)
    charges = positive_charges(similarities, positive, slope)
    penalties = ranking_penalties(similarities, positive, slope)
    head = min(shown, len(hits))
    # Rows of the figure are places in the list; the query stands after the last of them.
    ranking = Ranking(
        query=head,
        rows=np.arange(head),
        similarities=similarities[:head],
        is_positive=positive[:head],
        charges=charges[:head],
        penalties=penalties[:head],
        hidden_positives=int(positive[head:].sum()),
    )
    ids = [hit.id for hit in hits[:head]] + [query.id]
    names = [hit.label for hit in hits[:head]] + [query.label]
    told = [
        PenaltyAnswer(
            rank=place + 1,
            id=hits[place].id,
            label=hits[place].label,
            similarity=round(hits[place].similarity, 6),
            positive=bool(positive[place]),
            charge=float(charges[place]),
            penalty=float(penalties[place]),
        )
        for place in range(head)
    ]
    return PenaltiesAnswer(
        loss=loss,
        positives_below=int(positive[head:].sum()),
        considered=len(hits),
        ranking=told,
        figure=ranking_svg(ranking, lambda place: f"/images/{ids[place]}", names),
    )
