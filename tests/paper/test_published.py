"""The published numbers are whole, and agree with what the paper says about them in words."""

import pytest

from forerank.errors import InputError
from forerank.paper.published import published_table, source, statement
from forerank.paper.tables import NATIVE

NUMBERS = {  # printed numbers in each table, counted in the paper (a dash is not a number)
    "variants-sop": 35,
    "variants-vehicle-id": 45,
    "comparison-sop": 53,
    "comparison-vehicle-id": 40,
    "comparison-inaturalist": 24,
    "robustness-sop": 12,
    "robustness-vehicle-id": 18,
}


@pytest.mark.parametrize("name", NATIVE)
def test_every_printed_number_is_there(name: str) -> None:
    table = published_table(name)
    values = [value for row in table.rows.values() for value in row.values() if value is not None]
    assert len(values) == NUMBERS[name]
    assert all(
        0 < value < 1 for row in table.rows.values() for key, value in row.items() if "dists" in key and value
    )
    assert all(50 < v < 100 for row in table.rows.values() for k, v in row.items() if "dists" not in k and v)


def test_numbers_agree_with_the_text() -> None:
    variants = published_table("variants-sop").rows
    # "PNP-D is 2.1% higher than PNP-O on SOP": its table says 2.2.
    assert variants["Dq"]["R@1"] - variants["O"]["R@1"] == pytest.approx(2.2)
    assert variants["Dq"] == {
        "R@1": 80.1, "R@10": 91.5, "R@100": 96.7, "R@1000": 99.0, "dists@intra": 0.38, "dists@inter": 0.946,
        "NMI": 90.4,
    }  # fmt: skip
    naturalist = published_table("comparison-inaturalist").rows
    assert naturalist["Dq, batch 224"]["R@1"] - naturalist["Smooth-AP"]["R@1"] == pytest.approx(0.7)
    assert published_table("comparison-sop").rows["Dq, batch 112"]["R@1"] == variants["Dq"]["R@1"]


def test_dashes_are_kept_and_unknown_names_refused() -> None:
    assert published_table("comparison-sop").rows["MIC"]["R@1000"] is None
    with pytest.raises(InputError, match="did you mean 'variants-sop'"):
        published_table("variants-sopp")
    assert "AAAI 2022" in source()
    assert "b = 4" in statement("sweep-b")
