"""Every ranking metric from one exact count."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError, unknown
from forerank.metrics.bootstrap import recall_intervals
from forerank.metrics.clustering import kmeans, normalized_mutual_information
from forerank.metrics.distances import class_distances
from forerank.metrics.inputs import check_numbers, checked_ks, label_codes, row_numbers
from forerank.metrics.result import Evaluation, PerQuery
from forerank.ranking.hard import MEMORY, HardRanks, hard_ranks
from forerank.ranking.hard_rows import Embeddings, UnitRows, unit_rows

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
    nmi: bool = True,
    distances: bool = True,
    ignore: ArrayLike | None = None,
    ties: str = "pessimistic",
    per_query: bool = False,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    precision: str = "auto",
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    distributed: bool = False,
) -> Evaluation:
    """Retrieval metrics of embeddings, exactly as float64 brute force would give them.

    Every query ranks the gallery by cosine; it is never its own candidate. Queries without a positive are
    left out and counted.

    Args:
        embeddings: (N, D) array, tensor or memory-mapped file; need not be normalised.
        labels: (N,) numbers or strings, not both.
        queries, gallery: rows as numbers or a mask; default all.
        ks: recall is given at these; the default list is cut to the gallery's size.
        nmi: cluster the vectors by k-means (k = number of classes) and compare with the labels.
        distances: dists@intra and, of two classes or more, dists@inter.
        ignore: (N,) camera or sequence; items with the query's label and its camera are left out, as in
            re-identification.
        ties: where a negative exactly as similar as a positive stands: "pessimistic" before it, "optimistic"
            after it.
        per_query: also keep rank of the first positive and average precision of each query.
        bootstrap: resamplings of the classes for the intervals of recall; 0 for none.
        precision: what screens the similarities; the figures do not depend on it.
        memory: bytes for counting above the embeddings, from about 100 MiB up; NMI needs two copies of the
            vectors in float32 besides.
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
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if ties not in TIES:
        raise unknown("rule for ties", ties, TIES)
    check_numbers(bootstrap=bootstrap, seed=seed, memory=memory)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, such as 0.95, not {confidence}.")
    if distributed and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise InputError("distributed=True needs torch.distributed.init_process_group first.")
    rows = unit_rows(embeddings, device)
    codes = label_codes(labels, len(rows), "labels")
    hidden = None if ignore is None else label_codes(ignore, len(rows), "ignore")
    query = row_numbers(queries, len(rows), "queries")
    shelf = row_numbers(gallery, len(rows), "gallery")
    chosen_ks = checked_ks(ks, query, shelf, cut=ks is DEFAULT_KS)

    parts = hard_ranks(
        rows,
        codes,
        queries=query,
        gallery=shelf,
        ignore=hidden,
        precision=precision,
        memory=memory,
        distributed=distributed,
    )
    figures = [ranking_figures(part) for part in parts]
    found = {name: np.concatenate([f[name] for f in figures]) for name in figures[0]}
    has_positive = found["positives"] > 0
    if not has_positive.any():
        left = "" if hidden is None else " that ignore does not leave out"
        raise InputError(
            f"none of the {len(query):,} queries has a positive in the gallery{left}: a label needs at "
            "least two images, one of them in the gallery."
        )
    found = {name: values[has_positive] for name, values in found.items()}
    both = {rule: summary(found, rule, chosen_ks) for rule in TIES}
    values = both[ties]
    optimistic = {name: v for name, v in both["optimistic"].items() if v != values[name]}

    intervals = {}
    if bootstrap:
        intervals = recall_intervals(
            found[f"{ties}_first"],
            codes[query[has_positive]],
            chosen_ks,
            draws=bootstrap,
            confidence=confidence,
            seed=seed,
        )
    used = np.union1d(query, shelf)
    if distances:
        intra, inter = class_distances(rows, codes, used)
        # One class has no distance to another: no figure rather than one that is not a number.
        values |= {n: v for n, v in (("dists@intra", intra), ("dists@inter", inter)) if not np.isnan(v)}
    classes = len(np.unique(codes[used]))
    if nmi:
        clusters, _ = kmeans(rows, classes, seed=seed, chosen=used)
        values["nmi"] = normalized_mutual_information(codes[used], clusters)
    counts = {
        "queries": int(has_positive.sum()),
        "gallery": len(shelf),
        "classes": classes,
        "queries_without_positive": int((~has_positive).sum()),
        "tied_positives": int(found["tied"].sum()),
    }
    if hidden is not None:
        counts["ignored_pairs"] = ignored_pairs(codes, hidden, query, shelf)
    settings: dict[str, Any] = {"ties": ties, "ks": list(chosen_ks), "seed": seed, "precision": precision}
    if bootstrap:
        settings |= {"bootstrap": bootstrap, "confidence": confidence, "resampled": "classes"}
    each = None
    if per_query:
        each = PerQuery(query[has_positive], found["positives"], found[f"{ties}_first"], found[f"{ties}_ap"])
    return Evaluation(values, intervals, optimistic, counts, settings, per_query=each)


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
    rows = unit_rows(embeddings)
    query = row_numbers(queries, len(rows), "queries")
    parts = hard_ranks(
        rows,
        label_codes(labels, len(rows), "labels"),
        queries=query,
        gallery=row_numbers(gallery, len(rows), "gallery"),
        ignore=None if ignore is None else label_codes(ignore, len(rows), "ignore"),
    )
    figures = [ranking_figures(part) for part in parts]
    names = ("positives", "pessimistic_first", "pessimistic_ap")
    positives, first, precision = (np.concatenate([f[name] for f in figures]) for name in names)
    has = positives > 0
    return PerQuery(query[has], positives[has], first[has], precision[has])


def ranking_figures(part: HardRanks) -> dict[str, NDArray[Any]]:
    """Figures (Q,) of each query from the ranks of its positives, by both rules for ties."""
    positives = np.diff(part.offsets)
    owner = np.repeat(np.arange(len(positives)), positives)
    position = np.arange(len(owner)) - part.offsets[owner]  # from 0 among the query's positives
    figures: dict[str, NDArray[Any]] = {
        "positives": positives,
        "tied": np.bincount(owner, part.tied > 0, minlength=len(positives)),
    }
    has = positives > 0
    share = np.maximum(positives, 1)
    for rule in TIES:
        rank = part.ranks(pessimistic=rule == "pessimistic")
        precision = (position + 1) / rank
        within = rank <= positives[owner]
        first = np.zeros(len(positives), dtype=np.int64)
        first[has] = rank[part.offsets[:-1][has]]
        figures[f"{rule}_first"] = first
        figures[f"{rule}_ap"] = np.bincount(owner, precision, len(positives)) / share
        figures[f"{rule}_map_at_r"] = np.bincount(owner, precision * within, len(positives)) / share
        figures[f"{rule}_r_precision"] = np.bincount(owner, within, len(positives)) / share
    return figures


def summary(found: dict[str, NDArray[Any]], rule: str, ks: tuple[int, ...]) -> dict[str, float]:
    """Means over the queries."""
    first = found[f"{rule}_first"]
    return {
        **{f"recall@{k}": float((first <= k).mean()) for k in ks},
        "map": float(found[f"{rule}_ap"].mean()),
        "map@r": float(found[f"{rule}_map_at_r"].mean()),
        "r_precision": float(found[f"{rule}_r_precision"].mean()),
        "mrr": float((1.0 / first).mean()),
    }


def ignored_pairs(
    codes: NDArray[np.int64], hidden: NDArray[np.int64], query: NDArray[np.int64], shelf: NDArray[np.int64]
) -> int:
    """Pairs of a query and another gallery item that share label and camera."""
    both = np.unique(np.stack([codes, hidden]), axis=1, return_inverse=True)[1].reshape(-1)
    met = np.bincount(both[shelf], minlength=int(both.max()) + 1)[both[query]].sum()
    return int(met - np.isin(query, shelf).sum())
