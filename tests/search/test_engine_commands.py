"""The commands work with every engine, and name none: what they need to know they ask of it."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import forerank
from forerank.cli import run
from forerank.search.engine import ENGINES

SOURCE = Path(forerank.__file__).parent


@pytest.fixture
def shop(tmp_path):
    """A catalogue as a CSV with further columns."""
    lines = ["path,label,category,price,URL"]
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,item {i % 6},{'boots' if i % 2 else 'hats'},{i},https://shop.example/{i}")
    lines[-1] = "11.png,item 5,boots,,"  # neither price nor URL
    file = tmp_path / "shop.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_index_and_search_with_columns_through_the_command_line(address, shop, model_folder, capsys):
    assert run(["index", str(model_folder), str(shop), "-o", address]) == 0
    assert "12 images (12 embedded" in capsys.readouterr().out
    ask = ["search", address, str(shop.parent / "3.png"), "--model", str(model_folder)]
    assert run([*ask, "-k", "12", "--json"]) == 0
    hits = {hit["path"]: hit for hit in json.loads(capsys.readouterr().out)["hits"]}
    assert len(hits) == 12
    assert hits["3.png"]["columns"] == {"category": "boots", "price": "3", "URL": "https://shop.example/3"}
    assert hits["11.png"]["columns"] == {"category": "boots"}
    assert run([*ask, "--where", "category=hats", "--where", "label=item 2", "--json"]) == 0
    assert {hit["path"] for hit in json.loads(capsys.readouterr().out)["hits"]} == {"2.png", "8.png"}
    assert run([*ask, "-k", "1", "--where", "category=boots"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"rank +similarity +label +path +URL +category +price", out)
    assert re.search(r"item 3 +3\.png +https://shop\.example/3 +boots +3", out)
    assert run([*ask, "--text", "nowhere"]) == 0
    assert "no match: no image fulfils the conditions" in capsys.readouterr().out
    assert run([*ask, "--where", "prize=3"]) == 2
    assert "did you mean 'price'?" in capsys.readouterr().err
    folder = shop.parent / "queries"
    folder.mkdir()
    Image.open(shop.parent / "4.png").save(folder / "4.png")
    assert run(["search", address, str(folder), "-k", "1", "--model", str(model_folder)]) == 0
    (line,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (line["path"], line["category"], line["price"]) == ("4.png", "hats", "4")


def test_a_changed_price_is_stored_without_embedding_again(address, shop, model_folder, capsys):
    assert run(["index", str(model_folder), str(shop), "-o", address]) == 0
    shop.write_text(shop.read_text().replace("hats,4,", "hats,99,"))
    assert run(["index", str(model_folder), str(shop), "-o", address]) == 0
    assert "(0 embedded" in capsys.readouterr().out
    ask = ["search", address, str(shop.parent / "4.png"), "--model", str(model_folder)]
    assert run([*ask, "--where", "price=99", "--json"]) == 0
    assert [hit["path"] for hit in json.loads(capsys.readouterr().out)["hits"]] == ["4.png"]


def test_no_module_but_its_own_and_the_registry_knows_an_engine():
    """A scheme in code (not in a docstring or an example) stands in the engine's file or in the registry."""
    for scheme in filter(None, ENGINES):
        for file in SOURCE.rglob("*.py"):
            if file.name.startswith(scheme) or file.name == "engine.py":
                continue
            text = re.sub(r'""".*?"""', "", file.read_text(), flags=re.DOTALL)
            assert f"{scheme}:" not in text, file


def test_a_mistyped_scheme_is_refused(tmp_path, capsys):
    assert run(["search", "milvsu:index.db", str(tmp_path)]) == 2
    assert "unknown kind of index 'milvsu'" in capsys.readouterr().err


def test_a_map_is_drawn_or_refused_in_one_sentence(address, shop, model_folder, capsys):
    """Only an index in a local folder has a place for a map."""
    pytest.importorskip("umap")
    assert run(["index", str(model_folder), str(shop), "-o", address]) == 0
    capsys.readouterr()
    drawn = run(["map", address])
    told = capsys.readouterr()
    if ":" in address:
        assert drawn == 2
        assert "kept with an index in a local folder: build one of the same images" in told.err
        assert len(told.err.strip().splitlines()) == 1
    else:
        assert (drawn, told.out.strip()) == (0, f"{address}: a map of 12 images")
