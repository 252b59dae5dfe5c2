"""Hard ranks -> numbers to report: recall, average precision, clustering and distance figures."""

from forerank.metrics.charges import positive_charges, ranking_gradients, ranking_penalties
from forerank.metrics.clustering import kmeans, normalized_mutual_information
from forerank.metrics.confusion import ConfusedPair, confused_pairs
from forerank.metrics.distances import class_distances
from forerank.metrics.evaluation import evaluate, rank_queries
from forerank.metrics.protocols import repeated_gallery
from forerank.metrics.ranked_lists import RankedLists, neighbours
from forerank.metrics.registry import METRICS, Metric, Ranks, VectorSet
from forerank.metrics.rerank_choice import RerankChoice, choose_reranking
from forerank.metrics.result import CategoryFigures, Evaluation, PerQuery
from forerank.ranking.hard_rows import UnitRows, unit_rows

__all__ = [
    "METRICS",
    "CategoryFigures",
    "ConfusedPair",
    "Evaluation",
    "Metric",
    "PerQuery",
    "RankedLists",
    "Ranks",
    "RerankChoice",
    "UnitRows",
    "VectorSet",
    "choose_reranking",
    "class_distances",
    "confused_pairs",
    "evaluate",
    "kmeans",
    "neighbours",
    "normalized_mutual_information",
    "positive_charges",
    "rank_queries",
    "ranking_gradients",
    "ranking_penalties",
    "repeated_gallery",
    "unit_rows",
]
