"""Protocols that repeat an evaluation over random galleries."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from forerank.errors import InputError
from forerank.metrics.evaluation import DEFAULT_KS, evaluate
from forerank.metrics.inputs import check_numbers, label_codes
from forerank.metrics.result import Evaluation
from forerank.ranking.hard import MEMORY
from forerank.ranking.hard_rows import Embeddings
from forerank.ranking.reranking import Reranking


def repeated_gallery(
    embeddings: Embeddings,
    labels: ArrayLike,
    *,
    repeats: int = 10,
    seed: int = 0,
    ks: Sequence[int] = DEFAULT_KS,
    metrics: Iterable[str] | None = None,
    ignore: ArrayLike | None = None,
    ties: str = "pessimistic",
    rerank: str | Reranking | None = None,
    precision: str = "auto",
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    distributed: bool = False,
) -> Evaluation:
    """VehicleID's own protocol: one random image of each label is the gallery, all others are queries.

    Figures are means over the repeats, `spread` their standard deviation. Labels with one image stay in the
    gallery as distractors. The other arguments are those of `evaluate`; clusters, distances, intervals and
    figures of each query belong to one gallery, not to this protocol.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.2], [0.1, 1.0], [0.3, 0.7]])
        >>> result = repeated_gallery(vectors, ["cup", "cup", "pen", "pen"], ks=(1,), repeats=3)
        >>> result["recall@1"], result.counts["gallery"], result.counts["galleries"]
        (1.0, 2, 3)
    """
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, not {repeats}.")
    check_numbers(seed=seed)
    generator = np.random.default_rng(seed)
    codes = label_codes(labels, len(embeddings), "labels")
    wanted = None if metrics is None else list(metrics)
    results = []
    for _ in range(repeats):
        # The first of each label in a random order is a fair draw of one of its images.
        order = generator.permutation(len(codes))
        gallery = np.zeros(len(codes), dtype=bool)
        gallery[order[np.unique(codes[order], return_index=True)[1]]] = True
        if gallery.all():
            raise InputError("every label has one image: none is left to be a query.")
        results.append(
            evaluate(
                embeddings, codes, queries=~gallery, gallery=gallery, ks=ks, metrics=wanted, nmi=False,
                distances=False, ignore=ignore, ties=ties, rerank=rerank, bootstrap=0, precision=precision,
                memory=memory, device=device, distributed=distributed,
            )
        )  # fmt: skip
    figures = {name: float(np.mean([r[name] for r in results])) for name in results[0]}
    spread = {name: float(np.std([r[name] for r in results])) for name in results[0]}
    best = {
        name: [r.optimistic.get(name, r[name]) for r in results] for r in results for name in r.optimistic
    }
    optimistic = {name: float(np.mean(values)) for name, values in best.items()}
    each = {name: [r.counts[name] for r in results] for name in results[0].counts}
    # What happened in one gallery of ten did happen: rounded, but not to none.
    counts = {name: max(round(float(np.mean(n))), int(any(n))) for name, n in each.items()}
    counts["galleries"] = repeats
    settings = {**results[0].settings, "protocol": "repeated gallery", "repeats": repeats, "seed": seed}
    return Evaluation(figures, {}, optimistic, counts, settings, spread)
