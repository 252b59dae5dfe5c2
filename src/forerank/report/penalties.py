"""What each negative of a ranked list is charged: the arrows of the paper's second figure, as numbers.

A positive i with R_i negatives before it charges each of them f'(R_i), where f' is the loss's derivative. A
negative therefore pays the sum over the positives after it: the more positives it holds back, the more.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError

Floats = NDArray[np.float64]
Derivative = Callable[[Floats, Floats], Floats]


def derivative(name: str = "PNP-Dq", **arguments: Any) -> Derivative:
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


def positive_charges(
    similarities: ArrayLike,
    is_positive: ArrayLike,
    derivative: Derivative,
    *,
    temperature: float | None = None,
) -> Floats:
    """(n,) what each positive charges one negative before it, f'(R_i); 0 for negatives.

    With a `temperature` the counts are the soft ones that training sees.
    """
    s, positive = _checked(similarities, is_positive)
    before = _before(s[:, None], s[positive][None, :], temperature)  # (n, P): item j before positive i
    itself = np.flatnonzero(positive)
    before[itself, np.arange(len(itself))] = 0.0
    charges = np.zeros(len(s))
    charges[positive] = derivative(before[~positive].sum(axis=0), before[positive].sum(axis=0))
    return charges


def ranking_penalties(
    similarities: ArrayLike,
    is_positive: ArrayLike,
    derivative: Derivative,
    *,
    temperature: float | None = None,
) -> Floats:
    """(n,) the penalty of each negative: the sum of f'(R_i) over the positives i after it; 0 for positives.

    Args:
        similarities: (n,) similarity of each item to the query, in any order.
        is_positive: (n,) whether the item carries the query's label.
        derivative: f'(R, P), from `derivative` or your own.
        temperature: None for hard counts, sum of [s_j > s_i]; a number for soft ones, sum of
            sigmoid((s_j - s_i) / temperature), where "after" is soft as well.

    Example:
        A negative before both positives, another before only the last:

        >>> ranking_penalties([0.9, 0.8, 0.7, 0.6], [False, True, False, True], derivative("PNP-O")).tolist()
        [2.0, 0.0, 1.0, 0.0]
    """
    s, positive = _checked(similarities, is_positive)
    charges = positive_charges(s, positive, derivative, temperature=temperature)[positive]  # (P,)
    penalties = _before(s[:, None], s[positive][None, :], temperature) @ charges
    penalties[positive] = 0.0
    return np.asarray(penalties, dtype=np.float64)


def ranking_gradients(
    similarities: ArrayLike, is_positive: ArrayLike, derivative: Derivative, *, temperature: float = 0.01
) -> Floats:
    """(n,) the gradient of a PNP loss in each negative's similarity: how hard training really pushes it.

    That is the mean over positives of f'(R_i) times the slope of the sigmoid. At a temperature of 0.01 the
    slope is nearly nothing for a negative far above the positive, so a heavy penalty can go with a weak push.
    Only for losses that count negatives alone (the PNP losses).

    >>> g = ranking_gradients([0.9, 0.51, 0.5], [False, False, True], derivative("PNP-O"), temperature=0.01)
    >>> [round(float(x), 2) for x in g]
    [0.0, 19.66, 0.0]
    """
    s, positive = _checked(similarities, is_positive)
    if not positive.any():
        return np.zeros(len(s))
    charges = positive_charges(s, positive, derivative, temperature=temperature)[positive]
    soft = _before(s[:, None], s[positive][None, :], temperature)
    gradients = (soft * (1 - soft) / temperature) @ charges / positive.sum()
    gradients[positive] = 0.0
    return np.asarray(gradients, dtype=np.float64)


def _before(s: Floats, of: Floats, temperature: float | None) -> Floats:
    gap = s - of
    if temperature is None:
        return (gap > 0).astype(np.float64)
    if not temperature > 0:
        raise InputError(f"temperature must be above zero, not {temperature}.")
    return 0.5 * (1 + np.tanh(gap / (2 * temperature)))  # sigmoid that cannot overflow


def _checked(similarities: ArrayLike, is_positive: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    s = np.asarray(similarities, dtype=np.float64)
    positive = np.asarray(is_positive, dtype=bool)
    if s.ndim != 1 or s.shape != positive.shape:
        raise InputError(
            f"similarities {s.shape} and is_positive {positive.shape} must be lists of the same length."
        )
    return s, positive
