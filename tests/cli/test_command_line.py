"""The command line as a person and as a script meet it: real processes, real exit codes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forerank.cli import VERBS, run
from forerank.errors import EXTRAS, install_command
from forerank.machine import PURPOSES, missing_extras
from waiting import LIMIT


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


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["losses", "polt", "x"], "plot"),
        (["paper", "lst"], "list"),
        (["data", "chek", "x"], "check"),
        (["recipe", "shw", "sop"], "show"),
    ],
)
def test_unknown_part_of_a_verb_is_refused_with_the_nearest(
    words: list[str], right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    said = capsys.readouterr().err
    expected = f"forerank: unknown command of forerank {words[0]} {words[1]!r}: did you mean {right!r}?"
    assert said.startswith(expected)
    assert said.count("\n") == 1


def test_unknown_option_is_refused_with_the_nearest() -> None:
    done = forerank("doctor", "--jsn")
    assert done.returncode == 2
    assert "--json" in done.stderr
    assert done.stderr.startswith("forerank: ")


def test_doctor_for_machines_is_one_json_document() -> None:
    done = forerank("doctor", "--json")
    assert done.returncode == 0
    results = json.loads(done.stdout)
    assert results["versions"]["torch"]
    assert results["threads"] >= 1
    assert results["extras"]["baselines"]["installed"] is True


def test_doctor_says_how_to_get_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXTRAS, "no_such_module", "onnx")
    missing = missing_extras()
    assert run(["doctor"]) == 0
    in_order = [extra for extra in PURPOSES if extra in missing]
    assert f"To add what is missing: {install_command(*in_order)}\n" in capsys.readouterr().out
    assert run(["doctor", "--json"]) == 0
    part = json.loads(capsys.readouterr().out)["extras"]["onnx"]
    assert part["missing"] == ["no_such_module"]
    assert part["install"] == install_command("onnx")


@pytest.mark.parametrize(("verb", "extra"), [("train", "budget"), ("embed", "s3"), ("embed", "openvino")])
def test_help_names_extras_and_where_their_command_is(
    verb: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is the same wherever Forerank came from, so it cannot hold the command."""
    assert run([verb, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"the extra {extra}" in said
    assert "see: forerank doctor" in said
    assert "pip install" not in said


def test_a_reader_that_goes_away_is_not_a_fault() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m forerank doctor --json | head -n 1"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""


SLOW = """
import sys
from pathlib import Path
from forerank.cli import main
sys.path.insert(0, sys.argv[1])
sys.argv = ["forerank", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize(("verb", "resumes"), [("index", True), ("audit", False)])
def test_an_interrupt_while_modules_are_loaded_is_one_calm_line(
    tmp_path: Path, verb: str, resumes: bool
) -> None:
    """A cyclopts that turns a KeyboardInterrupt into a fault of its own, as half-loaded modules do."""
    (tmp_path / "cyclopts.py").write_text(
        "import time\ntry:\n    print('loading', flush=True)\n    while True:\n        time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n    raise ImportError('cannot load twice')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path), verb, "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert said == "forerank: interrupted" + (
        "; the same command continues where it stopped\n" * resumes or "\n"
    )


def test_what_the_system_refuses_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "vectors.npy")

    monkeypatch.setattr("forerank.cli.doctor.doctor", full)
    assert run(["doctor"]) == 1
    assert capsys.readouterr().err == "forerank: No space left on device: vectors.npy\n"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["loss=PNP-Dx"], "unknown loss 'PNP-Dx': did you mean"),
        (["loss=PNP-Dq", "loss.alhpa=3"], "unknown argument of PNP-Dq 'alhpa': did you mean 'alpha'?"),
        (["loss.memory=-1"], "loss.memory must be 0 (no memory bank) or more, not -1"),
    ],
)
def test_a_recipe_that_cannot_work_is_not_shown(
    values: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["recipe", "show", "sop", *values]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"forerank: {sentence}")
    assert shown.err.count("\n") == 1
    assert run(["recipe", "show", "sop", "loss=PNP-Ds"]) == 0
    assert "PNP-Ds" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["search", "no.index", "q.jpg", "-o", "no/such/folder/x.csv"],
        ["search", "no.index", "q.jpg", "-o", "."],
        ["index", "no-model", ".", "-o", f"{__file__}/x"],
        ["serve", "no.index", "--port", "99999"],
        ["serve", "no.index", "--port", "-1"],
        ["serve", "no.index", "--upload-megabytes", "nan"],
        ["serve", "no.index", "--upload-megapixels", "-5"],
        ["serve", "no.index", "--images", "no/such/folder"],
    ],
)
def test_a_wrong_option_is_refused_before_any_work(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words[-1].removesuffix("/x") in said or words[-1] in said
