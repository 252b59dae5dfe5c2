"""Searching by examples, filters, boxes and kept uploads: what the API says is what the vectors say."""

import io

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from forerank.search import Index, build_index
from forerank.web.app import create_app
from forerank.web.uploads import Limits


@pytest.fixture(scope="module")
def client(shop):
    with TestClient(create_app(shop), base_url="http://localhost") as opened:
        yield opened


def ids(answer):
    return [hit["id"] for hit in answer.json()["hits"]]


def test_more_and_less_is_the_arithmetic_of_the_docs(client, shop):
    vectors = shop.engine.vectors(range(80))
    query = vectors[[3, 44]].mean(axis=0) - 0.5 * vectors[[10, 20]].mean(axis=0)
    expected = [i for i in np.argsort(-(vectors @ query)) if i not in (3, 44, 10, 20)]
    answer = client.get("/api/search", params={"like": [3, 44], "unlike": [10, 20], "k": 12})
    assert ids(answer) == expected[:12]
    assert [hit["rank"] for hit in answer.json()["hits"]] == list(range(1, 13))
    np.testing.assert_allclose(
        answer.json()["hits"][0]["similarity"],
        vectors[expected[0]] @ query / np.linalg.norm(query),
        atol=2e-6,
    )


def test_one_example_is_a_search_with_that_row(client):
    assert (
        client.get("/api/search?like=7&k=9").json()["hits"]
        == client.get("/api/rows/7/search?k=9").json()["hits"]
    )


def test_an_upload_is_kept_and_found_again(client, shop, picture):
    name = client.post("/api/uploads", content=picture("blue", "star")).json()["id"]
    answer = client.get("/api/search", params={"like": name, "k": 5})
    assert ids(answer) == [hit.id for hit in shop.search(picture("blue", "star"), 5)]
    both = client.get("/api/search", params={"like": [name, "12"], "k": 5})
    vectors = shop.engine.vectors(range(80))
    query = shop.embed([picture("blue", "star")])[0] + vectors[12]
    assert ids(both) == [i for i in np.argsort(-(vectors @ query)) if i != 12][:5]
    shown = client.get(f"/uploads/{name}")
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(shown.content)).size == (160, 160)
    gone = client.get("/api/search?like=uNobodyKnowsThis")
    assert gone.status_code == 404
    assert "no longer kept" in gone.json()["error"]


def test_a_box_searches_by_that_part(client, shop, picture):
    """Two shapes side by side: the box decides which of them is the query."""
    both = Image.new("RGB", (320, 160))
    both.paste(Image.open(io.BytesIO(picture("red", "star", kind="PNG"))), (0, 0))
    both.paste(Image.open(io.BytesIO(picture("green", "circle", kind="PNG"))), (160, 0))
    out = io.BytesIO()
    both.save(out, "PNG")
    name = client.post("/api/uploads", content=out.getvalue()).json()["id"]
    for box, half in (("0,0,0.5,1", (0, 0, 160, 160)), ("0.5,0,0.5,1", (160, 0, 320, 160))):
        answer = client.get("/api/search", params={"like": f"{name}@{box}", "k": 6})
        assert ids(answer) == [hit.id for hit in shop.search(both.crop(half), 6)]
    row = client.get("/api/search", params={"like": "5@0,0,1,1", "k": 3}).json()["hits"]
    assert 5 not in [hit["id"] for hit in row]


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ("0.5,0,0.6,1", "outside the picture"),
        ("-0.1,0,0.5,1", "outside the picture"),
        ("0,0,nan,1", "outside the picture"),
        ("0,0,0,1", "outside the picture"),
        ("0,0,1", "a box is x,y,width,height"),
        ("0.5,0.5,0.000001,0.000001", "smaller than a pixel"),
    ],
)
def test_a_box_that_is_not_one_is_refused(client, box, words):
    answer = client.get("/api/search", params={"like": f"3@{box}"})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_filters_limit_a_search_and_the_gallery(client):
    for address in ("/api/gallery?limit=80", "/api/search?like=1&k=80", "/api/rows/1/search?k=80"):
        answer = client.get(f"{address}&where=category=star&where=price=3&text=yellow").json()
        rows = answer.get("rows") or answer.get("hits")
        assert rows
        assert all(row["columns"]["category"] == "star" for row in rows)
        assert all(row["columns"]["price"] == "3" and "yellow" in row["label"] for row in rows)
    assert client.get("/api/values?column=category").json() == ["circle", "square", "star", "triangle"]
    assert client.get("/api/values?column=category&text=STA").json() == ["star"]
    for address in ("/api/gallery?where=colour=red", "/api/search?like=1&where=colour=red"):
        refused = client.get(address)
        assert refused.status_code == 400
        assert "unknown column 'colour'" in refused.json()["error"]
        assert refused.json()["error"].count(". ") <= 1
    assert (
        client.get("/api/values?column=prize").json()["error"].startswith("unknown column 'prize': did you")
    )


def test_one_per_class_and_folding_hide_and_tell(client, shop):
    answer = client.get("/api/search?like=0&k=16&one_per_class=true").json()["hits"]
    labels = [hit["label"] for hit in answer]
    assert len(labels) == len(set(labels)) == 16
    folded = [one["id"] for hit in answer for one in hit["folded"]]
    assert len(set(folded) | {hit["id"] for hit in answer}) == len(folded) + 16
    assert all(one["label"] == hit["label"] for hit in answer for one in hit["folded"])
    assert folded
    plain = client.get("/api/search?like=0&k=80").json()["hits"]
    first = {}
    for hit in plain:
        first.setdefault(hit["label"], hit["id"])
    assert [hit["id"] for hit in answer] == list(first.values())


def test_copies_are_folded(shapes, retriever, tmp_path):
    for i, name in enumerate(("red star", "blue circle")):
        for copy in range(3):
            target = tmp_path / "images" / f"{i}-{copy}.jpg"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((shapes / name / "0.jpg").read_bytes())
    (tmp_path / "images" / "other.jpg").write_bytes((shapes / "green square" / "1.jpg").read_bytes())
    build_index(retriever, tmp_path / "images", tmp_path / "index")
    opened = Index.open(tmp_path / "index", model=retriever)
    with TestClient(create_app(opened), base_url="http://localhost") as client:
        hits = client.get("/api/search?like=0&k=10&fold=true").json()["hits"]
        assert sorted(len(hit["folded"]) for hit in hits) == [0, 1, 2]
        assert client.get("/api/search?like=0&k=10").json()["answer"] is None  # nothing has a label here


def test_the_answer_is_the_vote_of_the_seven_nearest(client):
    answer = client.get("/api/search?like=26&k=3").json()
    seven = client.get("/api/search?like=26&k=7").json()["hits"]
    labels = [hit["label"] for hit in seven]
    said = answer["answer"]
    assert (said["votes"], said["voters"]) == (labels.count(said["label"]), 7)
    assert said["votes"] == max(labels.count(label) for label in labels)
    own = [hit["similarity"] for hit in seven if hit["label"] == said["label"]]
    assert said["support"] == pytest.approx(sum(own) / 7, abs=1e-5)
    assert said["trusted"]
    assert said["similarity"] == seven[labels.index(said["label"])]["similarity"]


def test_only_unlike_is_refused_and_bad_examples_are_named(client):
    assert client.get("/api/search?unlike=3").status_code == 422
    assert "an example is" in client.get("/api/search?like=../x").json()["error"]
    assert client.get("/api/search?like=99999").status_code == 404
    assert client.post("/api/uploads", content=b"no picture").status_code == 400


def test_kept_uploads_stay_within_their_bounds(index, picture):
    limits = Limits(kept=2, kept_bytes=10_000_000, kept_seconds=3600)
    with TestClient(create_app(index, limits=limits), base_url="http://localhost") as client:
        names = [client.post("/api/uploads", content=picture(seed=i)).json()["id"] for i in range(3)]
        assert [client.get(f"/uploads/{name}").status_code for name in names] == [404, 200, 200]
    limits = Limits(kept_seconds=0)
    with TestClient(create_app(index, limits=limits), base_url="http://localhost") as client:
        name = client.post("/api/uploads", content=picture()).json()["id"]
        assert client.get(f"/api/search?like={name}").status_code == 404


def test_a_threshold_is_not_used_for_combined_examples(shapes_index, retriever, tmp_path):
    import shutil

    shutil.copytree(shapes_index, tmp_path / "calibrated")
    index = Index.open(tmp_path / "calibrated", model=retriever)
    index.store_threshold({"similarity": 0.999, "precision": 0.9, "low": 0.8, "high": 1.0})
    with TestClient(create_app(index), base_url="http://localhost") as client:
        assert client.get("/api/search?like=1").json()["found"] is False
        both = client.get("/api/search?like=1&like=2").json()
        assert (both["found"], both["threshold"]) == (True, None)


def test_several_rows_in_the_order_asked_for(client):
    assert [row["id"] for row in client.get("/api/rows?id=7&id=3&id=40").json()] == [7, 3, 40]
    assert client.get("/api/rows?id=7&id=999").status_code == 404
    assert client.get("/api/rows?id=-1").status_code == 422
    assert client.get(f"/api/rows?id={2**70}").status_code == 422


def test_an_index_without_map_or_threshold_says_how_to_get_them(client):
    for address, command in (("/api/map", "forerank map"), ("/api/threshold", "forerank calibrate")):
        answer = client.get(address)
        assert answer.status_code == 404
        assert command in answer.json()["error"]
