"""ROADMAP: an upper bound of average precision, and a calibration of similarities across queries."""

from typing import Unpack

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from forerank.losses.arguments import Softened, check_number
from forerank.losses.average_precision import SupAPLoss
from forerank.losses.base import normalise_rows
from forerank.losses.gather import sum_over_processes, world_size
from forerank.losses.named import NamedLoss
from forerank.ranking.classes import ClassColumns
from forerank.ranking.precision import whole_products
from forerank.ranking.soft import CHUNK_BYTES


class RoadmapLoss(SupAPLoss):
    """Sup-AP plus a contrastive calibration: (1 - w) Sup-AP + w calibration (ROADMAP).

    Average precision of a batch is not that of the whole data set, because similarities of different queries
    are not on one scale. The calibration asks the same of all queries: positives at or above one similarity,
    negatives at or below another. It is, for each query, the mean over positives of
    max(0, positive_margin - s) plus the mean over negatives of max(0, s - negative_margin).

    Published settings, for SOP and CUB: margins 0.9 and 0.6, start 0.05, slope 100, temperature 0.01, both
    parts with the same weight. The published configuration gives each part the weight 1, twice the weights
    here. For iNaturalist it also does not count negatives half too many, which is not offered here.

    Args:
        positive_margin: the similarity that positives should reach.
        negative_margin: the similarity that negatives should stay below.
        calibration: the weight w, from 0 to 1. 0.5 is the paper's as far as we know; the published
            configuration agrees with it.
        active_only: take the two means over all pairs of the batch that miss their margin, as the published
            code does, and not over all pairs of each query, as the paper writes it.
        start, slope: see `SupAPLoss`.
        shared: temperature, count_self, gather, chunk_size; see `RankingLoss`.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
        >>> round(RoadmapLoss(calibration=1)(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.49

    References:
        Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021.
    """

    def __init__(
        self,
        *,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        calibration: float = 0.5,
        active_only: bool = False,
        start: float = 0.05,
        slope: float = 100.0,
        **shared: Unpack[Softened],
    ) -> None:
        super().__init__(start=start, slope=slope, **shared)
        self.positive_margin = check_number("positive_margin", positive_margin, least=-1)
        self.negative_margin = check_number("negative_margin", negative_margin, least=-1)
        self.calibration = check_number("calibration", calibration, least=0, most=1)
        self.active_only = bool(active_only)

    def loss_of(
        self, embeddings: Tensor, classes: ClassColumns, references: Tensor | None, *, rank_batch: bool
    ) -> Tensor:
        ranking = super().loss_of(embeddings, classes, references, rank_batch=rank_batch)
        calibration = self.calibrate(embeddings, classes, references, rank_batch=rank_batch)
        return ranking + self.calibration * calibration

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        cost, slope, _ = super().penalty(negatives, positives, number)
        return (1 - self.calibration) * cost, (1 - self.calibration) * slope, None

    def calibrate(
        self, embeddings: Tensor, classes: ClassColumns, references: Tensor | None, *, rank_batch: bool
    ) -> Tensor:
        """The calibration of the queries that have a positive, a scalar."""
        queries = normalise_rows(embeddings)
        ranked = queries
        if references is not None:
            others = normalise_rows(references)
            queries = queries.to(torch.promote_types(queries.dtype, others.dtype))
            ranked = torch.cat([queries, others.to(queries)]) if rank_batch else others.to(queries)
        total = len(classes.numbers)
        chunk = self.chunk_size or max(1, CHUNK_BYTES // max(1, len(ranked) * queries.element_size()))
        sums: Tensor = queries.new_zeros(4)
        for first in range(0, total, chunk):
            # Recomputed in the backward pass, so that only one chunk of similarities is held at a time.
            sums = sums + checkpoint(
                self._chunk, queries, ranked, classes, first, min(first + chunk, total), use_reentrant=False
            )
        too_low, too_high, low_pairs, high_pairs = sums
        loss: Tensor = (too_low + too_high) / max(1, classes.total)
        if not self.active_only:
            return loss
        if self.gather and world_size() > 1:
            low_pairs, high_pairs = (sum_over_processes(count.detach()) for count in (low_pairs, high_pairs))
        loss = too_low / low_pairs.clamp_min(1) + too_high / high_pairs.clamp_min(1)
        return loss

    def _chunk(self, queries: Tensor, ranked: Tensor, classes: ClassColumns, first: int, last: int) -> Tensor:
        """What positives and negatives miss their margins by, and how many do, for some queries: (4,)."""
        columns = classes.of_queries(first, last)
        with torch.autocast(queries.device.type, enabled=False), whole_products(queries.device.type):
            scores = queries[columns.rows] @ ranked.t()  # (C, M)
        low = (self.positive_margin - scores.gather(1, columns.positives)).relu() * columns.valid  # (C, P)
        others = scores.scatter(1, columns.own_class, -torch.inf)
        high = (others - self.negative_margin).relu()  # (C, M)
        pairs = ((low > 0).sum().to(low), (high > 0).sum().to(high))
        if not self.active_only:
            low = low / columns.numbers
            high = high / others.isneginf().logical_not().sum(1, keepdim=True).clamp_min(1)
        return torch.stack([low.sum(), high.sum(), *pairs])

    def extra_repr(self) -> str:
        margins = f"positive_margin={self.positive_margin}, negative_margin={self.negative_margin}"
        return f"{margins}, calibration={self.calibration}, {super().extra_repr()}"


LOSSES = (
    NamedLoss(
        "ROADMAP",
        RoadmapLoss,
        "(1 - w) Sup-AP + w (mean [m_P - s]+ of P + mean [s - m_N]+ of N)",
        "that of Sup-AP, times 1 - w",
    ),
)
