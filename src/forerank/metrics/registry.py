"""Every metric as one entry: its key, title, unit, which way is better, and its function.

A metric of the ranks is a function of `Ranks`, one value per query; its figure is the mean over the queries.
A metric of the vectors is a function of `VectorSet`, one value. A key that ends in "@k" is a family: its
function also takes k, and "recall@k" gives recall@1, recall@10 and so on. Console, JSON, report, recipes, the
paper and the guide read this registry; see "Add a metric" in CONTRIBUTING.md.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forerank.console import percent
from forerank.errors import InputError, unknown
from forerank.metrics.clustering import kmeans, normalized_mutual_information
from forerank.metrics.distances import class_distances
from forerank.ranking.hard import HardRanks
from forerank.ranking.hard_rows import UnitRows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ranks:
    """Where the P positives of Q queries stand; every query has at least one.

    Attributes:
        positives: (Q,) how many positives each query has.
        owner: (P,) which query each positive belongs to, from 0.
        place: (P,) its place among the positives of its query, from 1, nearest first.
        rank: (P,) its rank in the whole list, from 1.
    """

    positives: Integers
    owner: Integers
    place: Integers
    rank: Integers

    @classmethod
    def of(cls, counts: HardRanks, *, pessimistic: bool) -> "Ranks":
        """From the counts, by one of the two rules for ties; queries without a positive are left out."""
        every = np.diff(counts.offsets)
        positives = every[every > 0]
        owner = np.repeat(np.arange(len(positives)), positives)
        start = np.cumsum(positives) - positives
        place = np.arange(len(owner)) - start[owner] + 1
        return cls(positives, owner, place, counts.ranks(pessimistic=pessimistic))

    @property
    def first(self) -> Integers:
        """(Q,) rank of the first positive of each query."""
        first: Integers = self.rank[np.cumsum(self.positives) - self.positives]
        return first

    @property
    def precision(self) -> Floats:
        """(P,) share of positives among the images up to and including each positive."""
        return self.place / self.rank

    def sum(self, values: NDArray[Any]) -> Floats:
        """(Q,) sum of the values (P,) of each query's positives."""
        total: Floats = np.bincount(self.owner, values, len(self.positives)).astype(np.float64)
        return total


@dataclass(frozen=True)
class VectorSet:
    """The vectors of queries and gallery together, for metrics that do not come from ranks."""

    rows: UnitRows
    codes: Integers  # (N,) labels as numbers
    chosen: Integers  # rows that are query or gallery
    seed: int

    @cached_property
    def distances(self) -> tuple[float, float]:
        """dists@intra and dists@inter."""
        return class_distances(self.rows, self.codes, self.chosen)

    def nmi(self) -> float:
        """How well k-means clusters agree with the labels."""
        classes = len(np.unique(self.codes[self.chosen]))
        clusters, _ = kmeans(self.rows, classes, seed=self.seed, chosen=self.chosen)
        return normalized_mutual_information(self.codes[self.chosen], clusters)


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        title: as tables and charts show it; "k" stands for the number.
        meaning: its definition in one line.
        function: of `Ranks` -> (Q,), or of `VectorSet` -> float (NaN: there is no such figure); a family's
            function takes k as well.
        unit: shares are numbers from 0 to 1 and are shown in percent; the others as they are.
        better: which way is better; None for a figure that is neither good nor bad.
        of: what the function takes.
        usual: whether it is measured where nobody asks for certain metrics.
        symbol: as the paper's tables write it, if other than the title.
    """

    title: str
    meaning: str
    function: Callable[..., Any]
    unit: Literal["share", "cosine distance", "rank"] = "share"
    better: Literal["higher", "lower"] | None = "higher"
    of: Literal["ranks", "vectors"] = "ranks"
    usual: bool = True
    symbol: str | None = None


METRICS: dict[str, Metric] = {
    "recall@k": Metric(
        "Recall@k",
        "share of queries with a positive among the first k",
        lambda ranks, k: ranks.first <= k,
        symbol="R@k",
    ),
    "precision@k": Metric(
        "Precision@k",
        "positives among the first k, divided by min(k, R): 1 where no list could hold more",
        lambda ranks, k: ranks.sum(ranks.rank <= k) / np.minimum(ranks.positives, k),
        usual=False,
    ),
    "map": Metric(
        "mAP",
        "mean over queries of average precision over the whole ranking",
        lambda ranks: ranks.sum(ranks.precision) / ranks.positives,
    ),
    "map@k": Metric(
        "mAP@k",
        "sum of the precisions at the positives among the first k, divided by min(k, R)",
        lambda ranks, k: ranks.sum(ranks.precision * (ranks.rank <= k)) / np.minimum(ranks.positives, k),
        usual=False,
    ),
    "map@r": Metric(
        "mAP@R",
        "map@k with k = R",
        lambda ranks: (
            ranks.sum(ranks.precision * (ranks.rank <= ranks.positives[ranks.owner])) / ranks.positives
        ),
    ),
    "r_precision": Metric(
        "R-precision",
        "share of positives among the first R",
        lambda ranks: ranks.sum(ranks.rank <= ranks.positives[ranks.owner]) / ranks.positives,
    ),
    "mrr": Metric("MRR", "mean of 1 / rank of the first positive", lambda ranks: 1 / ranks.first),
    "dists@intra": Metric(
        "distance within classes",
        "mean over classes of the mean cosine distance of two of its images",
        lambda vectors: vectors.distances[0],
        unit="cosine distance",
        better=None,
        of="vectors",
    ),
    "dists@inter": Metric(
        "distance between classes",
        "mean cosine distance of two class centres (normalised means); absent if there is one class",
        lambda vectors: vectors.distances[1],
        unit="cosine distance",
        better=None,
        of="vectors",
    ),
    "nmi": Metric(
        "NMI",
        "mutual information of the labels and of k-means clusters (as many as classes), over the mean of "
        "their entropies",
        lambda vectors: vectors.nmi(),
        of="vectors",
    ),
}
"""The metrics by name. `evaluate`, reports, recipes (`choose_by`) and the paper read them here."""


def find_metric(name: str) -> tuple[Metric, int | None]:
    """The entry of a metric and its k, from a name such as "recall@10" or "nmi"; others are refused.

    >>> find_metric("recall@10")[1], find_metric("map@r")[0].title
    (10, 'mAP@R')
    >>> find_metric("recal@10")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown metric 'recal@10': did you mean 'recall@10'? Valid: ...
    """
    numbered = re.fullmatch(r"(.+)@([1-9]\d*)", name)
    if name in METRICS and not name.endswith("@k"):
        return METRICS[name], None
    if numbered and f"{numbered[1]}@k" in METRICS:
        return METRICS[f"{numbered[1]}@k"], int(numbered[2])
    if name in METRICS:
        raise InputError(f"{name} needs a number in the place of k, such as {name[:-1]}1.")
    # A family is suggested with the number that was asked for.
    raise unknown(
        "metric",
        name,
        [f"{key[:-1]}{numbered[2]}" if numbered and key.endswith("@k") else key for key in METRICS],
    )


def usual_metrics() -> list[str]:
    """Keys of the metrics that are measured where nobody asks for certain ones."""
    return [key for key, metric in METRICS.items() if metric.usual]


def expanded(names: Iterable[str] | None, ks: Iterable[int]) -> list[str]:
    """The names of single metrics: those given, or the usual ones, each "@k" once for every k.

    >>> expanded(["map@r", "recall@k"], (1, 10))
    ['map@r', 'recall@1', 'recall@10']
    """
    wanted = usual_metrics() if names is None else list(names)
    numbers = tuple(ks)
    every: list[str] = []
    for name in wanted:
        every += [f"{name[:-1]}{k}" for k in numbers] if name in METRICS and name.endswith("@k") else [name]
    every = list(dict.fromkeys(every))
    for name in every:
        find_metric(name)
    return every


def per_query(name: str, ranks: Ranks) -> Floats:
    """A metric of the ranks for each query (Q,)."""
    metric, k = find_metric(name)
    values = metric.function(ranks) if k is None else metric.function(ranks, k)
    return np.asarray(values, dtype=np.float64)


def title(name: str) -> str:
    """
    >>> title("recall@10"), title("map@r")
    ('Recall@10', 'mAP@R')
    """
    metric, k = find_metric(name)
    return metric.title if k is None else f"{metric.title.removesuffix('k')}{k}"


def symbol(name: str) -> str:
    """The metric as the paper writes it.

    >>> symbol("recall@1"), symbol("nmi")
    ('R@1', 'NMI')
    """
    metric, k = find_metric(name)
    return title(name) if metric.symbol is None else f"{metric.symbol.removesuffix('k')}{k}"


def from_symbol(text: str) -> str:
    """The metric that the paper writes so.

    >>> from_symbol("R@10"), from_symbol("NMI"), from_symbol("dists@intra")
    ('recall@10', 'nmi', 'dists@intra')
    """
    written, at, number = text.partition("@")
    for key, metric in METRICS.items():
        sign = metric.symbol or metric.title
        if sign == text:
            return key
        if number.isdigit() and sign == f"{written}{at}k":
            return f"{key[:-1]}{number}"
    find_metric(text)
    return text


def figures_line(figures: Mapping[str, float]) -> str:
    """Some figures in one line.

    >>> figures_line({"recall@1": 0.8126, "map@r": 0.5})
    'recall@1 81.26%, map@r 50.00%'
    """
    return ", ".join(f"{name} {shown(name, value)}" for name, value in figures.items())


def is_share(name: str) -> bool:
    """Whether a metric is a share of one, shown in percent."""
    return find_metric(name)[0].unit == "share"


def is_better(name: str, value: float, than: float) -> bool:
    """Whether a value of the metric is better than another.

    >>> is_better("recall@1", 0.8, 0.7), is_better("dists@intra", 0.8, 0.7)
    (True, False)
    """
    better = find_metric(name)[0].better
    return better is not None and (value > than if better == "higher" else value < than)


def shown(name: str, value: float | None, *, digits: int = 2, signed: bool = False, mark: bool = True) -> str:
    """A value as text: shares in percent with `digits` decimals, others with two more; "–" for NaN or None.

    Args:
        signed: also write a plus.
        mark: write "%" after a percentage.

    >>> shown("recall@1", 0.8126), shown("dists@intra", 0.25), shown("map", -0.01, digits=1, signed=True)
    ('81.26%', '0.2500', '−1.0%')
    """
    if value is None or math.isnan(value):
        return "–"
    if is_share(name):
        return percent(value, digits=digits, signed=signed, mark=mark)
    return f"{value:{'+' if signed else ''}.{digits + 2}f}".replace("-", "−")
