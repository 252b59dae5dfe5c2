"""Errors for people."""

import sys

import pytest

from forerank.errors import EXTRAS, InputError, MissingExtraError, nearest, require, unknown
from forerank.machine import PURPOSES


def test_a_missing_optional_part_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)  # what an absent package looks like to import
    with pytest.raises(MissingExtraError, match=r"pip install 'forerank\[search\]'"):
        require("faiss")


def test_a_broken_optional_part_shows_its_own_error(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_part.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        require("broken_part")


def test_every_extra_has_a_purpose() -> None:
    assert set(EXTRAS.values()) == set(PURPOSES)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert nearest("zzzz", ["alpha", "temperature"]) is None
    assert "did you mean" not in str(unknown("key", "zzzz", ["alpha"]))


def test_the_beginning_of_a_name_is_near_enough() -> None:
    assert nearest("divid", ["mic", "divide-and-conquer"]) == "divide-and-conquer"
    assert nearest("di", ["mic", "divide-and-conquer"]) is None


def test_input_errors_are_value_errors() -> None:
    assert issubclass(InputError, ValueError)
    assert InputError.exit_code == 2
