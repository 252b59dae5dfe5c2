"""Hard ranks -> numbers to report: recall, average precision, clustering and distance figures."""

from forerank.metrics.clustering import kmeans, normalized_mutual_information
from forerank.metrics.distances import class_distances
from forerank.metrics.evaluation import evaluate
from forerank.metrics.protocols import repeated_gallery
from forerank.metrics.result import Evaluation, PerQuery
from forerank.ranking.hard_rows import UnitRows, unit_rows

__all__ = [
    "Evaluation",
    "PerQuery",
    "UnitRows",
    "class_distances",
    "evaluate",
    "kmeans",
    "normalized_mutual_information",
    "repeated_gallery",
    "unit_rows",
]
