"""The losses as functions of R, for drawing."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def loss_term(variant: str, counts: Floats, *, alpha: float = 4.0, b: float = 2.0) -> Floats:
    """What a positive with R negatives before it costs."""
    formulas = {
        "O": lambda R: R,
        "Iu": lambda R: (1 + R) * np.log1p(R),
        "Ib": lambda R: (b * R - np.log1p(b * R)) / b**2,
        "Ds": lambda R: np.log1p(R),
        "Dq": lambda R: -np.expm1(-alpha * np.log1p(R)),
    }
    return np.asarray(formulas[variant](counts), dtype=np.float64)
