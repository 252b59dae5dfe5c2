"""Claims that follow from a formula or a printed table, and need no run and no test."""

import math

import numpy as np
from numpy.typing import NDArray

from forerank.paper.claims import Comparison, Evidence
from forerank.paper.published import published_table
from forerank.paper.study import Study

Floats = NDArray[np.float64]


def steeper_than_ap(study: Study) -> Evidence:
    """Dq with alpha = 2 falls faster than AP, relative to its value at R = 0, for 0 to 3 positives before."""
    counts = np.linspace(0.1, 10, 100)
    dq = _relative("Dq", counts, 0, alpha=2.0)
    ap = [_relative("Smooth-AP", counts, positives) for positives in range(4)]
    steeper = all(bool((dq < one).all()) for one in ap)
    one = np.ones(1)
    left = [f"{_relative('Smooth-AP', one, positives)[0]:.4f}" for positives in range(4)]
    text = (
        f"what is left at R = 1 of the derivative at R = 0: Dq {_relative('Dq', one, 0, alpha=2.0)[0]:.4f}; "
        f"AP with 0 to 3 positives before {', '.join(left)}"
    )
    return Evidence([_exact(text, steeper)])


def almost_equal(study: Study) -> Evidence:
    """AP's derivative with three positives before: almost equal means that it changes by less than a half."""
    counts = np.array([1.0, 3.0, 10.0])
    left = _relative("Smooth-AP", counts, 3)
    equal = bool((left > 0.5).all())

    def listed(values: Floats) -> str:
        return ", ".join(f"{value:.4f} at R = {count:g}" for count, value in zip(counts, values, strict=True))

    text = (
        f"AP with three positives before, what is left of the derivative at R = 0: {listed(left)}; beside it "
        f"Dq (alpha = 2): {listed(_relative('Dq', counts, 0, alpha=2.0))}"
    )
    remark = (
        "Almost equal is taken to mean that more than half is left up to R = 10, relative to R = 0. In "
        f"absolute terms AP's derivative falls by {_fall('Smooth-AP', 3):.2f} and Dq's by "
        f"{_fall('Dq', 0, alpha=2.0):.2f}: AP's curve is far flatter, and it is not equal."
    )
    return Evidence([_exact(text, equal)], remarks=(remark,))


def _fall(variant: str, positives: float, **options: float) -> float:
    """By how much the derivative falls from R = 0 to R = 10."""
    from forerank.report.penalties import derivative

    values = derivative(variant, **options)(np.array([0.0, 10.0]), np.full(2, float(positives)))
    return float(values[0] - values[1])


def _relative(variant: str, counts: Floats, positives: float, **options: float) -> Floats:
    """The derivative at these counts as a share of its value at no negative before."""
    from forerank.report.penalties import derivative

    values = derivative(variant, **options)(
        np.append(0.0, counts), np.full(len(counts) + 1, float(positives))
    )
    return np.asarray(values[1:] / values[0])


def inaturalist_ranks(study: Study) -> Evidence:
    """The printed table itself: Dq against Smooth-AP at every k."""
    cells = published_table("comparison-inaturalist").rows
    dq, ap = cells["Dq, batch 224"], cells["Smooth-AP"]
    comparisons = []
    for column, value in dq.items():
        difference = round((value or math.nan) - (ap[column] or math.nan), 2)
        above = difference > 0
        text = f"{column} as printed, Dq {value:g} minus Smooth-AP {ap[column]:g}: {difference:+g}"
        comparisons.append(_exact(text, above))
    return Evidence(comparisons, remarks=("Judged on the paper's own table, one seed, no interval.",))


def _exact(text: str, as_claimed: bool) -> Comparison:
    """A comparison without error: no seeds, so nothing is corrected."""
    return Comparison(text, 0.0 if as_claimed else 1.0, 1.0 if as_claimed else 0.0)
