"""An index that re-ranks: the order of the evaluation, the evidence of a search, what an index keeps."""

import json

import numpy as np
import pytest

from forerank.cli import run
from forerank.errors import InputError
from forerank.metrics.ranked_lists import checked_pairs
from forerank.metrics.reranking import reranked_lines
from forerank.ranking.reranking import read_reranking
from forerank.search import Index, build_index
from forerank.search.distinct import search_distinct
from forerank.search.engine import open_engine

KINDS = ["expansion:neighbours=4", "averaging:neighbours=3,alpha=2", "reciprocal:k1=8,k2=3,depth=25"]


def clustered(count, seed=0):
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(6, 16))[np.arange(count) % 6] + generator.normal(size=(count, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def orders(vectors, queries, gallery, kind):
    """Rows in the order of the evaluation, for each query."""
    pairs = checked_pairs(vectors, np.zeros(len(vectors)), queries, gallery, None)
    for _, line in reranked_lines(pairs, read_reranking(kind)):
        order = np.argsort(-line, kind="stable")
        yield np.asarray(gallery)[order[line[order] > -np.inf]].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_gives_the_order_of_the_evaluation(kind, address, fill, make_rows, meta):
    vectors = clustered(70)
    engine = open_engine(address)
    averaging = kind.startswith("averaging")
    if averaging and not engine.abilities.averages:
        pytest.skip("build_index refuses averages for this engine")
    fill(engine, make_rows([f"{i:02d}.png" for i in range(60)]), vectors[:60], {**meta, "rerank": kind})
    index = Index(open_engine(address))
    expected = list(orders(vectors, np.arange(60, 70), np.arange(60), kind))
    for query, order, matches in zip(
        vectors[60:], expected, index.search_vectors(vectors[60:], 60), strict=True
    ):
        assert [int(hit.path[:2]) for hit in matches] == order
        own = [float(vectors[row] @ query) for row in order]
        assert [hit.similarity for hit in matches] == pytest.approx(own, abs=1e-5)
        assert [int(hit.path[:2]) for hit in index.search(query, 7)] == order[:7]
        assert [hit.rank for hit in matches] == list(range(1, 61))
    if not averaging:  # an average, made when the index is built, holds the row itself
        ids = {int(row.path[:2]): row.id for row in index.engine.all_rows()}
        for row, order in zip((0, 31), orders(vectors, [0, 31], np.arange(60), kind), strict=True):
            assert [int(hit.path[:2]) for hit in index.search_row(ids[row], 20)] == order[:20]
            answer = search_distinct(index, vectors[row], 20, without=[ids[row]])
            assert [int(result.hit.path[:2]) for result in answer.results] == order[:20]
    index.close()


def test_filters_hold_for_the_evidence_too(tmp_path, fill, make_rows, meta):
    vectors, kind = clustered(60), "expansion:neighbours=4"
    names = [f"{'ab'[i % 2]}/{i:02d}.png" for i in range(60)]
    fill(open_engine(tmp_path / "all"), make_rows(names), vectors, {**meta, "rerank": kind})
    half = np.arange(0, 60, 2)
    fill(open_engine(tmp_path / "half"), make_rows(names[::2]), vectors[half], {**meta, "rerank": kind})
    whole, part = (Index(open_engine(tmp_path / name)) for name in ("all", "half"))
    query = clustered(61)[60]
    matches = whole.search(query, 10, whole.filter(["label=a"]))
    assert [hit.path for hit in matches] == [hit.path for hit in part.search(query, 10)]


def test_an_index_keeps_its_choice_and_its_own_vectors(tmp_path, model_folder, image_folder):
    place = tmp_path / "index"
    build_index(model_folder, image_folder, place)
    before = Index.open(place).engine.vectors(range(12))

    build_index(model_folder, image_folder, place, rerank="averaging:neighbours=2")
    index = Index.open(place)
    assert index.meta["rerank"] == "averaging:neighbours=2,alpha=3.0"
    np.testing.assert_array_equal(index.engine.vectors(range(12)), before)
    averaged = index.engine.search(before[:1], 3)
    assert averaged.similarities[0, 0] < 1 - 1e-4  # the first image's average is not the image

    (
        image_folder / "class0" / "00.png"
    ).unlink()  # what remains is averaged anew, from the images' own vectors
    assert build_index(model_folder, image_folder, place).kept == 11
    again = Index.open(place)
    assert again.meta["rerank"] == index.meta["rerank"]
    np.testing.assert_array_equal(again.engine.vectors(range(11)), before[1:])
    (order,) = orders(before, [0], np.arange(1, 12), "averaging:neighbours=2")
    paths = sorted(row.path for row in again.engine.all_rows())
    assert [hit.path for hit in again.search(before[0], 11)] == [paths[row - 1] for row in order]

    build_index(model_folder, image_folder, place, rerank="none")
    assert Index.open(place).meta["rerank"] is None
    assert Index.open(place).search(before[1], 1)[0].similarity == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_is_refused_before_a_model_is_loaded(tmp_path, image_folder, plain):
    with pytest.raises(InputError, match="did you mean 'averaging'"):
        build_index("no-such-model", image_folder, tmp_path / "index", rerank="average")
    with pytest.raises(InputError, match="cannot average: give --rerank expansion or reciprocal"):
        build_index("no-such-model", image_folder, f"plain:{tmp_path}", rerank="averaging")


def test_commands(tmp_path, model_folder, image_folder, capsys):
    place = str(tmp_path / "index")
    command = ["index", str(model_folder), str(image_folder), "-o", place]
    assert run([*command, "--rerank", "reciprocal:k1=3,k2=2"]) == 0
    query = str(image_folder / "class2/05.png")
    capsys.readouterr()
    assert run(["search", place, query, "--json"]) == 0
    refined = json.loads(capsys.readouterr().out)["hits"]
    assert refined[0]["path"] == "class2/05.png"
    assert run([*command, "--rerank", "none"]) == 0
    capsys.readouterr()
    assert run(["search", place, query, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["hits"]
    assert [hit["path"] for hit in plain] != [hit["path"] for hit in refined]
    own, still = ({hit["path"]: hit["similarity"] for hit in hits} for hits in (plain, refined))
    assert [still[path] for path in own if path in still] == [own[path] for path in own if path in still]
