"""Exact and approximate search over plain vectors."""

import importlib.util

import numpy as np
import pytest

from forerank.search import hnsw, open_engine
from forerank.search.exact import _blockwise, top_k


@pytest.mark.parametrize("block", [1, 50, 10_000_000])
@pytest.mark.parametrize("k", [1, 7, 300])
def test_with_and_without_faiss_the_same(random_vectors, monkeypatch, block, k):
    import forerank.search.exact as exact

    monkeypatch.setattr(exact, "BLOCK", block)
    gallery, queries = random_vectors(300, 8), random_vectors(9, 8, seed=2)
    products = queries @ gallery.T
    expected = np.argsort(-products, axis=1, kind="stable")[:, :k]
    for positions, similarities in (top_k(queries, gallery, k), _blockwise(queries, gallery, k)):
        np.testing.assert_array_equal(positions, expected)
        np.testing.assert_allclose(similarities, np.take_along_axis(products, expected, 1), atol=1e-6)


def test_an_engine_works_without_faiss(tmp_path, fill, make_rows, random_vectors, monkeypatch):
    engine = open_engine(tmp_path / "index")
    vectors = random_vectors(50)
    fill(engine, make_rows([f"a/{i:02d}.png" for i in range(50)]), vectors)
    with_faiss = engine.search(vectors[:5], 4)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faiss" else real(name))
    without = engine.search(vectors[:5], 4)
    np.testing.assert_array_equal(with_faiss.ids, without.ids)


def clustered(count=4000, dim=24):
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(count // 8, dim)), 8, axis=0) + 0.5 * rng.normal(size=(count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_an_approximate_index_says_truly_how_good_it_is(tmp_path, fill, make_rows, capsys):
    vectors = clustered()
    engine = open_engine(tmp_path / "index")
    fill(engine, make_rows([f"a/{i:04d}.png" for i in range(len(vectors))]), vectors, approximate=True)
    said = capsys.readouterr().err
    measured = engine.meta()["approximate"]
    assert f"recall@10 {measured['recall']:.4f}" in said
    assert measured["recall"] >= 0.98
    # Counted anew, on other queries, against every product.
    rng = np.random.default_rng(5)
    rows = rng.choice(len(vectors), 300, replace=False)
    queries = vectors[rows] + 0.02 * rng.normal(size=(300, vectors.shape[1])).astype(np.float32)
    truth = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    nearest = engine.search(queries, 10)
    recall = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(nearest.ids, truth, strict=True)])
    assert recall == pytest.approx(measured["recall"], abs=0.03)
    np.testing.assert_allclose(
        nearest.similarities, np.take_along_axis(queries @ vectors.T, nearest.ids, axis=1), atol=1e-5
    )
    engine.close()
    again = open_engine(tmp_path / "index")
    np.testing.assert_array_equal(again.search(queries, 10).ids, nearest.ids)
    assert len(set(again.search(queries[:1], 900).ids[0].tolist())) == 900  # deeper than efSearch


def test_it_is_not_tried_where_exact_search_is_fast(tmp_path, fill, make_rows, random_vectors, monkeypatch):
    engine = open_engine(tmp_path / "index")
    fill(engine, make_rows([f"a/{i:03d}.png" for i in range(300)]), random_vectors(300))
    assert engine.meta()["approximate"] is None


def test_it_is_not_built_where_a_sample_says_it_would_miss_too_much(
    tmp_path, fill, make_rows, random_vectors, monkeypatch, capsys
):
    monkeypatch.setattr(hnsw, "WORTH_TRYING", 1)
    built = []
    monkeypatch.setattr(
        hnsw, "build", lambda vectors, real=hnsw.build: built.append(len(vectors)) or real(vectors)
    )
    monkeypatch.setattr(hnsw, "SAMPLE", 1500)
    engine = open_engine(tmp_path / "index")
    # All directions alike, few links and a narrow search: as hard as a million is for a good graph.
    with monkeypatch.context() as narrow:
        narrow.setattr(hnsw, "SEARCH_WIDTHS", (1, 2, 4))
        narrow.setattr(hnsw, "LINKS", 2)
        fill(engine, make_rows([f"a/{i:04d}.png" for i in range(2000)]), random_vectors(2000, 64))
    assert built == [1500]
    assert "would miss too much" in capsys.readouterr().err
    assert engine.meta()["approximate"] is None
    # And where it is built but is not faster, it is not kept.
    monkeypatch.setattr(hnsw, "SAMPLE", 500)
    engine = open_engine(tmp_path / "second")
    fill(engine, make_rows([f"a/{i:04d}.png" for i in range(600)]), clustered(600, 8))
    assert built[1:] == [500, 600]
    assert "does not pay" in capsys.readouterr().err
    assert engine.meta()["approximate"] is None
    assert not list((tmp_path / "second").glob("generation-*/hnsw.faiss"))
