"""The Python client against a real server: it says what the index itself says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forerank import Client
from forerank.client import ServerError
from forerank.errors import InputError
from forerank.search import Index, build_index
from forerank.web.reloading import Reloading
from waiting import LIMIT

from .conftest import get

TOKEN = "a-token-that-nobody-can-guess"


def test_a_search_by_path_bytes_or_row_is_the_search_of_the_index(site, index, picture, tmp_path):
    client, data = Client(site + "/", seconds=LIMIT), picture("blue", "star")
    expected = index.search(data, 5)
    (tmp_path / "query.jpg").write_bytes(data)
    for query in (data, tmp_path / "query.jpg", str(tmp_path / "query.jpg")):
        matches = client.search(query, k=5)
        assert [(hit.rank, hit.id, hit.path, hit.label) for hit in matches] == [
            (hit.rank, hit.id, hit.path, hit.label) for hit in expected
        ]
        assert [hit.similarity for hit in matches] == pytest.approx(
            [h.similarity for h in expected], abs=1e-5
        )
        assert matches.found
    assert [hit.id for hit in client.search(7, k=3)] == [hit.id for hit in index.search_row(7, 3)]
    only = client.search(data, k=80, where=["label=red circle"], text="RED")
    assert [hit.label for hit in only] == ["red circle"] * 5
    assert client.about()["images"] == 80
    assert client.healthy()


def test_the_lines_of_the_guide_run(site, picture, tmp_path):
    guide = Path(__file__).parents[2] / "docs" / "serving.md"
    (lines,) = re.findall(r"^```py\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) <= 5
    (tmp_path / "query.jpg").write_bytes(picture())
    code = lines.replace("http://localhost:8000", site)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    assert "red star" in done.stdout


def test_what_the_server_refuses_is_an_error_with_its_sentence(site, tmp_path, closed_port):
    client = Client(site, seconds=LIMIT)
    with pytest.raises(ServerError, match="not a picture that can be read") as caught:
        client.search(b"nonsense")
    assert caught.value.status == 400
    with pytest.raises(ServerError, match="the index has no row 999"):
        client.search(999)
    with pytest.raises(InputError, match="cannot be read"):
        client.search(tmp_path / "none.jpg")
    with pytest.raises(InputError, match="begins with http"):
        Client("localhost:8000")
    nobody = Client(f"http://127.0.0.1:{closed_port}")
    assert not nobody.healthy()
    with pytest.raises(ServerError, match="did not answer"):
        nobody.about()


def test_it_adds_an_image_below_a_path_with_the_token_of_the_environment(
    serving, shapes, retriever, picture, tmp_path, monkeypatch
):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes((shapes / "red star" / "0.jpg").read_bytes())
    build_index(retriever, tmp_path / "images", tmp_path / "index")
    opened = Index.open(tmp_path / "index", model=retriever)
    options = {"make": Reloading, "token": TOKEN, "adding": True, "root_path": "/shop"}
    with serving(opened, **options) as site:
        assert Client(f"{site}/shop", seconds=LIMIT).healthy()
        with pytest.raises(ServerError, match="needs a token") as caught:
            Client(f"{site}/shop", seconds=LIMIT).add(picture(), "new")
        assert caught.value.status == 401
        monkeypatch.setenv("FORERANK_TOKEN", TOKEN)
        client = Client(f"{site}/shop", seconds=LIMIT)
        row = client.add(picture(), "new", {"price": "3"})
        assert (row["label"], row["columns"]) == ("new", {"price": "3"})
        first = client.search(picture(), where=["price=3"])[0]
        assert (first.id, first.label, first.columns) == (row["id"], "new", {"price": "3"})
        assert get(f"{site}/shop/healthz").status_code == 200
