"""Losses: from the number of items before each positive to one number to minimise.

>>> create_loss("PNP-Dq", alpha=6).alpha
6.0
"""

from forerank.losses.average_precision import SmoothAPLoss, SupAPLoss
from forerank.losses.base import RankingLoss
from forerank.losses.blackbox import BlackboxLoss
from forerank.losses.memory import CrossBatchMemory
from forerank.losses.named import NamedLoss
from forerank.losses.pnp import PNPLoss
from forerank.losses.recall import RecallAtKLoss
from forerank.losses.registry import LOSSES, create_loss, find_loss, known_losses, loss_names
from forerank.losses.roadmap import RoadmapLoss
from forerank.ranking.soft import LinearTail

__all__ = [
    "LOSSES",
    "BlackboxLoss",
    "CrossBatchMemory",
    "LinearTail",
    "NamedLoss",
    "PNPLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "RoadmapLoss",
    "SmoothAPLoss",
    "SupAPLoss",
    "create_loss",
    "find_loss",
    "known_losses",
    "loss_names",
]
