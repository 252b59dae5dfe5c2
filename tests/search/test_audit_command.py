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
from waiting import LIMIT


@pytest.fixture
def make_run(tmp_path):
    """A run folder as training leaves it, of some glyphs and the features of an untrained network."""

    def made(*values):
        table = open_table("glyphs")
        few = {"train": 60, "validation": 6, "test": 6}
        keep = np.isin(table.label, np.concatenate([table.select(s).classes[:n] for s, n in few.items()]))
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
    assert re.search(r"\d+ of [\d,]+ labels are worth a look, about \d+ of them wrong", said)
    assert "likely wrong" not in said
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


def test_a_folder_of_images_is_audited_without_a_run(tmp_path, capsys, monkeypatch):
    """Two classes of drawings, one image black: it is listed, and nothing is written into the folder."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(24):
        (tmp_path / "things" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(60, 255, (9, 9, 3)).astype(np.uint8) if i else np.zeros((9, 9, 3), np.uint8)
        picture = Image.fromarray(pixels).resize((160, 160), Image.Resampling.NEAREST)
        picture.save(tmp_path / "things" / "ab"[i % 2] / f"{i:02d}.png")
    monkeypatch.chdir(tmp_path)
    before = sorted((tmp_path / "things").rglob("*"))
    assert command(["audit", "things"]) == 0
    assert "1 dark: a/00.png" in capsys.readouterr().out
    assert sorted((tmp_path / "things").rglob("*")) == before
    page = (tmp_path / "audit-things" / "audit.html").read_text()
    assert "95% of the pixels are darker than 60 of 255" in page
    assert command(["audit", "things", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"]["dark"] == ["a/00.png"]
    assert command(["audit", "things", "--serve", "--json"]) == 2


def test_serving_a_run_writes_the_table_that_trains_next(make_run, tmp_path):
    """The real command in a process of its own: a decision over HTTP, Ctrl-C, and the table trains."""
    import http.client
    import os
    import signal
    import subprocess
    import sys

    run = make_run()
    child = subprocess.Popen(
        [sys.executable, "-m", "forerank", "audit", str(run), "--serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = next(int(m.group(1)) for line in child.stderr if (m := re.search(r"127.0.0.1:(\d+)", line)))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        connection.request("GET", "/api/collection")
        told = json.loads(connection.getresponse().read())
        assert {one["split"] for one in told["classes"]} >= {"train", "test"}
        row = told["suspects"][0]["row"]
        body = json.dumps({"row": row, "action": "change", "label": told["suspects"][0]["suggestion"]})
        connection.request("POST", "/api/decide", body, {"content-type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        os.kill(child.pid, signal.SIGINT)
        said = child.stderr.read()
        assert child.wait(LIMIT) == 0
    assert "forerank train" in said
    corrected = open_table(run / "corrected.csv")
    assert set(corrected.counts()) >= {"train", "test"}
    short = ["steps=2", "every=2", "batch_size=16", "report=false", "nmi=false"]
    next_run = ["model.backbone=glyphnet", "--run", str(tmp_path / "next")]
    assert command(["train", str(run / "corrected.csv"), *short, *next_run]) == 0
