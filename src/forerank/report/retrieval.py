"""What the model finds and what it mistakes, in pictures."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerank.errors import InputError
from forerank.metrics import PerQuery, confused_pairs, neighbours, rank_queries
from forerank.metrics.histograms import SimilarityHistogram, similarity_histogram
from forerank.metrics.inputs import label_codes
from forerank.ranking.hard_rows import UnitRows, unit_rows
from forerank.report import charts, readings
from forerank.report.choice import easiest, hardest
from forerank.report.gallery import RowPictures, pair_card, query_card, rank_bins
from forerank.report.map_figure import map_section
from forerank.report.penalties import derivative
from forerank.report.ranking_figure import Ranking, rank_query, ranking_svg
from forerank.report.summary import Section
from forerank.report.thumbnails import Thumbnails

if TYPE_CHECKING:
    from forerank.data import Table

MOST_QUERIES = 4000  # for histograms and confused pairs; more would not change the picture
_SHOWN_RESULTS = 8


def retrieval(
    vectors: NDArray[Any],
    codes: NDArray[Any],
    table: "Table | None",
    evaluations: Mapping[str, Any],
    recipe: Mapping[str, Any],
    queries: int,
    thumbnail_bytes: int,
) -> list[Section]:
    """Histograms, the hardest and some easy queries, confused classes, and one list as the loss sees it."""
    asks = np.arange(len(vectors)) if table is None else np.flatnonzero(table.is_query)
    gallery = np.arange(len(vectors)) if table is None else np.flatnonzero(table.is_gallery)
    rows = unit_rows(vectors)
    ignore = None if table is None else table.sequence  # the evaluation leaves the same pairs out
    sampled = asks
    if len(asks) > MOST_QUERIES:
        sampled = np.sort(np.random.default_rng(0).choice(asks, MOST_QUERIES, replace=False))
    each = rank_queries(rows, codes, sampled, gallery=gallery, ignore=ignore)
    if not len(each.query):
        return []
    told = "" if sampled is asks else f" From {len(sampled):,} of {len(asks):,} queries, drawn at random."
    made = None if table is None else Thumbnails(table.files, table.box, most_bytes=thumbnail_bytes)
    pictures = RowPictures(
        codes.astype(str) if table is None else table.label,
        None if table is None else table.path,
        (lambda row: None) if made is None else made,
    )

    def cards(asked: NDArray[np.int64]) -> str:
        told = []
        for query in asked:
            one = rank_queries(rows, codes, [query], gallery=gallery, ignore=ignore)
            deep = max(_SHOWN_RESULTS, int(one.first_rank[0]))
            whole = neighbours(rows, codes, [query], deep, gallery=gallery, ignore=ignore)
            told.append(query_card(pictures, whole, one, 0, _SHOWN_RESULTS))
        return "".join(told)

    last = [*evaluations.values()][-1] if evaluations else None
    worst = _worst(each, last, queries)
    best = each.query[easiest(each, codes, max(1, queries // 3))]

    legend = (
        "Solid green with a tick: same class. Dashed red with a cross: another class. "
        "Under each picture its rank and its cosine similarity to the query."
    )
    hard = f'<p class="under">The deepest first right image, then the lowest average precision. {legend}</p>'
    if getattr(last, "per_query", None) is None:
        hard += f'<p class="under">{told}</p>' if told else ""
    hidden = None if ignore is None else label_codes(ignore, len(rows), "ignore")
    similarities = similarity_histogram(
        rows, label_codes(codes, len(rows), "labels"), sampled, gallery, ignore=hidden, sample=len(sampled)
    )
    sections = [_distributions(similarities, each, evaluations, told), map_section(rows, pictures.names)]
    sections.append(Section("hard", "Hardest queries", hard + cards(worst) if len(worst) else ""))
    fine = '<p class="under">For balance: the best query of each of a few classes.</p>'
    sections.append(Section("easy", "Queries that go well", fine + cards(best)))
    pairs = confused_pairs(rows, codes, sampled, gallery=gallery, ignore=ignore, top=9)
    about = f'<p class="under">Whose images stand before the first right one, most often.{told}</p>'
    grid = f'<div class="pairs">{"".join(pair_card(pictures, pair) for pair in pairs)}</div>'
    sections.append(Section("confused", "Most confused classes", about + grid if pairs else ""))
    loss = _loss(recipe)
    if loss is not None:
        sections.append(_charges(rows, codes, gallery, ignore, each, pictures, loss))
    return sections


def _worst(each: PerQuery, evaluation: Any, count: int) -> NDArray[np.int64]:
    """Rows of the hardest queries: of all, if the evaluation kept their figures, else of those sampled."""
    kept = getattr(evaluation, "per_query", None)
    known = each if kept is None else kept
    worst = hardest(known, count)
    rows: NDArray[np.int64] = known.query[worst[known.average_precision[worst] < 1]]
    return rows


def _charges(
    rows: UnitRows,
    codes: NDArray[Any],
    gallery: NDArray[np.int64],
    ignore: NDArray[Any] | None,
    each: PerQuery,
    pictures: RowPictures,
    loss: tuple[str, dict[str, Any]],
) -> Section:
    """The query among a few of medium difficulty in whose list right and wrong alternate most."""
    loss_name, settings = loss
    medium = np.flatnonzero((each.first_rank <= 8) & (each.average_precision < 0.95) & (each.positives > 1))
    if not len(medium):
        return Section("penalties", "", "")
    tried = each.query[medium[np.linspace(0, len(medium) - 1, min(12, len(medium))).astype(int)]]
    slope = derivative(loss_name, **settings)
    rankings = [rank_query(rows, codes, int(q), slope, gallery=gallery, ignore=ignore) for q in tried]

    def changes(one: Ranking) -> int:
        return int(np.abs(np.diff(one.is_positive.astype(int))).sum())

    chosen = max(rankings, key=changes)
    if not changes(chosen):
        return Section("penalties", "", "")
    values = ", ".join(f"{name} {value}" for name, value in settings.items())
    seen = escape(f"{loss_name} ({values})" if values else loss_name)
    about = f'<p class="under">One query as the loss {seen} sees it.</p>'
    drawn = ranking_svg(chosen, pictures.address, pictures.names)
    return Section("penalties", "What the loss charges", f'{about}<div class="card">{drawn}</div>')


def _loss(recipe: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of a recipe's loss; PNP-Dq if it names none, None for a loss of a peer."""
    from forerank.losses import find_loss

    given = recipe.get("loss", "PNP-Dq")
    section = given if isinstance(given, Mapping) else {"name": given}
    try:
        loss = find_loss(section.get("name", "PNP-Dq"))
    except InputError:
        return None
    options = section.get("options") or {}
    return loss.name, {name: value for name, value in options.items() if name in loss.arguments}


def _distributions(
    similarities: SimilarityHistogram, each: PerQuery, evaluations: Mapping[str, Any], told: str
) -> Section:
    counts = {"same class": similarities.positives.tolist(), "other classes": similarities.negatives.tolist()}
    drawn = charts.histogram(
        "Similarity of pairs",
        similarities.edges.tolist(),
        counts,
        ["good", "bad"],
        x_label="cosine similarity (each area is one)",
    )
    shares: dict[str, list[float]] = {}
    for name, evaluation in evaluations.items():
        ranks = readings.first_ranks(evaluation)
        if ranks is not None:
            shares[name] = rank_bins(ranks)[1]
    if len(shares) < max(1, len(evaluations)):  # some kept only totals: show the model of these vectors
        shares = {"queries": rank_bins(each.first_rank)[1]}
    styles = [f"s{0 if i == 0 and len(shares) > 1 else 1 + i % 5}" for i in range(len(shares))]
    styles[-1] = "s1"
    drawn += charts.bars(
        "Rank of the first right image",
        rank_bins(each.first_rank)[0],
        shares,
        styles,
        x_label="rank",
        y_label="percent of queries",
    )
    under = f'<p class="under">How far apart right and wrong pairs lie.{told}</p>'
    return Section("similarity", "Similarities and ranks", f'{under}<div class="charts">{drawn}</div>')
