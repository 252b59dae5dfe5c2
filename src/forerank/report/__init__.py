"""Numbers and neighbours -> tables, figures and one self-contained HTML page."""

from forerank.report.choice import easiest, hardest
from forerank.report.page import write_report
from forerank.report.penalties import derivative
from forerank.report.ranking_figure import Ranking, rank_query, ranking_figure, ranking_svg
from forerank.report.summary import CheckpointChoice
from forerank.report.tables import ResultTable

__all__ = [
    "CheckpointChoice",
    "Ranking",
    "ResultTable",
    "derivative",
    "easiest",
    "hardest",
    "rank_query",
    "ranking_figure",
    "ranking_svg",
    "write_report",
]
