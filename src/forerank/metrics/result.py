"""The result of an evaluation: reads as a dict, prints as a table, writes as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.console import format_table

# Printed as they are; everything else is a share and is printed in percent.
DISTANCES = ("dists@intra", "dists@inter")


@dataclass(frozen=True, eq=False)
class PerQuery:
    """Figures of each query that has a positive, in the order the queries were given."""

    query: NDArray[np.int64]  # (Q,) row of the embeddings
    positives: NDArray[np.int64]  # (Q,) how many
    first_rank: NDArray[np.int64]  # (Q,) rank of the first positive, from 1
    average_precision: NDArray[np.float64]  # (Q,)


@dataclass(frozen=True, eq=False)  # equal as a mapping: by its figures
class Evaluation(Mapping[str, float]):
    """Retrieval figures by name: ``evaluation["recall@1"]``, ``dict(evaluation)``, ``print(evaluation)``.

    Attributes:
        figures: figure by name, shares between 0 and 1.
        intervals: name -> (low, high) of the bootstrap over classes, for recall.
        optimistic: figures with ties broken in favour of the positive, only those that differ.
        counts: queries, gallery, classes, and what was left out; over repeated random galleries their
            means, rounded.
        settings: how it was computed.
        spread: name -> standard deviation over repeated random galleries.
        per_query: figures of each query, if they were asked for.
    """

    figures: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    optimistic: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    per_query: PerQuery | None = None

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Everything, per-query figures as lists, as plain values that `json.dumps` takes."""
        whole: dict[str, Any] = {"metrics": self.figures, "counts": self.counts, "settings": self.settings}
        if self.intervals:
            whole["intervals"] = {name: list(ends) for name, ends in self.intervals.items()}
        if self.optimistic:
            whole["optimistic"] = self.optimistic
        if self.spread:
            whole["spread"] = self.spread
        if self.per_query is not None:
            whole["per_query"] = {name: array.tolist() for name, array in vars(self.per_query).items()}
        return whole

    def __str__(self) -> str:
        header = ["metric", "value"]
        extra: list[tuple[str, Any]] = []
        if self.intervals:
            share = self.settings.get("confidence", 0.95)
            extra.append((f"{100 * share:g}% interval", lambda name: _interval(name, self.intervals)))
        if self.spread:
            extra.append(("sd", lambda name: _shown(name, self.spread.get(name))))
        if self.optimistic:
            extra.append(("ties after", lambda name: _shown(name, self.optimistic.get(name))))
        rows = [
            [name, _shown(name, value), *[column(name) for _, column in extra]]
            for name, value in self.figures.items()
        ]
        table = format_table([*header, *[title for title, _ in extra]], rows)
        return f"{table}\n{_sentence(self.counts)}"


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if name in DISTANCES else f"{100 * value:.2f}%"


def _interval(name: str, intervals: Mapping[str, tuple[float, float]]) -> str:
    if name not in intervals:
        return ""
    low, high = intervals[name]
    return f"{100 * low:.2f} - {100 * high:.2f}"


def _sentence(counts: Mapping[str, int]) -> str:
    """
    >>> _sentence({"queries": 1200, "gallery": 3000, "queries_without_positive": 2})
    '1,200 queries, gallery of 3,000; left out: 2 queries without a positive.'
    """
    if not counts:
        return ""
    text = f"{counts['queries']:,} queries, gallery of {counts['gallery']:,}"
    if counts.get("galleries", 1) > 1:
        text += f", mean over {counts['galleries']} random galleries"
    left = []
    if counts.get("queries_without_positive"):
        left.append(f"{counts['queries_without_positive']:,} queries without a positive")
    if counts.get("ignored_pairs"):
        left.append(f"{counts['ignored_pairs']:,} ignored pairs")
    if counts.get("tied_positives"):
        text += f"; {counts['tied_positives']:,} positives tie with a negative"
    return text + (f"; left out: {', '.join(left)}." if left else ".")
