"""Losses by name, and the command line over them."""

import json
from pathlib import Path

import pytest

from forerank.cli import run
from forerank.errors import InputError
from forerank.losses import LOSSES, PNPLoss, SmoothAPLoss, create_loss


def test_every_name_builds() -> None:
    for name in LOSSES:
        arguments = {"derivative": "1"} if name == "PNP" else {}
        assert create_loss(name.upper(), temperature=0.02, **arguments).temperature == 0.02
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
    assert "loss 2*R/(R + 1) (closed form): bounded by 2" in capsys.readouterr().out


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
