"""Options of a data set's reader in a recipe: given, kept in the run's recipe, refused by name."""

from pathlib import Path

import pytest
import yaml

from forerank.errors import InputError
from forerank.training.prepare import open_parts
from forerank.training.recipe import Recipe, load_recipe, override, recipe_from_dict, recipe_text


@pytest.fixture
def vehicles(tmp_path: Path) -> Path:
    """VehicleID's lists, no pictures: ten vehicles to train on, tests of 2, 3 and 4 vehicles."""
    lists = tmp_path / "train_test_split"
    lists.mkdir()
    for name, first, count in (("train_list", 0, 10), ("test_list_800", 20, 2), ("test_list_1600", 30, 3),
                               ("test_list_2400", 40, 4)):  # fmt: skip
        rows = [f"{3 * v + i} {v}" for v in range(first, first + count) for i in range(3)]
        (lists / f"{name}.txt").write_text("\n".join(rows) + "\n")
    return tmp_path


@pytest.mark.parametrize(("values", "images", "queries"), [
    ([], 12, 12),
    (["data.options.test=small"], 6, 6),
    (["data.options={test: medium, protocol: one_gallery, draw: 1}"], 9, 6),
    (["data.options.test=small", "data.options.protocol=one_gallery"], 6, 4),
])  # fmt: skip
def test_the_reader_gets_them(vehicles: Path, values: list[str], images: int, queries: int) -> None:
    recipe = load_recipe("vehicle_id", [f"data.root={vehicles}", *values])
    test = open_parts(recipe)["test"]
    assert (len(test), test.is_query.sum()) == (images, queries)
    again = recipe_from_dict(yaml.safe_load(recipe_text(recipe)), "its text")
    assert again == recipe


@pytest.mark.parametrize(("value", "sentence"), [
    ("tets=small", "unknown option of vehicle_id 'tets': did you mean 'test'"),
    ("test=smal", "unknown VehicleID test list 'smal': did you mean 'small'"),
    ("test=[small]", "vehicle_id: the option test must be a text, not ['small']"),
    ("draw=one", "vehicle_id: the option draw must be a whole number, not 'one'"),
    ("root=/elsewhere", "data.options cannot hold 'root': give data.root"),
])  # fmt: skip
def test_a_wrong_one_is_one_sentence(vehicles: Path, value: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        open_parts(load_recipe("vehicle_id", [f"data.root={vehicles}", f"data.options.{value}"]))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_set_without_options_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{i}.png").touch()
    with pytest.raises(InputError, match="takes no options, but 'test' was given"):
        open_parts(override(Recipe(), [f"data.source={tmp_path}", "data.options.test=small"]))
