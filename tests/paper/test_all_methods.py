"""The table of every method: where it began, what it reached, its note, and the page it is written to."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forerank.cli import run as command
from forerank.paper import all_methods
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
