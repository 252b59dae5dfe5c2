"""Recall at k, softened."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses.arguments import SoftenedWithTail, check_count, check_number
from forerank.losses.base import RankingLoss, normalise_rows
from forerank.losses.named import NamedLoss
from forerank.ranking.blocks import CountSettings


class RecallAtKLoss(RankingLoss):
    """One minus recall at k, averaged over several k, with both ranks and the cut at k softened.

    A positive with R items before it counts sigmoid((k - 1 - R) / rank_temperature); the sum over positives
    is divided by min(k, number of positives), the most that could stand among the first k.

    Args:
        ks: the ranks to cut at.
        rank_temperature: of the cut; one number, or one for each of `ks`. The published code takes 1, 2, 4,
            8, 16 for its ks 1, 2, 4, 8, 16.
        mixup: add virtual examples (SiMix): for every two images of a class in the batch one on the line
            between their unit vectors, at a random place. Its similarity to anything is the same mixture of
            the two similarities. Virtual examples are queries and are ranked as the others are. The random
            numbers are torch's own (`torch.manual_seed`); training seeds them by step.
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
        rank_temperature: float | Sequence[float] = 1.0,
        mixup: bool = False,
        **shared: Unpack[SoftenedWithTail],
    ) -> None:
        super().__init__(**shared)
        if not isinstance(ks, Sequence) or not ks:
            raise InputError(f"ks must be a sequence of ranks to cut at, not {ks!r}.")
        self.ks = tuple(check_count("each of ks", k) for k in ks)
        each = rank_temperature if isinstance(rank_temperature, Sequence) else [rank_temperature] * len(ks)
        if len(each) != len(ks):
            raise InputError(f"rank_temperature must be one number, or {len(ks)}: one for each of ks.")
        self.rank_temperature = tuple(check_number("rank_temperature", t, above=0) for t in each)
        self.mixup = bool(mixup)

    @property
    def settings(self) -> CountSettings:
        return replace(super().settings, normalise=not self.mixup)

    def augment(
        self, embeddings: Tensor, references: Tensor | None, codes: Tensor, keep: slice | Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor, slice | Tensor]:
        if not self.mixup:
            return embeddings, references, codes, keep
        units = normalise_rows(embeddings)
        first, second = pairs_of_a_class(codes)
        place = torch.rand(len(first), 1, dtype=units.dtype)
        place, *ends = (part.to(units.device, non_blocking=True) for part in (place, first, second))
        virtual = place * units[ends[0]] + (1 - place) * units[ends[1]]
        # A virtual example belongs to the process that holds the first of its two images.
        kept = torch.arange(len(codes), device=codes.device)[keep]
        own = torch.isin(first, kept).nonzero()[:, 0] + len(codes)
        references = None if references is None else normalise_rows(references)
        codes = torch.cat([codes, codes[first]])
        return torch.cat([units, virtual]), references, codes, torch.cat([kept, own])

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = negatives + positives
        cost, slope = torch.ones_like(before), torch.zeros_like(before)
        for k, temperature in zip(self.ks, self.rank_temperature, strict=True):
            hit = torch.sigmoid((k - 1 - before) / temperature)
            share = number / number.clamp_max(k) / len(self.ks)  # the core divides by the number of positives
            cost -= share * hit
            slope += share * hit * (1 - hit) / temperature
        return cost, slope, slope

    def extra_repr(self) -> str:
        own = f"ks={self.ks}, rank_temperature={self.rank_temperature}, mixup={self.mixup}"
        return f"{own}, {super().extra_repr()}"


def pairs_of_a_class(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of every two items that share a class code, each pair once.

    >>> [part.tolist() for part in pairs_of_a_class(torch.tensor([0, 1, 0, 0]))]
    [[0, 2, 0], [2, 3, 3]]
    """
    order = torch.argsort(codes, stable=True)
    ordered = codes[order]
    firsts, seconds = [order[:0]], [order[:0]]
    for apart in range(1, len(codes)):  # places apart in the sorted order, up to the size of a class
        same = ordered[apart:] == ordered[:-apart]
        if not bool(same.any()):
            break
        firsts.append(order[:-apart][same])
        seconds.append(order[apart:][same])
    return torch.cat(firsts), torch.cat(seconds)


LOSSES = (
    NamedLoss(
        "Recall@k",
        RecallAtKLoss,
        "1 - sigmoid((k - 1 - R_P - R_N) / t) |P| / min(k, |P|)",
        "that of the sigmoid",
    ),
)
