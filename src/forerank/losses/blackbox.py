"""Blackbox differentiation of ranking metrics: exact hard ranks, with an interpolated gradient."""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from forerank.errors import check_name
from forerank.losses.arguments import Shared, check_number
from forerank.losses.base import RankingLoss
from forerank.losses.named import NamedLoss
from forerank.ranking.blocks import CountSettings, Interpolation

# Cost and slope of a positive from the negatives and the positives before it.
RankCost = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _average_precision(negatives: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    rank = 1 + positives + negatives
    return negatives / rank, (1 + positives) / rank**2


def _log(negatives: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    return torch.log1p(negatives), 1 / (1 + negatives)


def _loglog(negatives: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    log = torch.log1p(negatives)
    return torch.log1p(log), 1 / ((1 + negatives) * (1 + log))


OBJECTIVES: dict[str, RankCost] = {"AP": _average_precision, "log": _log, "loglog": _loglog}


class BlackboxLoss(RankingLoss):
    """A ranking metric of exact hard ranks, differentiated through an interpolation of the ranks (Blackbox).

    Similarities are first moved against the truth by a margin: half of it is taken from positives and added
    to negatives. With the ranks r(s) of the moved similarities and g = dL/dr, the gradient in s is
    (r(s + lambda g) - r(s)) / lambda. Ranks are divided by the number of ranked items, as in the published
    code, and g includes the mean over the queries: lambda = 4 belongs to that scale. The gradient is that of
    the loss itself, however the loss is scaled afterwards. The random margins of the published AP version
    are not here.

    Args:
        objective: what a positive costs, given its rank among all and, as a constant, among the positives:
            "AP" one minus precision at its rank; "log" log(1+R) and "loglog" log(1+log(1+R)) of the
            negatives R before it, the paper's two recall losses.
        interpolation: the paper's lambda; larger is smoother.
        margin: the paper's alpha.
        shared: count_self, gather, chunk_size; see `RankingLoss`.

    Shape:
        embeddings (N, D), labels (N,) to a scalar.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]], requires_grad=True)
        >>> loss = BlackboxLoss()(embeddings, torch.tensor([0, 0, 1, 1]))
        >>> loss.backward()
        >>> round(loss.item(), 4), bool(embeddings.grad.abs().max() > 0)
        (0.5833, True)

    References:
        Rolínek et al., Optimizing Rank-based Metrics with Blackbox Differentiation, CVPR 2020. The defaults
        are those of the published configuration of Ramzi et al. (ROADMAP), NeurIPS 2021.
    """

    positives = "hard"

    def __init__(
        self,
        objective: str = "AP",
        *,
        interpolation: float = 4.0,
        margin: float = 0.02,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(temperature=1.0, **shared)
        check_name("objective of Blackbox", objective, OBJECTIVES)
        self.objective = objective
        self.interpolation = check_number("interpolation", interpolation, above=0)
        self.margin = check_number("margin", margin, least=0)

    @property
    def settings(self) -> CountSettings:
        interpolation = Interpolation(self.interpolation, self.margin)
        return CountSettings(1.0, None, self.positives, self.chunk_size, interpolation)

    def penalty(self, negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        return *OBJECTIVES[self.objective](negatives, positives), None

    def extra_repr(self) -> str:
        own = f"objective={self.objective}, interpolation={self.interpolation}, margin={self.margin}"
        return f"{own}, count_self={self.count_self}, gather={self.gather}"


LOSSES = (
    NamedLoss(
        "Blackbox-AP",
        partial(BlackboxLoss, "AP"),
        "R_N / (1 + R_P + R_N), hard ranks",
        "(1 + R_P) / (1 + R_P + R_N)^2, interpolated",
    ),
    NamedLoss(
        "Blackbox-log", partial(BlackboxLoss, "log"), "log(1 + R), hard ranks", "1 / (1 + R), interpolated"
    ),
    NamedLoss(
        "Blackbox-loglog",
        partial(BlackboxLoss, "loglog"),
        "log(1 + log(1 + R)), hard ranks",
        "1 / ((1 + R) (1 + log(1 + R))), interpolated",
    ),
)
