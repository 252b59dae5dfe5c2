"""Result tables: the same numbers in three languages, none of which a cell can break."""

import csv
import io

import numpy as np
import pytest

from forerank.errors import InputError
from forerank.report import ResultTable

PUBLISHED = {"Smooth-AP": {"R@1": 80.1, "R@10": 91.5}, "PNP-Dq": {"R@1": 81.1, "R@10": None}}
MEASURED = {"PNP-Dq": {"R@1": 80.55, "R@10": 92.0}, "ours | <b>": {"R@1": np.float32(79.0)}}


@pytest.fixture
def table() -> ResultTable:
    return ResultTable.compare(
        "method", PUBLISHED, MEASURED, columns=["R@1", "R@10"], title="SOP", notes=["3 seeds"]
    )


def test_rows_are_the_published_then_the_new_and_differences_are_measured_minus_published(table):
    assert [row[0] for row in table.rows] == ["Smooth-AP", "PNP-Dq", "ours | <b>"]
    assert table.rows[1][3] == pytest.approx(-0.55)
    assert table.rows[1][4] is None
    assert table.rows[1][6] is None
    assert table.rows[0][2] is None


def test_markdown_has_as_many_cells_in_every_line(table):
    lines = [line for line in table.to_markdown().splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {8}
    assert "−0.5" in lines[3] or "−0.6" in lines[3]
    assert "ours \\| &lt;b&gt;" in lines[4]
    assert table.to_markdown().startswith("**SOP**\n\n|")
    assert table.to_markdown().endswith("- 3 seeds")


def test_csv_reads_back_with_every_digit(table):
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows[0] == list(table.header)
    assert float(rows[2][2]) == 80.55
    assert rows[1][2] == ""
    assert rows[3][0] == "ours | <b>"


def test_html_is_escaped(table):
    assert "<b>" not in table.to_html()
    assert "ours | &lt;b&gt;" in table.to_html()
    assert table.to_html().count("<tr>") == 4


def test_a_row_of_another_length_is_refused():
    with pytest.raises(InputError, match="has 1 cells, the header 2"):
        ResultTable(["a", "b"], [["x"]])
