"""The JSON API: what it says is what the index says."""

import numpy as np
import pytest
from starlette.testclient import TestClient

from forerank.report import derivative, rank_query
from forerank.web.app import create_app
from waiting import LIMIT, wait_until

from .conftest import get, post


@pytest.fixture(scope="module")
def client(index):
    with TestClient(create_app(index, title="Shapes"), base_url="http://localhost") as opened:
        yield opened


def test_it_says_what_the_index_is(client):
    about = client.get("/api/index").json()
    assert (about["title"], about["images"], about["dimensions"]) == ("Shapes", 80, 1280)
    assert about["labelled"]
    assert about["threshold"] is None


def test_the_gallery_comes_in_stretches(client):
    seen, after = [], -1
    while after is not None:
        answer = client.get("/api/gallery", params={"after": after, "limit": 33}).json()
        seen += answer["rows"]
        after = answer["next"]
    assert [row["id"] for row in seen] == list(range(80))
    rows = client.get("/api/gallery", params={"text": "BLUE st"}).json()["rows"]
    assert {row["label"] for row in rows} == {"blue star"}
    assert len(rows) == 5
    only = {"where": "label=red circle", "limit": 3}
    assert client.get("/api/gallery", params=only).json()["next"] is not None
    assert client.get("/api/values", params={"text": "star"}).json() == [
        "blue star",
        "green star",
        "red star",
        "yellow star",
    ]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_a_picture_finds_its_kind(client, index, picture, kind):
    data = picture("red", "star", kind=kind)
    answer = client.post("/api/search", params={"k": 7}, content=data).json()
    assert [hit["rank"] for hit in answer["hits"]] == list(range(1, 8))
    expected = index.search(data, 7)
    assert [hit["path"] for hit in answer["hits"]] == [hit.path for hit in expected]
    if kind == "JPEG":
        assert "red" in answer["hits"][0]["label"]
    assert answer["hits"][0]["correct"] is None


def test_a_row_finds_others_and_not_itself(client, index):
    answer = client.get("/api/rows/12/search", params={"k": 10}).json()
    assert len(answer["hits"]) == 10
    assert 12 not in [hit["id"] for hit in answer["hits"]]
    row = index.engine.rows([12])[0]
    assert answer["label"] == row.label
    assert all(hit["correct"] == (hit["label"] == row.label) for hit in answer["hits"])


def test_penalties_are_those_of_the_whole_ranking(client, index):
    rows, vectors = next(iter(index.engine.scan()))
    labels = np.array([row.label for row in rows])
    for loss in ("Dq", "PNP-O", "Smooth-AP"):
        answer = client.get("/api/rows/30/penalties", params={"loss": loss, "shown": 9}).json()
        expected = rank_query(vectors, labels, 30, derivative(loss), shown=9)
        assert [place["id"] for place in answer["ranking"]] == expected.rows.tolist()
        np.testing.assert_allclose([p["penalty"] for p in answer["ranking"]], expected.penalties, rtol=1e-6)
        np.testing.assert_allclose([p["charge"] for p in answer["ranking"]], expected.charges, rtol=1e-6)
        assert answer["positives_below"] == expected.hidden_positives
        assert "<svg" in answer["figure"]
    wrong = client.get("/api/rows/30/penalties", params={"loss": "pnp-dqq"})
    assert wrong.status_code == 400
    assert "did you mean 'PNP-Dq'" in wrong.json()["error"]


def test_pictures_are_small_or_large_and_cached(client):
    import io

    from PIL import Image

    small = client.get("/images/3")
    assert small.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(small.content)).size == (160, 160)
    again = client.get("/images/3", headers={"if-none-match": small.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/images/3", params={"size": "large"}).status_code == 200
    assert client.get("/images/3", params={"size": "huge"}).status_code == 422


def test_pictures_stay_within_their_budget(index):
    from forerank.web.pictures import PictureStore

    pictures = PictureStore(index, budget=20_000)
    for row in index.engine.page(limit=80):
        pictures.get(row, "small")
    assert 0 < pictures._bytes <= 20_000
    assert pictures._bytes == sum(len(made.data) for made in pictures._kept.values())


def test_the_description_is_whole_and_needs_nothing_from_outside(client):
    description = client.get("/openapi.json").json()
    assert set(description["paths"]) >= {"/api/index", "/api/gallery", "/api/search", "/images/{number}"}
    assert description["paths"]["/api/search"]["post"]["requestBody"]["content"]
    assert "docs.js" in client.get("/docs").text


def test_a_calibrated_index_says_no_match(shapes_index, retriever, picture, tmp_path):
    import shutil

    from forerank.search import Index

    shutil.copytree(shapes_index, tmp_path / "calibrated")
    index = Index.open(tmp_path / "calibrated", model=retriever)
    index.store_threshold({"similarity": 0.999, "precision": 0.9, "low": 0.8, "high": 1.0})
    with TestClient(create_app(index), base_url="http://localhost") as client:
        answer = client.post("/api/search", content=picture()).json()
        assert answer["found"] is False
        assert not any(hit["trusted"] for hit in answer["hits"])
        promised = client.get("/api/index").json()["precision"]
        assert promised == "about 90% of the answers are right (80% or more)"


def test_the_same_page_on_milvus(tmp_path, shapes, retriever, index, picture):
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    from forerank.search import Index, build_index

    address = f"milvus:{tmp_path / 'shapes.db'}"
    build_index(retriever, shapes, address)
    stored = Index.open(address, model=retriever)
    with TestClient(create_app(stored), base_url="http://localhost") as client:
        rows = client.get("/api/gallery", params={"limit": 240}).json()["rows"]
        assert {row["path"] for row in rows} == {row.path for row in index.engine.page(limit=100)}
        answer = client.post("/api/search", params={"k": 5}, content=picture()).json()
        assert [hit["path"] for hit in answer["hits"]] == [hit.path for hit in index.search(picture(), 5)]
        number = rows[0]["id"]
        assert client.get(f"/images/{number}").status_code == 200
        assert len(client.get(f"/api/rows/{number}/search").json()["hits"]) == 24
        assert "<svg" in client.get(f"/api/rows/{number}/penalties").json()["figure"]
        assert client.get("/images/12345").status_code == 404
    stored.close()


def test_an_indexed_photograph_that_is_uploaded_finds_itself(tmp_path, retriever):
    """Large JPEG files are decoded at a fraction: an upload must take the same way as the index did."""
    from PIL import Image

    from forerank.search import Index, build_index

    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        noise = Image.fromarray(rng.integers(0, 256, (150, 180, 3), dtype=np.uint8))
        (tmp_path / "photos").mkdir(exist_ok=True)
        noise.resize((1440, 1200), Image.Resampling.NEAREST).save(tmp_path / f"photos/{name}.jpg")
    build_index(retriever, tmp_path / "photos", tmp_path / "index")
    opened = Index.open(tmp_path / "index", model=retriever)
    with TestClient(create_app(opened), base_url="http://localhost") as client:
        data = (tmp_path / "photos/one.jpg").read_bytes()
        hit = client.post("/api/search", content=data).json()["hits"][0]
    assert (hit["path"], hit["similarity"]) == ("one.jpg", pytest.approx(1, abs=2e-6))


def test_few_uploads_are_decoded_at_once(index, picture, monkeypatch):
    """A full-size picture takes a hundred megabytes and more: however many are sent, few are in memory."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from forerank.web.uploads import Decoders

    inside, most, lock, all_sent = 0, 0, threading.Lock(), threading.Event()

    def counted(*arguments, real=Decoders.decode):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        assert all_sent.wait(LIMIT)
        try:
            return real(*arguments)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(Decoders, "decode", counted)
    with TestClient(create_app(index), base_url="http://localhost") as client, ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(client.post, "/api/search", content=picture()) for _ in range(8)]
        try:
            wait_until(
                lambda: "forerank_uploads_in_progress 8.0" in client.get("/metrics").text, "all were sent"
            )
            wait_until(lambda: inside == 2, "two are being decoded")
        finally:
            all_sent.set()
        answers = [answer.result() for answer in answers]
    assert {answer.status_code for answer in answers} == {200}
    assert most == 2


def test_columns_of_the_csv_come_back(shapes, retriever, serving, tmp_path):
    from forerank.search import Index, build_index

    files = sorted(shapes.rglob("[01].jpg"))
    lines = [f"{file},{file.parent.name},{i}" for i, file in enumerate(files)]
    (tmp_path / "shop.csv").write_text("\n".join(["path,label,price", *lines]) + "\n")
    build_index(retriever, tmp_path / "shop.csv", tmp_path / "index")
    with serving(Index.open(tmp_path / "index", model=retriever)) as site:
        assert get(f"{site}/api/index").json()["columns"] == ["price"]
        rows = get(f"{site}/api/gallery").json()["rows"]
        assert sorted(row["path"] for row in rows) == [file.relative_to(shapes).as_posix() for file in files]
        assert [int(row["columns"]["price"]) for row in rows] == list(range(len(files)))
        hits = post(f"{site}/api/search?k=1", content=files[3].read_bytes()).json()["hits"]
        assert hits[0]["columns"] == {"price": "3"}
        assert get(f"{site}/api/rows/{rows[5]['id']}").json()["columns"] == {"price": "5"}
