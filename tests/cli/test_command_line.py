"""The command line as a person and as a script meet it: real processes, real exit codes."""

import json
import subprocess
import sys

import pytest

from forerank.cli import VERBS, run


def forerank(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "forerank", *arguments], capture_output=True, text=True)


def test_help_names_every_verb_and_an_example() -> None:
    done = forerank("--help")
    assert done.returncode == 0
    for verb, (_, help_line) in VERBS.items():
        assert verb in done.stdout
        assert help_line.split()[0] in done.stdout
    assert "forerank demo" in done.stdout


@pytest.mark.parametrize(
    "statement", ["import forerank", "import forerank.cli; forerank.cli.run(['--help'])"]
)
def test_nothing_heavy_is_imported_before_it_is_asked_for(statement: str) -> None:
    heavy = ["torch", "numpy", "matplotlib", "sympy", "PIL", "faiss", "transformers"]
    code = f"{statement}\nimport sys\nprint('HEAVY', [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"forerank {verb}" in shown
    assert "Example" in shown


def test_unknown_verb_is_refused_with_the_nearest() -> None:
    done = forerank("dcotor", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("forerank: unknown command 'dcotor': did you mean 'doctor'?")
    assert done.stderr.count("\n") == 1


def test_unknown_option_is_refused_with_the_nearest() -> None:
    done = forerank("doctor", "--jsn")
    assert done.returncode == 2
    assert "--json" in done.stderr
    assert done.stderr.startswith("forerank: ")


def test_doctor_for_machines_is_one_json_document() -> None:
    done = forerank("doctor", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["versions"]["torch"]
    assert found["threads"] >= 1
    assert found["extras"]["baselines"]["installed"] is True


def test_doctor_says_how_to_get_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("forerank.errors", fromlist=["EXTRAS"]).EXTRAS, "no_such_module", "onnx")
    assert run(["doctor"]) == 0
    assert "pip install 'forerank[onnx]'" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_not_a_fault() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m forerank doctor --json | head -n 1"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""
