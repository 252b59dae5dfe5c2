"""An index in use, and its commands."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from forerank.cli import run
from forerank.errors import InputError
from forerank.models import Retriever
from forerank.search import Index, build_index


@pytest.fixture
def built(tmp_path, model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "index")
    return tmp_path / "index"


def test_every_kind_of_query(built, image_folder, model_folder):
    index = Index.open(built)
    file = image_folder / "class1/04.png"
    vector = Retriever.load(model_folder).embed([file], progress=False)[0]
    with Image.open(file) as image:
        kinds = [file, str(file), file.read_bytes(), image.copy(), np.asarray(image), vector, vector.tolist()]
        for kind in kinds:
            matches = index.search(kind, 3)
            assert matches[0].path == "class1/04.png"
            assert matches[0].label == "class1"
            assert matches[0].similarity == pytest.approx(1, abs=1e-5)
            assert [hit.rank for hit in matches] == [1, 2, 3]
    row = next(r for r in index.engine.page(limit=20) if r.path == "class1/04.png")
    others = index.search_row(row.id, 20)
    assert len(others) == 11
    assert row.id not in [hit.id for hit in others]


def test_queries_that_make_no_sense(built):
    index = Index.open(built)
    with pytest.raises(InputError, match="17 dimensions but the index has 16"):
        index.search(np.ones(17))
    with pytest.raises(InputError, match="zero or not finite"):
        index.search(np.zeros(16))
    with pytest.raises(InputError, match="at least 1, not 0"):
        index.search(np.ones(16), 0)
    with pytest.raises(InputError, match="no such file"):
        index.search("nowhere.png")
    with pytest.raises(KeyError):
        index.search_row(500)


def test_an_index_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="there is no index"):
        Index.open(tmp_path / "nothing")


def test_commands_index_and_search(tmp_path, model_folder, image_folder, capsys):
    address = str(tmp_path / "index")
    assert run(["index", str(model_folder), str(image_folder), "-o", address]) == 0
    assert "12 images (12 embedded" in capsys.readouterr().out
    assert run(["index", str(model_folder), str(image_folder), "-o", address]) == 0
    assert "is up to date: 12 images" in capsys.readouterr().out

    query = str(image_folder / "class2/05.png")
    assert run(["search", address, query, "-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "similarity", "label", "path"]
    assert lines[2].split() == ["1", "1.0000", "class2", "class2/05.png"]

    assert run(["search", address, query, "-k", "2", "-o", str(tmp_path / "one.csv")]) == 0
    assert (tmp_path / "one.csv").read_text().count("\n") == 3
    assert f"paths start from {image_folder}" in capsys.readouterr().err
    assert run(["search", address, query, "-k", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2]
    assert answer["found"]

    queries = tmp_path / "queries"
    queries.mkdir()
    for name in ("class0/00.png", "class1/01.png"):
        shutil.copy(image_folder / name, queries / name.replace("/", "_"))
    (queries / "broken.png").write_bytes(b"no picture")
    assert run(["search", address, str(queries), "-k", "3"]) == 0
    said = capsys.readouterr()
    assert "left out, not a picture" in said.err
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert len(rows) == 6
    assert rows[0]["path"] == "class0/00.png"
    assert (rows[3]["rank"], rows[3]["path"], rows[3]["found"]) == ("1", "class1/01.png", "True")


def test_commands_calibrate_no_match_and_duplicates(built, image_folder, capsys):
    Index.open(built).engine.change_meta({"threshold": {"similarity": 0.99999}})
    noise = image_folder.parent / "noise.png"
    Image.fromarray(np.random.default_rng(99).integers(0, 256, (32, 32), dtype=np.uint8)).save(noise)
    assert run(["search", str(built), str(noise)]) == 0
    assert capsys.readouterr().out.startswith("no match: from 1.0000 on a match is trusted, the nearest has")
    assert run(["calibrate", str(built), "--precision", "0.999"]) == 2
    assert "no threshold gives a precision" in capsys.readouterr().err
    assert run(["duplicates", str(built), "--similarity", "0.99999"]) == 0
    assert "0 groups of 0 near-identical images" in capsys.readouterr().out
    assert run(["duplicates", str(built), "--similarity", "0.1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["paths"]) == 12


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["search", "nothing.index", "q.png"], "there is no index"),
        (["index", "no-such-model", ".", "-o", "x"], "no-such-model"),
        (["index", "glyphnet", "no/such/folder", "-o", "x"], "no/such/folder"),
        (["duplicates", "nothing.index"], "there is no index"),
        (["audit", "nothing"], "nor a folder nor a CSV file"),
        (["serve", "nothing.index"], "there is no index"),
        (["search", "ftp://x/y", "q.png"], "unknown kind of index"),
    ],
)
def test_bad_requests_are_one_sentence_and_exit_code_2(command, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    error = capsys.readouterr().err.strip()
    assert reason in error
    assert "Traceback" not in error
