"""The figures draw what the losses compute."""

from pathlib import Path

import numpy as np
import pytest
import torch

from forerank.losses.pnp import VARIANTS
from forerank.paper import ap_surface, centres, loss_curves, penalties, style
from forerank.paper.sweeps import largest_count
from forerank.report.penalties import derivative


@pytest.mark.parametrize("variant", loss_curves.FORMULAS)
def test_drawn_derivative_is_that_of_the_loss(variant: str) -> None:
    counts = torch.linspace(0, 20, 50, dtype=torch.float64, requires_grad=True)
    VARIANTS[variant](4.0, 2.0).value(counts).sum().backward()
    drawn = derivative(variant, alpha=4.0, b=2.0)(counts.detach().numpy(), np.zeros(50))
    np.testing.assert_allclose(drawn, counts.grad.numpy(), rtol=1e-10)


def test_descent_of_the_ap_loss_runs_on_circles() -> None:
    step = 1e-6
    p, n = np.array(2.0), np.array(5.0)
    down_p = -(ap_surface.ap_term(p + step, n) - ap_surface.ap_term(p - step, n)) / (2 * step)
    down_n = -(ap_surface.ap_term(p, n + step) - ap_surface.ap_term(p, n - step)) / (2 * step)
    # Perpendicular to the radius from (-1, 0), towards fewer negatives.
    assert float(down_p * (p + 1) + down_n * n) == pytest.approx(0, abs=1e-6)
    assert down_n < 0 < down_p


def test_the_power_overflows_and_ours_does_not() -> None:
    for alpha, dtype, known in ((18, torch.float32, 190), (4, torch.float16, 100)):  # SPEC's two examples
        assert largest_count(alpha, dtype, stable=False) < known
        assert largest_count(alpha, dtype, stable=True) > 30_000


def test_increasing_losses_join_the_centres_and_dq_keeps_them() -> None:
    start = centres.apart(centres.clusters()[0])
    assert centres.apart(centres.descend("Ib", 150)[-1]) < 0.75 * start
    assert centres.apart(centres.descend("Dq", 150)[-1]) > start


def test_figures_are_written_the_same_twice(tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        with style.figure(6, 6) as drawing:
            penalties.draw(drawing)
            written.append(
                [path.read_bytes() for path in style.save(drawing, tmp_path / folder, "penalties")]
            )
    assert written[0] == written[1]
    assert written[0][0][:4] == b"\x89PNG"
    assert b"<svg" in written[0][1]
