"""Neighbours, ranks and confusions against a brute force that sorts every list whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerank.errors import InputError
from forerank.metrics import confused_pairs, evaluate, neighbours, rank_queries
from forerank.metrics import ranked_lists as module
from forerank.report import easiest, hardest


def brute(vectors, labels, query, gallery):
    """Gallery rows of a query, nearest first; among equals negatives first, then by row; itself left out."""
    vectors = vectors.astype(np.float64)
    cosine = vectors @ vectors[query] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[query])
    rows = [row for row in gallery if row != query]
    return sorted(rows, key=lambda row: (-round(cosine[row], 9), labels[row] == labels[query], row))


def cases():
    def build(seed, size, classes, tied):
        generator = np.random.default_rng(seed)
        vectors = generator.normal(size=(size, 3))
        if tied:  # corners of a cube: few different similarities, each exact, many ties
            vectors = np.sign(vectors)
        return vectors.astype(np.float32), generator.integers(classes, size=size)

    return st.builds(build, st.integers(0, 10**6), st.integers(4, 25), st.integers(1, 6), st.booleans())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases(), st.integers(1, 30))
def test_neighbours_are_the_head_of_the_sorted_list(case, k):
    vectors, labels = case
    nearest = neighbours(vectors, labels, k=k)
    for query in range(len(vectors)):
        assert nearest.index[query].tolist() == brute(vectors, labels, query, range(len(vectors)))[:k]
        assert (nearest.is_positive[query] == (labels[nearest.index[query]] == labels[query])).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_a_positive_stands_in_the_list_where_the_counts_put_it(case):
    vectors, labels = case
    lists = neighbours(vectors, labels, k=len(vectors))
    each = rank_queries(vectors, labels)
    for query, first, precision in zip(each.query, each.first_rank, each.average_precision, strict=True):
        places = np.flatnonzero(lists.is_positive[query]) + 1
        assert places[0] == first
        assert precision == pytest.approx(np.mean(np.arange(1, len(places) + 1) / places), abs=1e-12)


def test_an_exact_copy_of_the_query_is_found_but_never_the_query_itself():
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert neighbours(vectors, [0, 0, 1], k=1).index.tolist()[:2] == [[1], [0]]


def test_only_the_gallery_is_found():
    vectors = np.random.default_rng(0).normal(size=(20, 4))
    nearest = neighbours(vectors, np.arange(20) % 3, queries=[0, 5], k=30, gallery=[3, 4, 5, 6])
    assert sorted(nearest.index[1].tolist()[:3]) == [3, 4, 6]
    assert set(nearest.index.ravel()) <= {3, 4, 5, 6}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases())
def test_ranks_of_queries_and_the_hardest_of_them_by_brute_force(case):
    vectors, labels = case
    ranked = rank_queries(vectors, labels)
    ranks, precisions = {}, {}
    for query in range(len(vectors)):
        right = [labels[row] == labels[query] for row in brute(vectors, labels, query, range(len(vectors)))]
        if any(right):
            ranks[query] = right.index(True) + 1
            hits = np.cumsum(right)
            precisions[query] = np.mean([hits[i] / (i + 1) for i in range(len(right)) if right[i]])
    assert ranked.query.tolist() == sorted(ranks)
    assert ranked.first_rank.tolist() == [ranks[q] for q in ranked.query]
    np.testing.assert_allclose(ranked.average_precision, [precisions[q] for q in ranked.query], atol=1e-9)
    worst = sorted(ranks, key=lambda q: (-ranks[q], round(precisions[q], 9), q))
    assert [ranks[q] for q in ranked.query[hardest(ranked, 5)]] == [ranks[q] for q in worst[:5]]
    if ranks:
        theirs = evaluate(vectors, labels, ks=(1,), nmi=False, per_query=True, bootstrap=0).per_query
        assert theirs.first_rank.tolist() == ranked.first_rank.tolist()


def test_easiest_shows_each_class_once():
    vectors = np.random.default_rng(3).normal(size=(40, 3))
    labels = np.arange(40) % 5
    ranks = rank_queries(vectors, labels)
    chosen = ranks.query[easiest(ranks, labels, 4)]
    assert len(set(labels[chosen])) == 4
    assert ranks.average_precision.max() == ranks.average_precision[easiest(ranks, labels, 1)[0]]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases(), st.sampled_from(["first", "any"]))
def test_confused_pairs_by_brute_force(case, before):
    vectors, labels = case
    names = np.array([f"class {code}" for code in labels])
    counts, queries = {}, {}
    for query in range(len(vectors)):
        ranked = brute(vectors, labels, query, range(len(vectors)))
        right = np.array([labels[row] == labels[query] for row in ranked])
        seen = set()
        for place, row in enumerate(ranked):
            later = int(right[place:].sum())
            times = int(later == right.sum() and later > 0) if before == "first" else later
            if times and not right[place]:
                pair = (names[query], names[row])
                counts[pair] = counts.get(pair, 0) + times
                seen.add(pair)
        for pair in seen:
            queries[pair] = queries.get(pair, 0) + 1
    expected = sorted(counts, key=lambda pair: (-queries[pair], -counts[pair], *pair))
    pairs = confused_pairs(vectors, names, before=before, top=1000)
    assert [(p.label, p.other) for p in pairs] == expected
    assert [(p.count, p.queries) for p in pairs] == [(counts[p], queries[p]) for p in expected]
    for pair in pairs:
        assert (names[pair.query], names[pair.intruder]) == (pair.label, pair.other)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases(), st.integers(1, 3))
def test_what_the_evaluation_ignores_is_neither_found_nor_counted(case, cameras):
    vectors, labels = case
    camera = np.arange(len(vectors)) % cameras
    ranks = rank_queries(vectors, labels, ignore=camera)
    if not len(ranks.query):
        return
    near = neighbours(vectors, labels, ranks.query, k=3, ignore=camera)
    for query, row in zip(ranks.query, near.index, strict=True):
        assert not ((labels[row] == labels[query]) & (camera[row] == camera[query])).any()
    asked = [int(q) for q in ranks.query]
    for before in ("first", "any"):
        alone = confused_pairs(vectors, labels, before=before, top=1000, ignore=camera)
        # What one query is confused by, its like-camera positives taken out of the gallery by hand.
        by_hand = {}
        for query in asked:
            shelf = (labels != labels[query]) | (camera != camera[query])
            for pair in confused_pairs(vectors, labels, [query], gallery=shelf, before=before, top=1000):
                by_hand[pair.label, pair.other] = by_hand.get((pair.label, pair.other), 0) + pair.count
        assert {(pair.label, pair.other): pair.count for pair in alone} == by_hand
    if asked:
        theirs = evaluate(
            vectors, labels, ks=(1,), nmi=False, per_query=True, bootstrap=0, ignore=camera
        ).per_query
        assert theirs.query.tolist() == asked
        assert theirs.first_rank.tolist() == ranks.first_rank.tolist()
        np.testing.assert_allclose(ranks.average_precision, theirs.average_precision, atol=1e-9)
        assert ranks.positives.tolist() == theirs.positives.tolist()


def test_the_size_of_the_chunks_does_not_matter(monkeypatch):
    vectors = np.random.default_rng(4).normal(size=(50, 4)).astype(np.float32)
    labels = np.arange(50) % 7
    whole = confused_pairs(vectors, labels, top=5), neighbours(vectors, labels, k=5).index.tolist()
    monkeypatch.setattr(module, "_CHUNK_SIMILARITIES", 120)
    assert (confused_pairs(vectors, labels, top=5), neighbours(vectors, labels, k=5).index.tolist()) == whole


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="2 ignore"):
        rank_queries(np.eye(3), [0, 1, 1], ignore=[0, 1])
    with pytest.raises(InputError, match="3 embeddings but 2 labels"):
        neighbours(np.eye(3), [0, 1])
    with pytest.raises(InputError, match="queries names row 3"):
        neighbours(np.eye(3), [0, 1, 1], queries=[3])
    with pytest.raises(InputError, match="a matrix"):
        rank_queries(np.zeros(3), [0, 1, 1])
    with pytest.raises(InputError, match="'first' or 'any'"):
        confused_pairs(np.eye(3), [0, 1, 1], before="last")
