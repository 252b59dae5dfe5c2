"""What each negative of a ranked list is charged: the arrows of the paper's second figure, as numbers.

A positive i with R_i negatives before it charges each of them f'(R_i), where f' is the loss's derivative. A
negative pays the sum over the positives after it: the more positives it stands before, the more it pays.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError
from forerank.ranking.hard_same import compared

Floats = NDArray[np.float64]
DerivativeFunction = Callable[[Floats, Floats], Floats]  # f'(R, P): negatives and positives before a positive


def positive_charges(
    similarities: ArrayLike,
    is_positive: ArrayLike,
    slope: DerivativeFunction,
    *,
    temperature: float | None = None,
) -> Floats:
    """(n,) what each positive charges one negative before it, f'(R_i); 0 for negatives.

    With a `temperature` the counts are the soft ones that training sees.
    """
    s, positive = _checked(similarities, is_positive)
    before = _before(s, positive, temperature)  # (n, P)
    charges = np.zeros(len(s))
    charges[positive] = slope(before[~positive].sum(axis=0), before[positive].sum(axis=0))
    return charges


def ranking_penalties(
    similarities: ArrayLike,
    is_positive: ArrayLike,
    slope: DerivativeFunction,
    *,
    temperature: float | None = None,
) -> Floats:
    """(n,) the penalty of each negative: the sum of f'(R_i) over the positives i after it; 0 for positives.

    Args:
        similarities: (n,) similarity of each item to the query, in any order.
        is_positive: (n,) whether the item carries the query's label.
        slope: f'(R, P), from `forerank.report.derivative` or your own.
        temperature: None for the hard counts of `evaluate`: a negative tied with a positive stands before it.
            A number for soft counts, sum of sigmoid((s_j - s_i) / temperature); "after" is soft as well.

    Example:
        A negative before both positives, another before only the last, every positive charging 1:

        >>> constant = lambda negatives, positives: np.ones_like(negatives)
        >>> ranking_penalties([0.9, 0.8, 0.7, 0.6], [False, True, False, True], constant).tolist()
        [2.0, 0.0, 1.0, 0.0]
    """
    s, positive = _checked(similarities, is_positive)
    charges = positive_charges(s, positive, slope, temperature=temperature)[positive]  # (P,)
    penalties = _before(s, positive, temperature) @ charges
    penalties[positive] = 0.0
    return np.asarray(penalties, dtype=np.float64)


def ranking_gradients(
    similarities: ArrayLike, is_positive: ArrayLike, slope: DerivativeFunction, *, temperature: float = 0.01
) -> Floats:
    """(n,) the gradient of a PNP loss in each negative's similarity: how hard training really pushes it.

    That is the mean over positives of f'(R_i) times the slope of the sigmoid. At a temperature of 0.01 the
    slope is nearly nothing for a negative far above the positive, so a heavy penalty can go with a weak push.
    Only for losses that count negatives alone (all but "AP").

    >>> constant = lambda negatives, positives: np.ones_like(negatives)
    >>> g = ranking_gradients([0.9, 0.51, 0.5], [False, False, True], constant, temperature=0.01)
    >>> [round(float(x), 2) for x in g]
    [0.0, 19.66, 0.0]
    """
    s, positive = _checked(similarities, is_positive)
    if not positive.any():
        return np.zeros(len(s))
    charges = positive_charges(s, positive, slope, temperature=temperature)[positive]
    soft = _before(s, positive, temperature)
    gradients = (soft * (1 - soft) / temperature) @ charges / positive.sum()
    gradients[positive] = 0.0
    return np.asarray(gradients, dtype=np.float64)


def _before(s: Floats, positive: NDArray[np.bool_], temperature: float | None) -> Floats:
    """(n, P) whether, or how much, item j stands before positive i; an item never stands before itself."""
    own = np.flatnonzero(positive)
    gap = s[:, None] - s[own]
    if temperature is None:
        above, tied = compared(s[:, None], s[own])
        # The one rule for ties: negatives before positives, positives among themselves as they are given.
        return np.asarray(above | (tied & (~positive[:, None] | (np.arange(len(s))[:, None] < own))), float)
    if not temperature > 0:
        raise InputError(f"temperature must be above zero, not {temperature}.")
    soft = 0.5 * (1 + np.tanh(gap / (2 * temperature)))  # sigmoid that cannot overflow
    soft[own, np.arange(len(own))] = 0.0
    return soft


def _checked(similarities: ArrayLike, is_positive: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    s = np.asarray(similarities, dtype=np.float64)
    positive = np.asarray(is_positive, dtype=bool)
    if s.ndim != 1 or s.shape != positive.shape:
        raise InputError(
            f"similarities {s.shape} and is_positive {positive.shape} must be lists of the same length."
        )
    return s, positive
