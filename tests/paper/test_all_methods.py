"""The table of every method: where it began, what it reached, its note, and the page it is written to."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forerank.cli import run as command
from forerank.files import read_json_with_checksum
from forerank.paper import all_methods
from forerank.paper.runs import train_missing
from forerank.paper.study import RESULT, Condition, Study
from forerank.training.methods import METHODS as REGISTRY


def test_every_method_of_the_registry_has_a_row_and_its_deviations_stand_in_its_note(invented: Study) -> None:
    table = all_methods.build_all_methods_table(invented)
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {"Dq", *(method.title for method in REGISTRY.values())}
    for method in REGISTRY.values():
        number = rows[method.title][-1]
        (note,) = [text for text in table.notes if text.startswith(f"Note {number}, {method.title}: ")]
        assert all(deviation in note for deviation in method.deviations)
    assert rows["Dq"][-1] is None
    assert rows["FastAP"][1] == 76.4  # as the paper prints it
    assert rows["Triplet"][1] is None


def test_a_row_says_where_it_began_what_it_reached_and_how_many_seeds_improved(
    invented: Study, write_results: Callable[..., None]
) -> None:
    condition = Condition("Margin")
    write_results(invented, condition, "recall@1", [0.70, 0.72, 0.50])
    write_results(invented, condition, "map@r", [0.40, 0.40, 0.30])
    for seed in range(3):
        path = invented.run(condition, seed).folder / RESULT
        learned = {"start": {"recall@1": 0.5, "map@r": 0.3}, "learned": seed < 2}
        path.write_text(json.dumps(json.loads(path.read_text()) | learned))
    (row,) = [row for row in all_methods.build_all_methods_table(invented).rows if row[0] == "Margin"]
    assert row[2:5] == [50.0, "64.0 ± 12.2", pytest.approx(14.0)]
    assert row[5:8] == [30.0, "36.7 ± 5.8", pytest.approx(20 / 3)]
    assert row[8] == "2 of 3"


@pytest.mark.parametrize("mode", ["full", "head"])
def test_where_a_run_began_is_what_training_itself_measures_before_its_first_step(
    few_glyphs: tuple[str, ...], tmp_path: Path, mode: str
) -> None:
    values = (*few_glyphs, "evaluation.report=true", f"mode={mode}", "model.head_start=random")
    study = Study("glyphs", 1, 1, tmp_path, tmp_path / "training", values=values)
    run = study.run(Condition("ProxyNCA++"), 0)  # another pooling than that of the recipe
    assert train_missing([run]) == []
    before = read_json_with_checksum(run.folder / "results.json")["test"]["untrained"]
    result = run.result()
    assert result is not None
    assert result["start"] == {name: pytest.approx(before[name]) for name in ("recall@1", "map@r")}


def test_a_run_that_chooses_keeps_nothing_of_the_test_classes(
    few_glyphs: tuple[str, ...], tmp_path: Path
) -> None:
    study = Study("glyphs", 1, 1, tmp_path, tmp_path / "training", values=few_glyphs)
    run = study.run(Condition("Dq"), 1000, chooses=True)
    assert train_missing([run]) == []
    result = run.result()
    assert result is not None
    assert set(result) == {"validation", "seconds", "steps", "broke", "learned"}


def test_the_page_holds_the_table_and_the_command_that_wrote_it(
    few_glyphs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_methods, "all_conditions", lambda: [Condition("Dq"), Condition("Triplet")])
    page = tmp_path / "page.md"
    values = [part for value in few_glyphs for part in ("--set", value)]
    words = ["paper", "run", "all-methods", "--on", "glyphs", "--seeds", "2", "--other-seeds", "1", *values]
    assert command([*words, "--jobs", "1", "--out", str(tmp_path / "study"), "--to", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Every method of the registry")
    assert "forerank paper run all-methods --on glyphs --seeds 2 --other-seeds 1 --set" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| Triplet |")]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[1] == "–"
    assert float(cells[2]) > 0  # measured on the network as it came
    assert cells[8] == "1 of 1"
