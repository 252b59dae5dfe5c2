"""`forerank audit RUN` on glyphs whose labels were spoiled on purpose."""

import csv
import json
import re

import numpy as np
import pytest

from forerank.cli import run as command
from forerank.data import open_table
from forerank.models import create_model, save_model
from forerank.training.recipe import load_recipe, recipe_text


@pytest.fixture
def make_run(tmp_path):
    """A run folder as training leaves it, of some glyphs and the features of an untrained network."""

    def made(*values):
        table = open_table("glyphs")
        some = np.isin(table.label, table.select("train").classes[:60]) | (table.split != "train")
        keep = some & ((table.split == "train") | (np.arange(len(table)) % 20 == 0))
        table = table.where(keep).with_columns(path=[str(file) for file in table.where(keep).files])
        table.write_csv(tmp_path / "glyphs.csv")
        recipe = load_recipe("glyphs", [f"data.source={tmp_path / 'glyphs.csv'}", *values])
        run = tmp_path / "run"
        run.mkdir()
        (run / "recipe.yaml").write_text(recipe_text(recipe))
        save_model(create_model("glyphnet", embedding_dim=None), run / "best")
        return run

    return made


def test_labels_that_the_recipe_spoiled_are_found(make_run, capsys):
    run = make_run("data.noisy_labels=0.05")
    assert command(["audit", str(run)]) == 0
    said = capsys.readouterr().out
    precision, recall = map(float, re.search(r"precision ([\d.]+), recall ([\d.]+)", said).groups())
    with capsys.disabled():
        print(f"\n  {said.splitlines()[-1]}")
    assert recall > 0.75
    assert precision > 0.25  # untrained features; the list is what counts
    rows = list(csv.DictReader((run / "audit.csv").open()))
    assert rows[0]["suspect"] == "True"
    page = (run / "audit.html").read_text()
    assert "spoiled on purpose" in page
    assert page.count('src="data:image') > 100


def test_spoiling_on_demand_and_json(make_run, capsys, tmp_path):
    run = make_run()
    assert command(["audit", str(run), "--spoil", "0.1", "--json", "-o", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["checked"]["wrong"] == round(0.1 * answer["images"])
    assert answer["checked"]["recall"] > 0.75
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "audit-spoiled.csv",
        "audit-spoiled.html",
    ]
    assert not list(run.glob("audit*"))
    assert command(["audit", str(run), "--spoil", "0"]) == 2
    (tmp_path / "taken").touch()
    assert command(["audit", str(run), "-o", str(tmp_path / "taken")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
