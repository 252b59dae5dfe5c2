"""The derivatives of our losses by name, for the charges of a ranked list (`forerank.metrics.charges`)."""

import numpy as np

from forerank.errors import unknown
from forerank.metrics.charges import Derivative, Floats

VARIANTS = ("O", "Iu", "Iu_exact", "Ib", "Ds", "Dq", "AP")


def derivative(variant: str = "Dq", *, alpha: float = 4.0, b: float = 2.0) -> Derivative:
    """The derivative f'(R, P) of one of our losses by its name ("AP" is Smooth-AP), on arrays.

    R counts the negatives and P the positives before a positive; only "AP" looks at P.

    >>> float(derivative("Dq", alpha=4)(np.array(1.0), np.array(0.0)))
    0.125
    """
    if variant not in VARIANTS:
        raise unknown("loss variant", variant, VARIANTS)
    import torch

    from forerank.losses import PNPLoss, SmoothAPLoss

    loss = SmoothAPLoss() if variant == "AP" else PNPLoss(variant, alpha=alpha, b=b)

    def slope(negatives: Floats, positives: Floats) -> Floats:
        before, same = (torch.as_tensor(np.asarray(x, dtype=np.float64)) for x in (negatives, positives))
        return np.asarray(loss.penalty(before, same, torch.ones(()))[1].numpy(), dtype=np.float64)

    return slope
