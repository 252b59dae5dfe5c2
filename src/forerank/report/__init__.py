"""Numbers and neighbours -> tables, figures and one self-contained HTML page."""

from forerank.report.nearest import (
    ConfusedPair,
    Neighbours,
    Survey,
    confused_pairs,
    easiest,
    hardest,
    neighbours,
    survey,
)
from forerank.report.page import write_report
from forerank.report.penalties import derivative, ranking_gradients, ranking_penalties
from forerank.report.ranking_figure import Ranking, rank_query, ranking_figure, ranking_svg
from forerank.report.summary import Choice
from forerank.report.tables import ResultTable

__all__ = [
    "Choice",
    "ConfusedPair",
    "Neighbours",
    "Ranking",
    "ResultTable",
    "Survey",
    "confused_pairs",
    "derivative",
    "easiest",
    "hardest",
    "neighbours",
    "rank_query",
    "ranking_figure",
    "ranking_gradients",
    "ranking_penalties",
    "ranking_svg",
    "survey",
    "write_report",
]
