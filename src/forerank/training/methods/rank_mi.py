"""RankMI: a small network estimates how far the distances of matching and other pairs lie apart."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.training.methods.margin import distances, draw_negatives, positive_pairs
from forerank.training.methods.method import Ingredients, Method, Objective


def divergence(statistics: nn.Module, matching: Tensor, other: Tensor) -> Tensor:
    """A lower bound, up to constants, of the Jensen-Shannon divergence of two sets of distances.

    E₊[−softplus(−T(d))] − E₋[softplus(T(d))]; the better the network T, the closer the bound.

    Args:
        statistics: T, (n, 1) distances to (n, 1) numbers.
        matching, other: (n,) distances of pairs of one class, and of two classes.
    """
    of_matching: Tensor = F.softplus(-statistics(matching[:, None])).mean()
    of_other: Tensor = F.softplus(statistics(other[:, None])).mean()
    return -of_matching - of_other


def statistics_network(width: int = 64) -> nn.Sequential:
    """T: a distance to a number."""
    return nn.Sequential(
        nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


class RankMI(Objective):
    """The estimate is first improved by T, then enlarged by the embedding."""

    def __init__(self, inner_steps: int, inner_lr: float) -> None:
        super().__init__()
        self.inner_steps = inner_steps
        self.statistics = statistics_network()
        self.inner_optimiser = torch.optim.Adam(self.statistics.parameters(), lr=inner_lr)

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        distance = distances(vectors)
        anchor, positive = positive_pairs(labels)
        negative = draw_negatives(distance, labels, anchor, vectors.shape[1])
        matching, other = distance[anchor, positive], distance[anchor, negative]
        assert self.inner_optimiser is not None
        for _ in range(self.inner_steps):
            self.inner_optimiser.zero_grad()
            (-divergence(self.statistics, matching.detach(), other.detach())).backward()  # type: ignore[no-untyped-call]
            self.inner_optimiser.step()
        self.statistics.requires_grad_(False)  # the embedding moves, T stands still
        value = -divergence(self.statistics, matching, other)
        self.statistics.requires_grad_(True)
        return value


def build(ingredients: Ingredients) -> Objective:
    return RankMI(ingredients.options["inner_steps"], ingredients.options["inner_lr"])


RANK_MI = Method(
    title="RankMI",
    about="a network estimates the divergence of matching and other distances; the embedding enlarges it",
    paper="Kemertas et al., RankMI: A Mutual Information Maximizing Ranking Loss, CVPR 2020",
    options={"inner_steps": 5, "inner_lr": 1e-3},
    above_zero=("inner_steps", "inner_lr"),
    deviations=(
        "a reconstruction: the published formulae were not available; the objective is the Jensen-Shannon "
        "form on distances, and the statistics network (two hidden layers of 64) is updated five times "
        "per step",
        "negatives are drawn by their distance, as for Margin",
    ),
    build=build,
)
