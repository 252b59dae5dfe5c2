"""Every figure of an evaluation, from one exact count of the ranks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError, check_name
from forerank.metrics.inputs import check_numbers, checked_ks, label_codes, ranked_items, row_numbers
from forerank.metrics.intervals import class_intervals
from forerank.metrics.ranked_lists import checked_pairs
from forerank.metrics.registry import Ranks, VectorSet, expanded, find_metric
from forerank.metrics.registry import per_query as metric_per_query
from forerank.metrics.reranking import reranked_ranks
from forerank.metrics.result import CategoryFigures, Evaluation, PerQuery
from forerank.ranking.hard import MEMORY, HardRanks, hard_ranks
from forerank.ranking.hard_rows import Embeddings, UnitRows, unit_rows
from forerank.ranking.reranking import Reranking, read_reranking

DEFAULT_KS = (1, 10, 100, 1000)
PRECISIONS = ("auto", "bfloat16", "float32", "float64")
TIES = ("pessimistic", "optimistic")


def evaluate(
    embeddings: Embeddings,
    labels: ArrayLike,
    *,
    queries: ArrayLike | None = None,
    gallery: ArrayLike | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    metrics: Iterable[str] | None = None,
    nmi: bool = True,
    distances: bool = True,
    ignore: ArrayLike | None = None,
    ties: str = "pessimistic",
    per_query: bool = False,
    categories: ArrayLike | None = None,
    rerank: str | Reranking | None = None,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    precision: str = "auto",
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    distributed: bool = False,
) -> Evaluation:
    """Retrieval metrics of embeddings, exactly as float64 brute force gives them.

    Every query ranks the gallery by cosine; it is never its own candidate. Queries without a positive are
    left out and counted.

    Args:
        embeddings: (N, D) array, tensor or memory-mapped file; need not be normalised.
        labels: (N,) numbers or strings, not both.
        queries, gallery: rows as numbers or a mask; default all.
        ks: the k of metrics such as recall@k; the default list is cut to the gallery's size.
        metrics: keys of `forerank.metrics.METRICS`, such as "recall@k" (at every k of `ks`), "precision@5" or
            "nmi"; default the usual ones.
        nmi: False leaves out NMI, which clusters the vectors.
        distances: False leaves out dists@intra and dists@inter.
        ignore: (N,) camera or sequence; items with the query's label and its camera are left out, as in
            re-identification.
        ties: where a negative exactly as similar as a positive stands: "pessimistic" before it, "optimistic"
            after it.
        per_query: also keep the rank of the first positive and the average precision of each query.
        categories: (N,) category of each row, if figures per category of the query are wanted as well.
        rerank: "expansion", "averaging" or "reciprocal", with settings as in "reciprocal:k1=10,depth=100":
            the rankings are refined by neighbours, and no label is looked at for that. Metrics of the vectors
            stay as they are.
        bootstrap: resamplings of the classes for the intervals of the ranking metrics; 0 for none.
        precision: what screens the similarities; the figures do not depend on it.
        memory: bytes for counting above the embeddings, from about 100 MiB up; in addition NMI needs two
            copies of the vectors in float32.
        device: where to compute; default where a tensor lies, the CPU for arrays.
        distributed: every process of torch.distributed calls this with the same arguments; they share the
            gallery, and all get the same result.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.2], [0.1, 1.0], [0.7, 0.7]])
        >>> print(evaluate(vectors, ["cup", "cup", "pen", "pen"], ks=(1, 2), nmi=False, bootstrap=0))
        metric         value
        -----------  -------
        recall@1      75.00%
        recall@2     100.00%
        map           87.50%
        map@r         75.00%
        r_precision   75.00%
        mrr           87.50%
        dists@intra   0.1249
        dists@inter   0.4757
        4 queries, gallery of 4.
    """
    check_name("precision", precision, PRECISIONS)
    check_name("rule for ties", ties, TIES)
    check_numbers(bootstrap=bootstrap, seed=seed, memory=memory)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, such as 0.95, not {confidence}.")
    if distributed and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise InputError("distributed=True needs torch.distributed.init_process_group first.")
    refined = read_reranking(rerank)
    if refined is not None and distributed:
        raise InputError("re-ranking works in one process: leave out torchrun, or rerank.")
    rows = unit_rows(embeddings, device)
    codes = label_codes(labels, len(rows), "labels")
    hidden = None if ignore is None else label_codes(ignore, len(rows), "ignore")
    query = row_numbers(queries, len(rows), "queries")
    shelf = row_numbers(gallery, len(rows), "gallery")
    chosen_ks = checked_ks(ks, query, shelf, cut=ks is DEFAULT_KS)
    names = expanded(metrics, chosen_ks)
    names = [n for n in names if (nmi or n != "nmi") and (distances or not n.startswith("dists@"))]
    ranking = [name for name in names if find_metric(name)[0].of == "ranks"]
    for name in ranking:
        if (find_metric(name)[1] or 0) > (most := ranked_items(query, shelf)):
            raise InputError(f"{name} cannot be measured here: a query ranks only {most:,} gallery items.")
    groups = None if categories is None else _category_names(categories, len(rows))

    counting = {"precision": precision, "memory": memory, "distributed": distributed}
    parts = _ranks(rows, codes, query, shelf, hidden, refined, **counting)
    counted = _count(parts, ranking)
    if not len(counted.query):
        left = "" if hidden is None else " that ignore does not leave out"
        raise InputError(
            f"none of the {len(query):,} queries has a positive in the gallery{left}: a label needs at "
            "least two images, one of them in the gallery."
        )
    values = counted.values[ties]  # (Q, K)
    means = {rule: counted.values[rule].mean(axis=0) for rule in TIES}
    figures = dict(zip(ranking, means[ties].tolist(), strict=True))
    optimistic = {
        name: value
        for name, value in zip(ranking, means["optimistic"].tolist(), strict=True)
        if value != figures[name]
    }
    asked = query[counted.query]
    intervals = {}
    if bootstrap and ranking:
        ends = class_intervals(values, codes[asked], draws=bootstrap, confidence=confidence, seed=seed)
        intervals = {name: (low, high) for name, (low, high) in zip(ranking, ends.T.tolist(), strict=True)}
    used = np.union1d(query, shelf)
    space = VectorSet(rows, codes, used, seed)
    for name in names:
        metric = find_metric(name)[0]
        # One class has no distance to another: no figure rather than one that is not a number.
        if metric.of == "vectors" and not np.isnan(value := float(metric.function(space))):
            figures[name] = value
    counts = {
        "queries": len(asked),
        "gallery": len(shelf),
        "classes": len(np.unique(codes[used])),
        "queries_without_positive": len(query) - len(asked),
        "tied_positives": counted.tied,
    }
    if hidden is not None:
        counts["ignored_pairs"] = ignored_pairs(codes, hidden, query, shelf)
    settings: dict[str, Any] = {"ties": ties, "ks": list(chosen_ks), "seed": seed, "precision": precision}
    if refined is not None:
        settings["rerank"] = str(refined)
    if bootstrap:
        settings |= {"bootstrap": bootstrap, "confidence": confidence, "resampled": "classes"}
    return Evaluation(
        {name: figures[name] for name in names if name in figures},
        intervals,
        optimistic,
        counts,
        settings,
        per_query=counted.per_query(asked, ties) if per_query else None,
        categories=None if groups is None else _by_category(ranking, values, groups[asked]),
    )


def rank_queries(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    queries: ArrayLike | None = None,
    *,
    gallery: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
) -> PerQuery:
    """Rank of the first positive and average precision of each query, as `evaluate` counts them.

    Queries without a positive are left out; there may be none left.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> each = rank_queries(vectors, ["a", "a", "b"])
        >>> each.query.tolist(), each.first_rank.tolist(), each.average_precision.tolist()
        ([0, 1], [2, 2], [0.5, 0.5])
    """
    query, counted = _counted(embeddings, labels, [], queries, gallery, ignore, None)
    return counted.per_query(query, "pessimistic")


def metric_values(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    names: Sequence[str],
    queries: ArrayLike | None = None,
    *,
    gallery: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
    rerank: str | Reranking | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows (Q,) of the queries that have a positive, and K ranking metrics (Q, K) of each.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> [array.tolist() for array in metric_values(vectors, ["a", "a", "b"], ["recall@1", "mrr"])]
        [[0, 1], [[0.0, 0.5], [0.0, 0.5]]]
    """
    query, counted = _counted(embeddings, labels, names, queries, gallery, ignore, rerank)
    return query, counted.values["pessimistic"]


def _counted(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    names: Sequence[str],
    queries: ArrayLike | None,
    gallery: ArrayLike | None,
    ignore: ArrayLike | None,
    rerank: str | Reranking | None,
) -> tuple[NDArray[np.int64], "_Counted"]:
    """Rows of the queries that have a positive, and what was counted for them."""
    rows, refined = unit_rows(embeddings), read_reranking(rerank)
    codes = label_codes(labels, len(rows), "labels")
    query = row_numbers(queries, len(rows), "queries")
    shelf = row_numbers(gallery, len(rows), "gallery")
    hidden = None if ignore is None else label_codes(ignore, len(rows), "ignore")
    parts = _ranks(rows, codes, query, shelf, hidden, refined)
    counted = _count(parts, names)
    return query[counted.query], counted


def _ranks(
    rows: UnitRows,
    codes: NDArray[np.int64],
    query: NDArray[np.int64],
    shelf: NDArray[np.int64],
    hidden: NDArray[np.int64] | None,
    refined: Reranking | None,
    **counting: Any,
) -> Iterator[HardRanks]:
    """The counts of the plain ranking, or of the refined one."""
    if refined is not None:
        return reranked_ranks(checked_pairs(rows, codes, query, shelf, hidden), refined)
    return hard_ranks(rows, codes, queries=query, gallery=shelf, ignore=hidden, **counting)


@dataclass(frozen=True)
class _Counted:
    """What remains of the counts of Q queries that have a positive."""

    query: NDArray[np.int64]  # (Q,) places in the list of queries
    positives: NDArray[np.int64]  # (Q,)
    tied: int  # positives that tie with a negative
    values: dict[str, NDArray[np.float64]]  # rule for ties -> (Q, K) the K metrics that were asked for
    first: dict[str, NDArray[np.int64]]  # rule -> (Q,) rank of the first positive
    precision: dict[str, NDArray[np.float64]]  # rule -> (Q,) average precision

    def per_query(self, rows: NDArray[np.int64], rule: str) -> PerQuery:
        return PerQuery(rows, self.positives, self.first[rule], self.precision[rule])


def _count(parts: Iterable[HardRanks], names: Sequence[str]) -> _Counted:
    """The metrics of each query by both rules for ties, part by part: all ranks need not fit in memory."""
    query, positives, tied = [], [], 0
    kept: dict[str, tuple[list[Any], list[Any], list[Any]]] = {rule: ([], [], []) for rule in TIES}
    for part in parts:
        query.append(part.queries[np.diff(part.offsets) > 0])
        tied += int((part.tied > 0).sum())
        for rule, (values, first, precision) in kept.items():
            ranks = Ranks.of(part, pessimistic=rule == "pessimistic")
            columns = [metric_per_query(name, ranks) for name in names]
            values.append(np.stack(columns, axis=1) if columns else np.empty((len(ranks.positives), 0)))
            first.append(ranks.first)
            precision.append(metric_per_query("map", ranks))
        positives.append(ranks.positives)
    joined = {rule: tuple(np.concatenate(some) for some in lists) for rule, lists in kept.items()}
    return _Counted(
        np.concatenate(query),
        np.concatenate(positives),
        tied,
        *({rule: arrays[i] for rule, arrays in joined.items()} for i in range(3)),
    )


def _category_names(categories: ArrayLike, count: int) -> NDArray[np.str_]:
    label_codes(categories, count, "categories")
    return np.asarray(categories).astype(str)


def _by_category(
    names: Sequence[str], values: NDArray[np.float64], category: NDArray[np.str_]
) -> list[CategoryFigures]:
    """Means over the queries of each category, the worst first by the first metric."""
    every = []
    for one in np.unique(category).tolist():
        mine = values[category == one]
        means = dict(zip(names, mine.mean(axis=0).tolist(), strict=True))
        every.append(CategoryFigures(one, len(mine), means))
    if names:
        higher = find_metric(names[0])[0].better != "lower"
        every.sort(key=lambda c: c.figures[names[0]] if higher else -c.figures[names[0]])
    return every


def ignored_pairs(
    codes: NDArray[np.int64], hidden: NDArray[np.int64], query: NDArray[np.int64], shelf: NDArray[np.int64]
) -> int:
    """Pairs of a query and another gallery item that share label and camera."""
    both = np.unique(np.stack([codes, hidden]), axis=1, return_inverse=True)[1].reshape(-1)
    met = np.bincount(both[shelf], minlength=int(both.max()) + 1)[both[query]].sum()
    return int(met - np.isin(query, shelf).sum())
