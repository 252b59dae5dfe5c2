"""The result of an evaluation: reads as a dict, prints as a table, writes as JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.console import format_table
from forerank.metrics.registry import shown


@dataclass(frozen=True, eq=False)
class PerQuery:
    """Figures of each query that has a positive, in the order the queries were given."""

    query: NDArray[np.int64]  # (Q,) row of the embeddings
    positives: NDArray[np.int64]  # (Q,) how many
    first_rank: NDArray[np.int64]  # (Q,) rank of the first positive, from 1
    average_precision: NDArray[np.float64]  # (Q,)


@dataclass(frozen=True)
class CategoryFigures:
    """Ranking figures of the queries of one category, each against the whole gallery."""

    category: str
    queries: int
    figures: dict[str, float]


@dataclass(frozen=True, eq=False)  # equal as a mapping: by its figures
class Evaluation(Mapping[str, float]):
    """Retrieval figures by name: ``evaluation["recall@1"]``, ``dict(evaluation)``, ``print(evaluation)``.

    Attributes:
        figures: figure by name, shares between 0 and 1.
        intervals: name -> (low, high) of the bootstrap over classes, for ranking metrics.
        optimistic: figures with ties broken in favour of the positive, only those that differ.
        counts: queries, gallery, classes, and what was left out; over repeated random galleries their
            means, rounded.
        settings: how it was computed.
        spread: name -> standard deviation over repeated random galleries.
        per_query: figures of each query, if they were asked for.
        categories: figures of each category, worst first, if they were asked for.
    """

    figures: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    optimistic: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    per_query: PerQuery | None = None
    categories: list[CategoryFigures] | None = None

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
        if self.categories is not None:
            whole["categories"] = [
                {"category": c.category, "queries": c.queries, "metrics": c.figures} for c in self.categories
            ]
        return whole

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_dict`."""
        arrays, categories = plain.get("per_query"), plain.get("categories")
        return cls(
            figures=plain["metrics"],
            intervals={name: (low, high) for name, (low, high) in plain.get("intervals", {}).items()},
            optimistic=plain.get("optimistic", {}),
            counts=plain["counts"],
            settings=plain["settings"],
            spread=plain.get("spread", {}),
            per_query=None if arrays is None else PerQuery(**{n: np.asarray(v) for n, v in arrays.items()}),
            categories=None
            if categories is None
            else [CategoryFigures(c["category"], c["queries"], c["metrics"]) for c in categories],
        )

    def __str__(self) -> str:
        text = f"{format_table(*self._table())}\n{_sentence(self.counts)}"
        if "rerank" in self.settings:
            text += f"\nRe-ranked by {self.settings['rerank']}."
        if self.categories:
            text += f"\n\n{format_table(*category_table(self.categories))}"
        return text

    def _repr_html_(self) -> str:
        """The same tables for a notebook."""
        tables = [self._table(), *([category_table(self.categories)] if self.categories else [])]
        return f"{''.join(html_table(*table) for table in tables)}<p>{escape(_sentence(self.counts))}</p>"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the figures, as text."""
        columns: list[tuple[str, Callable[[str], str]]] = [
            ("metric", lambda name: name),
            ("value", lambda name: shown(name, self.figures[name])),
        ]
        if self.intervals:
            share = self.settings.get("confidence", 0.95)
            columns.append((f"{100 * share:g}% interval", lambda name: _interval(name, self.intervals)))
        if self.spread:
            columns.append(("sd", lambda name: shown(name, self.spread[name])))
        if self.optimistic:
            better = self.optimistic
            columns.append(("ties after", lambda name: shown(name, better[name]) if name in better else ""))
        header = [title for title, _ in columns]
        return header, [[column(name) for _, column in columns] for name in self.figures]


def category_table(categories: Sequence[CategoryFigures]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the figures per category, as text."""
    names = list(categories[0].figures)
    rows = [[c.category, f"{c.queries:,}", *[shown(n, c.figures[n]) for n in names]] for c in categories]
    return ["category", "queries", *names], rows


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A `<table>`, every cell escaped.

    >>> html_table(["metric"], [["a < b"]])
    '<table><thead><tr><th>metric</th></tr></thead><tbody><tr><td>a &lt; b</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(title)}</th>" for title in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _interval(name: str, intervals: Mapping[str, tuple[float, float]]) -> str:
    return " - ".join(shown(name, end, mark=False) for end in intervals[name]) if name in intervals else ""


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
