"""Re-ranking against its published formulas, written out over sets and lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerank import evaluate
from forerank.errors import InputError
from forerank.metrics import choose_reranking, repeated_gallery
from forerank.metrics.ranked_lists import checked_pairs, similarity_lines
from forerank.metrics.reranking import line_ranks, reranked_lines
from forerank.ranking.hard import hard_ranks
from forerank.ranking.reranking import Averaging, Expansion, Reciprocal, read_reranking

QUICK = {"nmi": False, "distances": False, "bootstrap": 0}


def clusters(count=90, dim=8, classes=9, noise=1.0, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(count) % classes)
    vectors = generator.normal(size=(classes, dim))[labels] + noise * generator.normal(size=(count, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def drawn(seed, roles):
    """Vectors, labels, cameras and roles of the three protocols."""
    vectors, labels = clusters(seed=seed)
    rows = np.arange(len(labels))
    cameras = np.random.default_rng(seed).integers(3, size=len(labels)) if roles == "cameras" else None
    queries, gallery = (rows[::4], rows[rows % 4 > 0]) if roles == "separate" else (rows[::3], rows)
    return vectors, labels, cameras, queries, gallery


def candidates_of(query, labels, cameras, gallery):
    """What the protocol lets a query see."""
    seen = gallery != query
    if cameras is not None:
        seen &= (labels[gallery] != labels[query]) | (cameras[gallery] != cameras[query])
    return gallery[seen]


def mean_of(vector, others, similarity, alpha):
    total = vector + sum(max(s, 0.0) ** alpha * other for s, other in zip(similarity, others, strict=True))
    return total / np.linalg.norm(total)


def expansion_scores(vectors, query, candidates, chosen):
    similarity = vectors[candidates] @ vectors[query]
    near = np.argsort(-similarity)[: chosen.neighbours]
    expanded = mean_of(vectors[query], vectors[candidates[near]], similarity[near], chosen.alpha)
    return vectors[candidates] @ expanded


def averaging_scores(vectors, query, candidates, chosen):
    scores = []
    for one in candidates:
        others = candidates[candidates != one]
        similarity = vectors[others] @ vectors[one]
        near = np.argsort(-similarity)[: chosen.neighbours]
        average = mean_of(vectors[one], vectors[others[near]], similarity[near], chosen.alpha)
        scores.append(average @ vectors[query])
    return np.array(scores)


def reciprocal_scores(vectors, query, candidates, chosen):
    """Zhong et al. 2017, equations 1 to 12, over the query and all its candidates; higher is nearer."""
    pool = [query, *candidates.tolist()]
    distance = {p: {g: 1 - float(vectors[p] @ vectors[g]) for g in pool} for p in pool}

    def nearest(p, k):  # N(p, k), with p itself before them
        return [p, *sorted((g for g in pool if g != p), key=lambda g: distance[p][g])[:k]]

    wide, narrow = chosen.k1, round(chosen.k1 / 2)
    lists = {(p, k): nearest(p, k) for p in pool for k in (wide, narrow)}

    def reciprocal(p, k):  # R(p, k)
        return {g for g in lists[p, k] if p in lists[g, k]}

    encoding = {}
    for p in pool:
        core = reciprocal(p, wide)
        expanded = set(core)
        for q in core:
            half = reciprocal(q, narrow)
            if len(core & half) >= 2 / 3 * len(half):
                expanded |= half
        weights = {g: np.exp(-distance[p][g]) for g in expanded}
        encoding[p] = {g: w / sum(weights.values()) for g, w in weights.items()}
    local = {}
    for p in pool:
        near = nearest(p, chosen.k2 - 1)
        local[p] = {g: sum(encoding[q].get(g, 0.0) for q in near) / len(near) for g in pool}
    scores = []
    for g in candidates:
        smaller = sum(min(local[query][i], local[g][i]) for i in pool)
        larger = sum(max(local[query][i], local[g][i]) for i in pool)
        final = (1 - chosen.weight) * (1 - smaller / larger) + chosen.weight * distance[query][g]
        scores.append(4 - final)
    return np.array(scores)


@pytest.mark.parametrize("roles", ["everyone", "separate", "cameras"])
@pytest.mark.parametrize(
    ("chosen", "by_hand"),
    [
        (Expansion(3, 2.0), expansion_scores),
        (Averaging(3, 2.0), averaging_scores),
        (Reciprocal(8, 3, 0.3, depth=500), reciprocal_scores),
    ],
    ids=["expansion", "averaging", "reciprocal"],
)
def test_equals_the_published_formula_without_what_the_protocol_leaves_out(chosen, by_hand, roles):
    vectors, labels, cameras, queries, gallery = drawn(3, roles)
    pairs = checked_pairs(vectors, labels, queries, gallery, cameras)
    numbers = []
    for number, line in reranked_lines(pairs, chosen):
        candidates = candidates_of(queries[number], labels, cameras, gallery)
        np.testing.assert_array_equal(gallery[line > -np.inf], candidates)
        expected = by_hand(vectors, queries[number], candidates, chosen)
        np.testing.assert_allclose(line[line > -np.inf], expected, atol=1e-12)
        numbers.append(number)
    assert numbers == list(range(len(queries)))


@pytest.mark.parametrize("kind", ["expansion", "averaging", "reciprocal:k1=6,depth=30"])
def test_figures_are_those_of_the_refined_order(kind):
    vectors, labels = clusters()
    pairs = checked_pairs(vectors, labels, None, None, None)
    first, precisions = [], []
    for number, line in reranked_lines(pairs, read_reranking(kind)):
        order = np.argsort(-line)[:-1]
        relevant = labels[order] == labels[number]
        first.append(np.argmax(relevant) + 1)
        precisions.append((np.cumsum(relevant) / np.arange(1, len(order) + 1))[relevant].mean())
    result = evaluate(vectors, labels, rerank=kind, per_query=True, ks=(1,), **QUICK)
    assert result.per_query.first_rank.tolist() == first
    assert result["map"] == pytest.approx(np.mean(precisions), abs=1e-12)
    assert result.settings["rerank"].startswith(kind.split(":")[0])
    assert "Re-ranked by" in str(result)
    assert dict(result) != dict(evaluate(vectors, labels, ks=(1,), **QUICK))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), copies=st.booleans())
def test_lines_of_plain_similarities_count_as_the_counts_do(seed, copies):
    vectors, labels = clusters(60, seed=seed)
    cameras = np.random.default_rng(seed).integers(2, size=60)
    if copies:
        vectors[:12] = vectors[12:24]
    pairs = checked_pairs(vectors, labels, None, np.arange(50), cameras)
    (lines,) = line_ranks(pairs, similarity_lines(pairs))
    (counts,) = hard_ranks(pairs.rows, pairs.codes, gallery=np.arange(50), ignore=cameras)
    for name in ("queries", "offsets", "above", "tied"):
        np.testing.assert_array_equal(getattr(lines, name), getattr(counts, name))


def test_places_beyond_the_depth_keep_their_ranks():
    vectors, labels = clusters(200, noise=2.0)
    pairs = checked_pairs(vectors, labels, None, None, None)
    depth = 25
    plain = dict(similarity_lines(pairs))
    for number, line in reranked_lines(pairs, Reciprocal(6, 2, 0.1, depth)):
        before, after = np.argsort(-plain[number]), np.argsort(-line)
        assert set(before[:depth]) == set(after[:depth])
        np.testing.assert_array_equal(before[depth:], after[depth:])


@pytest.mark.parametrize("kind", ["expansion", "averaging", "reciprocal:depth=40"])
def test_labels_are_no_evidence(kind):
    vectors, labels = clusters()
    chosen = read_reranking(kind)
    others = np.random.default_rng(1).permutation(labels)
    lines = (
        reranked_lines(checked_pairs(vectors, some, None, None, None), chosen) for some in (labels, others)
    )
    for (_, one), (_, other) in zip(*lines, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "kind", ["expansion", "averaging", "reciprocal:k1=6,depth=40", "reciprocal:k1=6,depth=7"]
)
def test_copies_of_a_picture_under_two_labels_tie(kind):
    vectors, labels = clusters(40, classes=4)
    labels = labels.astype(int)
    vectors, labels = np.concatenate([vectors, vectors[:10]]), np.concatenate([labels, (labels[:10] + 1) % 4])
    result = evaluate(vectors, labels, rerank=kind, ks=(1,), **QUICK)
    assert result.counts["tied_positives"] > 0
    assert result.optimistic["map"] > result["map"]


def test_a_gallery_smaller_than_the_neighbourhoods():
    vectors, labels = clusters(6, classes=2)
    for kind in ("expansion:neighbours=50", "averaging:neighbours=50", "reciprocal:k1=50,k2=30"):
        assert 0 < evaluate(vectors, labels, rerank=kind, ks=(1,), **QUICK)["map"] <= 1


def test_random_galleries_can_be_re_ranked():
    vectors, labels = clusters()
    plain, refined = (repeated_gallery(vectors, labels, ks=(1,), rerank=kind) for kind in (None, "expansion"))
    assert refined.settings["rerank"] == "expansion:neighbours=5,alpha=3.0"
    assert dict(plain) != dict(refined)


def test_the_choice_takes_what_helps_and_nothing_where_nothing_does():
    vectors, labels = clusters(240, dim=32, classes=24, noise=1.3)
    kinds = ("expansion", "averaging", "reciprocal:depth=40")
    choice = choose_reranking(vectors, labels, metric="map", kinds=kinds)
    best = max(choice.gains, key=lambda gain: gain.gain)
    assert best.low > 0
    assert choice.chosen == best.rerank
    plain, refined = (
        evaluate(vectors, labels, rerank=kind, **QUICK)["map"] for kind in (None, choice.chosen)
    )
    assert best.gain == pytest.approx(refined - plain)
    assert f"chosen: {best.rerank}" in str(choice)

    few = labels < 5  # all five classes gain, and that may be chance
    choice = choose_reranking(vectors[few], labels[few], metric="map", kinds=kinds)
    assert max(gain.low for gain in choice.gains) > 0
    assert choice.chosen == "none"
    assert "fewer than 6 classes: a gain may be chance; 50 queries of 5 classes" in str(choice)

    nothing = np.random.default_rng(0).normal(size=vectors.shape)
    choice = choose_reranking(nothing, labels, metric="recall@1", kinds=kinds)
    assert choice.chosen == "none"
    assert "no gain is certain" in str(choice)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("recipocal", "did you mean 'reciprocal'"),
        ("expansion:neighbors=3", "did you mean 'neighbours'"),
        ("expansion:neighbours=many", "neighbours of expansion must be a whole number, not 'many'"),
        ("averaging:neighbours=0", "must be at least 1, not 0"),
        ("reciprocal:weight=2", "at most 1, not 2.0"),
        ("expansion:alpha=nan", "alpha of expansion must be at least 0"),
    ],
)
def test_a_wrong_kind_or_setting_is_refused(kind, message):
    vectors, labels = clusters()
    with pytest.raises(InputError, match=message):
        evaluate(vectors, labels, rerank=kind)


def test_the_written_kind_reads_back():
    for chosen in (Expansion(4, 1.5), Averaging(2, 0.0), Reciprocal(10, 2, 0.25, 50)):
        assert read_reranking(str(chosen)) == chosen
