"""An index that changes while it is served, and images that are added through the API."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from forerank.errors import InputError
from forerank.files import json_with_checksum, read_json_with_checksum
from forerank.search import Index, build_index
from forerank.search.add import place_of
from forerank.web.reloading import Reloading
from forerank.web.uploads import Limits
from waiting import LIMIT, wait_until

from .conftest import get, patient_client, post

TOKEN = "a-token-that-nobody-can-guess"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def images(shapes, tmp_path):
    """Eight of the pictures, in a folder that a test may change."""
    folder = tmp_path / "images"
    for label in ("red star", "blue square"):
        shutil.copytree(shapes / label, folder / label)
        (folder / label / "4.jpg").unlink()
    return folder


@pytest.fixture
def address(images, retriever, tmp_path):
    build_index(retriever, images, tmp_path / "index")
    return tmp_path / "index"


def mapped(name: str) -> int:
    """How many files of that name this process has mapped into its memory."""
    return sum(
        Path(place.path.removesuffix(" (deleted)")).match(name) for place in psutil.Process().memory_maps()
    )


def test_a_rebuilt_index_is_taken_up_and_the_old_one_is_let_go(serving, address, images, retriever, shapes):
    opened = Index.open(address, model=retriever)
    slowly = Limits(body_seconds=LIMIT)
    with (
        serving(opened, make=Reloading, look_seconds=0.05, limits=slowly) as site,
        patient_client(base_url=site) as client,
    ):
        assert client.get("/api/index").json()["images"] == 8
        assert mapped(f"{address}/generation-000001/vectors.npy") == 1
        # A request that is being answered while the index changes: its body is not complete yet.
        go_on = threading.Event()

        def slow_body():
            data = (images / "red star" / "0.jpg").read_bytes()
            yield data[:100]
            assert go_on.wait(LIMIT)
            yield data[100:]

        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(post(f"{site}/api/search", content=slow_body()))
        )
        thread.start()
        wait_until(
            lambda: "forerank_uploads_in_progress 1.0" in client.get("/metrics").text,
            "a picture is being sent",
        )
        shutil.copytree(shapes / "green circle", images / "green circle")
        build_index(retriever, images, address)
        wait_until(lambda: client.get("/api/index").json()["images"] == 13, "the new state is served")
        assert {row["label"] for row in client.get("/api/gallery").json()["rows"]} >= {"green circle"}
        assert mapped(f"{address}/generation-000001/vectors.npy") == 1
        go_on.set()
        thread.join()
        # It was answered by the index that it began with, which is let go now.
        assert {hit["label"] for hit in answers[0].json()["hits"]} == {"red star", "blue square"}
        wait_until(lambda: mapped(f"{address}/generation-000001/vectors.npy") == 0, "the old state is let go")
        assert "forerank_reloads_total 1.0" in client.get("/metrics").text


def test_a_new_threshold_is_taken_up(serving, address, retriever):
    with serving(Index.open(address, model=retriever), make=Reloading, look_seconds=0.05) as site:
        assert get(f"{site}/api/index").json()["threshold"] is None
        promise = {"similarity": 0.7, "precision": 0.9, "low": 0.8, "high": 0.95}
        Index.open(address, model=retriever).store_threshold(promise)
        wait_until(lambda: get(f"{site}/api/index").json()["threshold"] == 0.7, "the threshold is served")


def test_a_damaged_index_is_not_taken_up(serving, address, retriever, caplog):
    with serving(Index.open(address, model=retriever), make=Reloading, look_seconds=0.05) as site:
        meta = address / "generation-000001" / "meta.json"
        values = read_json_with_checksum(meta)
        meta.write_text("{")
        wait_until(lambda: "cannot be loaded, the old one stays" in caplog.text, "the damage is noticed")
        assert get(f"{site}/api/rows/1/search").status_code == 200
        meta.write_text(json_with_checksum({**values, "columns": ["price"]}))
        wait_until(
            lambda: get(f"{site}/api/index").json()["columns"] == ["price"], "the repaired one is served"
        )


@pytest.fixture
def open_to_adding(serving, address, retriever):
    opened = Index.open(address, model=retriever)
    with (
        serving(opened, make=Reloading, token=TOKEN, adding=True) as site,
        patient_client(base_url=site, headers=BEARER) as client,
    ):
        yield client


def test_an_added_image_is_found_at_once_with_label_and_columns(
    open_to_adding, picture, images, retriever, address
):
    client, data = open_to_adding, picture("green", "circle")
    before = client.get("/api/gallery").json()["rows"]
    fields = {"label": "green circle", "price": "12"}
    added = client.post("/api/images", files={"image": ("x.jpg", data)}, data=fields)
    assert added.status_code == 201
    row = added.json()
    assert (row["label"], row["columns"]) == ("green circle", {"price": "12"})
    assert (images / row["path"]).read_bytes() == data
    nearest = client.post("/api/search", content=data).json()["hits"][0]
    assert (nearest["id"], nearest["columns"]) == (row["id"], {"price": "12"})
    assert nearest["similarity"] == pytest.approx(1, abs=1e-5)
    # Pages that are open keep showing the right pictures: ids of the others stay.
    assert client.get("/api/gallery").json()["rows"][: len(before)] == before
    # The same image again is the same row, and what is said of it last counts.
    again = client.post("/api/images", content=data, params={"label": "green circle", "price": "13"}).json()
    assert (again["id"], again["columns"]) == (row["id"], {"price": "13"})
    assert client.get("/api/index").json()["images"] == 9
    # It stays when the index is built again from the folder, which says nothing of a price.
    report = build_index(retriever, images, address)
    assert (report.count, report.embedded) == (9, 0)
    rows = {row.path: row for row in Index.open(address, model=retriever).engine.all_rows()}
    assert rows[row["path"]].columns == {"price": "13"}


def test_an_added_image_stays_when_the_source_does_not_list_it(
    open_to_adding, picture, images, retriever, address
):
    from forerank.data import open_table

    table = open_table(images)  # before the image is added
    path = open_to_adding.post("/api/images", content=picture(), params={"label": "new"}).json()["path"]
    assert build_index(retriever, table, address).count == 9
    (images / path).unlink()
    assert build_index(retriever, table, address).count == 8


def test_images_that_come_together_are_written_together(open_to_adding, picture, address):
    sent = [picture("red", "star", seed) for seed in range(100, 110)]
    answers = []

    def send(data):
        headers = {**BEARER}
        answers.append(
            post(f"{open_to_adding.base_url}/api/images?label=many", content=data, headers=headers)
        )

    threads = [threading.Thread(target=send, args=(data,)) for data in sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [201] * 10
    assert len({answer.json()["id"] for answer in answers}) == 10
    assert open_to_adding.get("/api/index").json()["images"] == 18


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"content": b"no picture"}, 400, "not a picture"),
        ({"params": {"label": "../../etc"}}, 400, "cannot be the name of a folder"),
        ({"params": {"label": "/etc"}}, 400, "cannot be the name of a folder"),
        ({"params": {"label": "a\\b"}}, 400, "cannot be the name of a folder"),
        ({"params": {"label": "x" * 300}}, 400, "cannot be the name of a folder"),
        ({"params": {"path": "a.jpg"}}, 400, "a column cannot be named 'path'"),
        ({"headers": {"authorization": "Bearer wrong"}}, 401, "needs a token"),
    ],
)
def test_what_cannot_be_added_is_refused_and_changes_nothing(
    open_to_adding, picture, images, request_, status, words
):
    before = sorted(images.rglob("*"))
    answer = open_to_adding.post("/api/images", **{"content": picture(), **request_})
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]
    assert sorted(images.rglob("*")) == before


def test_a_link_that_leads_outside_is_not_followed(open_to_adding, picture, images, tmp_path):
    (tmp_path / "outside").mkdir()
    (images / "away").symlink_to(tmp_path / "outside")
    answer = open_to_adding.post("/api/images", content=picture(), params={"label": "away"})
    assert answer.status_code == 400
    assert list((tmp_path / "outside").iterdir()) == []


def test_adding_is_off_unless_told(serving, address, retriever, picture):
    with serving(Index.open(address, model=retriever), make=Reloading, token=TOKEN) as site:
        assert post(f"{site}/api/images", content=picture(), headers=BEARER).status_code == 404


def test_vectors_of_another_engine_are_not_added(serving, address, images, picture):
    from forerank.models import Retriever

    other = Retriever.load("efficientnet-lite0", engine="torch")  # the index was made by openvino
    with serving(Index.open(address, model=other), make=Reloading, token=TOKEN, adding=True) as site:
        before = sorted(images.rglob("*"))
        answer = post(f"{site}/api/images?label=a", content=picture(), headers=BEARER)
    assert answer.status_code == 400
    words = "come from openvino fp32, and this machine would add some from torch fp32"
    assert words in answer.json()["error"]
    assert sorted(images.rglob("*")) == before


def test_while_another_process_writes_adding_says_so(open_to_adding, picture, address):
    import fcntl

    with (address / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = open_to_adding.post("/api/images", content=picture(), params={"label": "a"})
        assert answer.status_code in (400, 503)
        assert "another process is writing" in answer.json()["error"]
    assert open_to_adding.post("/api/images", content=picture(), params={"label": "a"}).status_code == 201


def test_unknown_kinds_of_files_have_no_place():
    with pytest.raises(InputError, match="PPM cannot be added"):
        place_of(b"", "", "PPM")


def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(address, picture, retriever, images):
    environment = {**os.environ, "FORERANK_TOKEN": TOKEN}
    command = [sys.executable, "-m", "forerank", "serve", str(address), "--port", "0", "--allow-adding"]
    acknowledged, number = {}, iter(range(1000, 100_000))
    for acknowledgements in (3, 7):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        site = process.stderr.readline().split()[3]
        enough, goal = threading.Event(), len(acknowledged) + acknowledgements

        def send(site=site, enough=enough, goal=goal):
            while not enough.is_set():
                data = picture("red", "star", next(number))
                try:
                    answer = post(f"{site}/api/images?label=new", content=data, headers=BEARER)
                except httpx.TransportError:
                    return  # killed
                assert answer.status_code == 201
                acknowledged[answer.json()["path"]] = data
                if len(acknowledged) >= goal:
                    enough.set()

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert enough.wait(LIMIT)
        process.kill()  # while the other threads' images are being written
        process.communicate()
        for thread in threads:
            thread.join()
        opened = Index.open(address, model=retriever)
        rows = {row.path: row for row in opened.engine.all_rows()}
        for path, data in acknowledged.items():
            assert rows[path].label == "new"
            assert (images / path).read_bytes() == data
            assert opened.search(data, 1)[0].path == path
    assert len(acknowledged) >= 10
