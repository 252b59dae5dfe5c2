"""Softened average precision: the losses that the PNP paper compares itself with."""

from typing import Unpack

from torch import Tensor

from forerank.losses.arguments import Softened
from forerank.losses.base import RankingLoss
from forerank.losses.named import NamedLoss
from forerank.ranking.soft import LinearTail


class SmoothAPLoss(RankingLoss):
    """One minus average precision, with every count softened (Smooth-AP).

    The cost of a positive is 1 - (1 + R_P) / (1 + R_P + R_N): R_P positives and R_N negatives stand before
    it.

    Args:
        temperature, count_self, linear_tail, gather, chunk_size: see `RankingLoss`.

    Shape:
        embeddings (N, D), labels (N,) to a scalar.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
        >>> round(SmoothAPLoss()(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.5833

    References:
        Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020.
    """

    positives = "soft"

    def penalty(
        self, negatives: Tensor, positives: Tensor, number: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        everyone = 1 + positives + negatives
        return negatives / everyone, (1 + positives) / everyone**2, -negatives / everyone**2


class SupAPLoss(SmoothAPLoss):
    """An upper bound of one minus average precision (the ranking part of ROADMAP).

    Positives before a positive are counted hard and pull nothing. Negatives before it are counted half too
    many, and beyond a gap of `start` along a line of the given slope, so that badly misplaced ones are still
    pulled.

    Args:
        start: gap in similarity from which the line is taken.
        slope: of the line, per unit of similarity.
        shared: temperature, count_self, gather, chunk_size; see `RankingLoss`.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
        >>> loss = SupAPLoss()(embeddings, torch.tensor([0, 0, 1, 1]))
        >>> bool(loss > SmoothAPLoss()(embeddings, torch.tensor([0, 0, 1, 1])))
        True

    References:
        Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021.
    """

    positives = "hard"

    def __init__(self, *, start: float = 0.05, slope: float = 100.0, **shared: Unpack[Softened]) -> None:
        super().__init__(linear_tail=LinearTail(start, slope, jump=0.5), **shared)

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        cost, slope, _ = super().penalty(negatives, positives, number)
        return cost, slope, None


LOSSES = (
    NamedLoss("Smooth-AP", SmoothAPLoss, "R_N / (1 + R_P + R_N)", "(1 + R_P) / (1 + R_P + R_N)^2"),
    NamedLoss(
        "Sup-AP", SupAPLoss, "R_N / (1 + R_P + R_N), R_P hard, R_N above", "(1 + R_P) / (1 + R_P + R_N)^2"
    ),
)
