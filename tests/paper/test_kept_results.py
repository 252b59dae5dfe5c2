"""Results in one file: written from a study, taken over into another folder, refused where unfit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerank.cli import run
from forerank.errors import InputError
from forerank.paper import claims
from forerank.paper.claim_tests import CLAIMS
from forerank.paper.kept_results import keep_results, restore_results
from forerank.paper.study import Condition, Study
from forerank.paper.tuning import FILE


def test_a_study_from_its_file_gives_the_same_verdicts(
    invented: Study, write_results: Callable[..., None], tmp_path: Path
) -> None:
    write_results(invented, Condition("Dq"), "recall@1", [0.80, 0.81, 0.80])
    write_results(invented, Condition("O"), "recall@1", [0.70, 0.70, 0.71])
    (invented.folder / FILE).write_text('{"of": "x", "methods": {}}')
    file = tmp_path / "kept.json"
    keep_results(invented, file)
    elsewhere = tmp_path / "elsewhere"
    study = replace(invented, folder=elsewhere, runs=elsewhere / "training")
    assert claims.verdicts(study, CLAIMS) != claims.verdicts(invented, CLAIMS)
    assert restore_results(study, file) == 7
    assert claims.verdicts(study, CLAIMS) == claims.verdicts(invented, CLAIMS)
    assert (elsewhere / FILE).read_text() == (invented.folder / FILE).read_text()
    # What is there already stays, and a second file of the same study is the same file.
    write_results(study, Condition("O"), "recall@1", [0.60])
    assert restore_results(study, file) == 0
    assert study.by_seed(Condition("O"), "recall@1")[0] == 60
    keep_results(invented, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == file.read_text()


def test_the_command_takes_results_over_and_adds_its_own(
    tmp_path: Path, few_glyphs: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    chosen = [word for value in few_glyphs for word in ("--set", value)]
    words = ["paper", "run", "redundancy", "--seeds", "1", "--jobs", "1", "--kept", str(file), *chosen]
    assert run([*words, "--out", str(tmp_path / "one")]) == 0
    results = json.loads(file.read_text())["runs"]
    assert len(results) == 3
    capsys.readouterr()
    assert run([*words, "--out", str(tmp_path / "two")]) == 0
    said = capsys.readouterr().err
    assert f"3 results taken over from {file}" in said
    assert "to do" not in said
    assert json.loads(file.read_text())["runs"] == results
    options = ["--seeds", "1", "--kept", str(file), "--out", str(tmp_path / "three"), *chosen]
    assert run(["paper", "claims", *options]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot read"), ("[]", "not a file of kept results"), ('{"on": "glyphs"}', "not a file of kept"),
     ('{"on": "cub", "study": {}, "runs": {}}', "on cub, and this study is on glyphs")],
)  # fmt: skip
def test_other_files_are_refused(invented: Study, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "kept.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        restore_results(invented, file)
    assert not invented.runs.exists()


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("on", ["glyphs", "cub"])
def test_the_pages_of_all_methods_are_those_of_their_kept_results(
    on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that stands on the page writes the page, and trains nothing."""
    page = (DOCS / f"comparison-{on}.md").read_text(encoding="utf-8")
    (words,) = [line.split()[2:] for line in page.splitlines() if line.startswith("$ ")]
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "PATH"):
        Path(folder).mkdir()
    kept = ["--kept", str(tmp_path / "kept.json")]
    Path(kept[1]).write_bytes((DOCS / "measurements" / "paper" / f"methods-{on}.json").read_bytes())
    assert run([*words, *kept]) == 0
    assert "to do" not in capsys.readouterr().err
    without_time = [
        [line for line in text.splitlines() if not line.startswith("Time: ")]
        for text in (page, Path(f"docs/comparison-{on}.md").read_text(encoding="utf-8"))
    ]
    assert without_time[0] == without_time[1]
