"""The derivatives of our losses by name, for the charges of a ranked list (`forerank.metrics.charges`)."""

from typing import Any

import numpy as np

from forerank.metrics.charges import DerivativeFunction, Floats


def derivative(name: str = "PNP-Dq", **arguments: Any) -> DerivativeFunction:
    """The derivative f'(R, P) of any loss of `forerank losses`, on arrays over the positives of one query.

    R counts the negatives and P the positives before a positive; the PNP losses do not look at P.

    >>> float(derivative("PNP-Dq", alpha=4)(np.array(1.0), np.array(0.0)))
    0.125
    """
    import torch

    from forerank.losses import create_loss

    loss = create_loss(name, **arguments)

    def slope(negatives: Floats, positives: Floats) -> Floats:
        before, same = (torch.as_tensor(np.asarray(x, dtype=np.float64)) for x in (negatives, positives))
        number = torch.tensor(float(before.numel()))
        return np.asarray(loss.penalty(before, same, number)[1].numpy(), dtype=np.float64)

    return slope
