"""Losses by name: adding one makes it known everywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from forerank.cli import run
from forerank.errors import InputError
from forerank.losses import (
    LOSSES,
    NamedLoss,
    PNPLoss,
    RankingLoss,
    SmoothAPLoss,
    create_loss,
    loss_names,
)
from forerank.losses.named import REQUIRED


def test_every_name_builds() -> None:
    for name, named in LOSSES.items():
        arguments = {"derivative": "1"} if name == "PNP" else {}
        assert create_loss(name.upper(), count_self=True, **arguments).count_self
        assert (name in loss_names()) == (name != "PNP")
        defaults = {k: v for k, v in named.arguments.items() if v is not REQUIRED}
        assert isinstance(named.create(**defaults, **arguments), RankingLoss)
    loss = create_loss("pnp-dq", alpha=6)
    assert isinstance(loss, PNPLoss)
    assert (loss.variant, loss.alpha) == ("Dq", 6.0)
    assert isinstance(create_loss("Smooth-AP"), SmoothAPLoss)


def test_unknown_names_and_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'PNP-Dq'"):
        create_loss("PNP-Dqq")
    with pytest.raises(InputError, match="did you mean 'temperature'"):
        create_loss("PNP-Dq", tempreature=1)
    with pytest.raises(InputError, match="variant"):
        create_loss("PNP-Dq", variant="O")
    with pytest.raises(InputError, match="needs the argument 'derivative'"):
        create_loss("PNP")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["losses"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in LOSSES)
    assert "alpha / (1 + R)^(alpha + 1)" in listed
    assert run(["losses", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(LOSSES)
    out = tmp_path / "figures" / "loss.png"
    assert run(["losses", "plot", "a/(1+R)**2", "--parameter", "a=2", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "loss 2 - 2/(R + 1) (closed form): bounded by 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["1/(1-R)"],
        ["R", "--out", "loss.exe"],
        ["R", "--out", f"{__file__}/loss.png"],
        ["a*R", "--parameter", "a"],
        ["R", "--to", "-1"],
        ["R", "--to", "inf"],
        ["R +"],
    ],
)
def test_bad_requests_exit_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["losses", "plot", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", loss_names())
def test_the_slope_of_a_penalty_is_its_derivative(name: str) -> None:
    negatives = torch.linspace(0.1, 9, 40, dtype=torch.float64).view(8, 5).requires_grad_()
    positives = torch.arange(5.0, dtype=torch.float64).expand(8, 5).clone().requires_grad_()
    cost, slope, positive_slope = create_loss(name).penalty(negatives, positives, torch.full((8, 1), 5.0))
    wanted = torch.autograd.grad(cost.sum(), (negatives, positives), allow_unused=True)
    torch.testing.assert_close(slope, wanted[0])
    if positive_slope is not None:
        torch.testing.assert_close(positive_slope, wanted[1])


class Harmonic(RankingLoss):
    """Costs 1 - 1 / (1 + R)."""

    def penalty(self, negatives, positives, number):  # type: ignore[no-untyped-def]
        return 1 - 1 / (1 + negatives), 1 / (1 + negatives) ** 2, None


@pytest.fixture
def harmonic(monkeypatch: pytest.MonkeyPatch) -> str:
    named = NamedLoss("Harmonic", Harmonic, "1 - 1/(1 + R)", "1 / (1 + R)^2")
    monkeypatch.setitem(LOSSES, "Harmonic", named)
    return named.name


def test_a_new_loss_is_known_everywhere(
    harmonic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["losses"]) == 0
    assert "1 - 1/(1 + R)" in capsys.readouterr().out
    assert run(["losses", "show", "harmonic"]) == 0
    assert "Costs 1 - 1 / (1 + R)." in capsys.readouterr().out
    assert run(["losses", "show", "Harmonick"]) == 2
    assert "did you mean 'Harmonic'" in capsys.readouterr().err
    assert run(["recipe", "show", "glyphs", "loss=Harmonic", "temperature=0.02"]) == 0
    assert "name: Harmonic" in capsys.readouterr().out
    assert run(["recipe", "show", "glyphs", "loss=Harmonic", "alpha=2"]) == 2

    from forerank.metrics import ranking_penalties
    from forerank.paper import loss_curves, style
    from forerank.report import derivative

    paid = ranking_penalties([0.9, 0.8, 0.7], [False, False, True], derivative(harmonic))
    np.testing.assert_allclose(paid, [1 / 9, 1 / 9, 0])
    assert style.COLOURS[harmonic] in style.OTHER_COLOURS
    assert style.NAMES[harmonic] == "Harmonic"
    assert style.NAMES["Dq"] == "PNP-D$_q$"
    with style.figure(3, 3) as drawing:
        loss_curves.draw_variants(drawing, ["Dq", harmonic, "Smooth-AP"])
        drawn = drawing.axes[1].lines[0].get_ydata()
    np.testing.assert_allclose(np.asarray(drawn)[[0, -1]], [0, 1 - 1 / 11])


PLUG_IN = """
from forerank.losses import NamedLoss, PNPLoss
from functools import partial
gentle = partial(PNPLoss.from_derivative, "1/(1+R)**1.5")
GENTLE = NamedLoss("gentle", gentle, "2 - 2/sqrt(1 + R)", "(1 + R)^-1.5")
OTHER = 3
"""


def test_an_installed_package_brings_its_own_losses(tmp_path: Path) -> None:
    (tmp_path / "gentle_loss.py").write_text(PLUG_IN)
    meta = tmp_path / "gentle_loss-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: gentle-loss\nVersion: 1.0\n")
    lines = ["good = gentle_loss:GENTLE", "bad = gentle_loss:OTHER", "absent = gentle_loss:NOTHING"]
    (meta / "entry_points.txt").write_text("\n".join(["[forerank.losses]", *lines]))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "forerank", "losses", "show", "gentle"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 - 2/sqrt(1 + R)" in done.stdout
    assert "'bad' (gentle_loss:OTHER) is not a NamedLoss" in done.stderr
    assert "'absent' (gentle_loss:NOTHING) cannot be loaded" in done.stderr
