"""From what stands before each positive to a number to minimise."""

from forerank.losses.average_precision import SmoothAPLoss, SupAPLoss
from forerank.losses.pnp import PNPLoss

__all__ = ["PNPLoss", "SmoothAPLoss", "SupAPLoss"]
