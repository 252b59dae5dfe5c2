"""How a feature map becomes one vector, and how the vectors of several backbones become one."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POOLINGS = ("auto", "average", "gem", "max")


class GeM(nn.Module):
    """Generalised mean over the places of a feature map: (N, C, h, w) -> (N, C).

    Exponent 1 is the average, a large one the maximum; it is learned, from 3.

    References: Radenović et al., "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019.

    >>> GeM(exponent=1.0)(torch.tensor([[[[1.0, 3.0]]]])).item()
    2.0
    """

    def __init__(self, exponent: float = 3.0) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(float(exponent)))

    def forward(self, features: Tensor) -> Tensor:
        # In single precision and away from zero, where a fractional power has no gradient.
        powers = features.float().clamp_min(1e-6) ** self.exponent
        pooled: Tensor = powers.mean((2, 3)) ** (1 / self.exponent)
        return pooled


class MaxPooling(nn.Module):
    """The largest value over the places of a feature map: (N, C, h, w) -> (N, C).

    >>> MaxPooling()(torch.tensor([[[[1.0, 3.0]]]])).item()
    3.0
    """

    def forward(self, features: Tensor) -> Tensor:
        return features.amax((2, 3))


# Pooling -> what follows the network's feature map; "average" needs nothing.
MAP_POOLINGS: dict[str, type[nn.Module]] = {"gem": GeM, "max": MaxPooling}


def pool_features(features: Tensor, pool: nn.Module | None) -> Tensor:
    """One vector (N, C) for each image, from a map (N, C, h, w) or from what the network pooled itself."""
    if pool is not None:
        pooled: Tensor = pool(features)
        return pooled
    return features if features.dim() == 2 else features.mean((2, 3))


class SideBySide(nn.Module):
    """Several networks as one: the pooled features of each, at unit length, one behind the other.

    Takes one batch of images for each network and gives (N, C), C = the sum of their widths.
    """

    def __init__(
        self, networks: Sequence[nn.Module], pools: Sequence[nn.Module | None], channels: Sequence[int]
    ) -> None:
        super().__init__()
        self.channels = tuple(channels)  # the width of each
        self.networks = nn.ModuleList(networks)
        self.pools = nn.ModuleList([nn.Identity() if pool is None else pool for pool in pools])

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        return join_features(
            [
                pool_features(network(view), None if isinstance(pool, nn.Identity) else pool)
                for network, pool, view in zip(self.networks, self.pools, views, strict=True)
            ]
        )


def join_features(features: Sequence[Tensor]) -> Tensor:
    """Pooled features (N, C) of several networks as one (N, sum of C): each at unit length.

    >>> join_features([torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0]])]).tolist()
    [[0.6000000238418579, 0.800000011920929, 1.0]]
    """
    return torch.cat([F.normalize(part.float(), dim=1) for part in features], dim=1)
