"""Which kind of re-ranking helps on some data, or none."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerank.console import format_table, percent
from forerank.errors import InputError
from forerank.metrics.evaluation import metric_values
from forerank.metrics.inputs import label_codes
from forerank.metrics.intervals import class_intervals
from forerank.metrics.registry import find_metric, is_better, shown
from forerank.ranking.hard_rows import Embeddings, unit_rows
from forerank.ranking.reranking import NONE, RERANKINGS, Reranking, read_reranking

# With fewer classes no gain is certain: that all of n classes gain by chance has the probability 2 ** -n, and
# three kinds are tried.
FEWEST_CLASSES = 6


@dataclass(frozen=True)
class Gain:
    """What one kind of re-ranking gives: the figure, its difference to the plain ranking, its interval."""

    rerank: str
    value: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True)
class RerankChoice:
    """The chosen kind ("none" if no gain is certain) and what was measured for it.

    Attributes:
        chosen: as `read_reranking` takes it.
        metric: the figure that was compared.
        plain: its value without re-ranking.
        gains: one entry per kind.
        queries, classes: how many are behind the figures.
        confidence: that all the intervals hold together.
    """

    chosen: str
    metric: str
    plain: float
    gains: tuple[Gain, ...]
    queries: int
    classes: int
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [[NONE, shown(self.metric, self.plain), "", ""]]
        for g in self.gains:
            ends = " to ".join(shown(self.metric, end, signed=True) for end in (g.low, g.high))
            rows.append(
                [g.rerank, shown(self.metric, g.value), shown(self.metric, g.gain, signed=True), ends]
            )
        header = ["re-ranking", self.metric, "gain", f"{percent(self.confidence, digits=0)} interval"]
        reason = "no gain is certain" if self.chosen == NONE else "the largest of the certain gains"
        if self.classes < FEWEST_CLASSES:
            reason = f"fewer than {FEWEST_CLASSES} classes: a gain may be chance"
        of = f"{self.queries:,} queries of {self.classes:,} classes"
        return f"{format_table(header, rows)}\nchosen: {self.chosen} ({reason}; {of})."


def choose_reranking(
    embeddings: Embeddings,
    labels: ArrayLike,
    *,
    queries: ArrayLike | None = None,
    gallery: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
    metric: str = "recall@1",
    kinds: Sequence[str | Reranking] = tuple(RERANKINGS),
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> RerankChoice:
    """Measure each kind and take the one that helps most; none where no gain is certain.

    A gain is certain if its interval lies on the better side of zero. It is an interval of the differences of
    each query, drawing whole classes anew, and wide enough to hold for all kinds together. Below six classes
    no gain is certain. Give validation classes: on the classes of the final figure the choice would make that
    figure optimistic.

    Args:
        embeddings, labels, queries, gallery, ignore: as for `evaluate`.
        metric: a ranking metric.
        kinds: what to try, as `evaluate` takes `rerank`.

    Example:
        >>> import numpy as np
        >>> generator = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(30), 8)
        >>> vectors = generator.normal(size=(30, 32))[labels] + 1.5 * generator.normal(size=(240, 32))
        >>> choose_reranking(vectors, labels, metric="map", kinds=["expansion"]).chosen
        'expansion:neighbours=5,alpha=3.0'
    """
    if find_metric(metric)[0].of != "ranks" or find_metric(metric)[0].better is None:
        raise InputError(
            f"a re-ranking is chosen by a ranking metric, such as recall@1 or map@r, not {metric}."
        )
    rows = unit_rows(embeddings)
    codes = label_codes(labels, len(rows), "labels")
    roles: dict[str, Any] = {"queries": queries, "gallery": gallery, "ignore": ignore}
    asked, plain = metric_values(rows, codes, [metric], **roles)
    if not len(asked):
        raise InputError(
            "no query has a positive in the gallery: there is nothing to choose a re-ranking by."
        )
    gains = []
    for kind in kinds:
        values = metric_values(rows, codes, [metric], **roles, rerank=kind)[1]
        low, high = class_intervals(
            values - plain,
            codes[asked],
            draws=bootstrap,
            confidence=1 - (1 - confidence) / len(kinds),
            seed=seed,
        )[:, 0]
        mean = float(values.mean())
        gains.append(
            Gain(str(read_reranking(kind)), mean, mean - float(plain.mean()), float(low), float(high))
        )
    better, classes = find_metric(metric)[0].better, len(np.unique(codes[asked]))
    enough = classes >= FEWEST_CLASSES
    certain = [g for g in gains if enough and is_better(metric, g.low if better == "higher" else g.high, 0.0)]
    best = max(certain, key=lambda g: abs(g.gain), default=None)
    return RerankChoice(
        NONE if best is None else best.rerank,
        metric,
        float(plain.mean()),
        tuple(gains),
        len(asked),
        classes,
        confidence,
    )
