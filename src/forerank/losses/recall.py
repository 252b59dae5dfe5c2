"""Recall at k, softened."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses.arguments import SoftenedWithTail, check_count, check_number
from forerank.losses.base import RankingLoss
from forerank.losses.named import NamedLoss


class RecallAtKLoss(RankingLoss):
    """One minus recall at k, averaged over several k, with both ranks and the cut at k softened.

    A positive with R items before it counts sigmoid((k - 1 - R) / rank_temperature); the sum over positives
    is divided by min(k, number of positives), the most that could stand among the first k.

    Args:
        ks: the ranks to cut at.
        rank_temperature: of the cut.
        shared: temperature, count_self, linear_tail, gather, chunk_size; see `RankingLoss`.

    Shape:
        embeddings (N, D), labels (N,) to a scalar.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
        >>> round(RecallAtKLoss(ks=[2])(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.6155

    References:
        Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022.
    """

    positives = "soft"

    def __init__(
        self,
        *,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        rank_temperature: float = 1.0,
        **shared: Unpack[SoftenedWithTail],
    ) -> None:
        super().__init__(**shared)
        if not isinstance(ks, Sequence) or not ks:
            raise InputError(f"ks must be a sequence of ranks to cut at, not {ks!r}.")
        self.ks = tuple(check_count("each of ks", k) for k in ks)
        self.rank_temperature = check_number("rank_temperature", rank_temperature, above=0)

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = negatives + positives
        cost, slope = torch.ones_like(before), torch.zeros_like(before)
        for k in self.ks:
            hit = torch.sigmoid((k - 1 - before) / self.rank_temperature)
            share = number / number.clamp_max(k) / len(self.ks)  # the core divides by the number of positives
            cost -= share * hit
            slope += share * hit * (1 - hit) / self.rank_temperature
        return cost, slope, slope

    def extra_repr(self) -> str:
        return f"ks={self.ks}, rank_temperature={self.rank_temperature}, {super().extra_repr()}"


LOSSES = (
    NamedLoss(
        "Recall@k",
        RecallAtKLoss,
        "1 - sigmoid((k - 1 - R_P - R_N) / t) |P| / min(k, |P|)",
        "that of the sigmoid",
    ),
)
