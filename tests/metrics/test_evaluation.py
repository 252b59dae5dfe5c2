"""Metrics against their definitions, scikit-learn and pytorch-metric-learning."""

import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from forerank import evaluate
from forerank.errors import InputError
from forerank.metrics import Evaluation, repeated_gallery

QUICK = {"nmi": False, "distances": False, "bootstrap": 0}


def clusters(count=300, dim=16, classes=40, noise=1.2, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(count) % classes)
    vectors = generator.normal(size=(classes, dim))[labels] + noise * generator.normal(size=(count, dim))
    return vectors.astype(np.float32), labels


def by_sorting(vectors, labels, queries, gallery, ks):
    """Every metric from a sorted list, written out; negatives before positives where they tie."""
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    rows = []
    for q in queries:
        items = gallery[gallery != q]
        similarity = np.round((unit[items] * unit[q]).sum(axis=1), 11)
        relevant = labels[items] == labels[q]
        if not relevant.any():
            continue
        relevant = relevant[np.lexsort((relevant, -similarity))]
        count = relevant.sum()
        precision = np.cumsum(relevant) / np.arange(1, len(items) + 1)
        rows.append([
            *[relevant[:k].any() for k in ks],
            (precision * relevant).sum() / count,
            (precision * relevant)[:count].sum() / count,
            relevant[:count].mean(),
            1 / (np.argmax(relevant) + 1),
        ])  # fmt: skip
    names = [*[f"recall@{k}" for k in ks], "map", "map@r", "r_precision", "mrr"]
    return dict(zip(names, np.mean(np.array(rows, dtype=float), axis=0), strict=True))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.booleans(), split=st.booleans())
def test_equals_sorting(seed, ties, split):
    generator = np.random.default_rng(seed)
    vectors, labels = clusters(int(generator.integers(12, 80)), 6, int(generator.integers(1, 12)), seed=seed)
    if ties:
        vectors[:6] = vectors[6:12]
    rows = np.arange(len(labels))
    queries, gallery = (rows[::2], rows[1::2]) if split else (rows, rows)
    ks = (1, 2, 4)
    assume(
        any(labels[q] in labels[gallery[gallery != q]] for q in queries)
    )  # or there is nothing to evaluate
    expected = by_sorting(vectors, labels, queries, gallery, ks)
    metrics = evaluate(vectors, labels, queries=queries, gallery=gallery, ks=ks, **QUICK)
    assert dict(metrics) == pytest.approx(expected, abs=1e-12)


def test_average_precision_is_scikit_learns():
    vectors, labels = clusters()
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    metrics = evaluate(vectors, labels, per_query=True, **QUICK)
    for query, precision in zip(metrics.per_query.query, metrics.per_query.average_precision, strict=True):
        others = np.arange(len(labels)) != query
        expected = average_precision_score((labels == labels[query])[others], (unit @ unit[query])[others])
        assert precision == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("split", [False, True])
def test_equals_accuracy_calculator(split):
    accuracy_calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    # Few enough images that its float32 ranking meets no near-tie.
    vectors, labels = clusters(200)
    names = ("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision",
             "mean_reciprocal_rank")  # fmt: skip
    judge = accuracy_calculator.AccuracyCalculator(
        include=names, k=199 - 99 * split, device=torch.device("cpu")
    )
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors).double()).float()
    tags = torch.from_numpy(labels)
    if split:
        theirs = judge.get_accuracy(unit[:100], tags[:100], unit[100:], tags[100:])
        ours = evaluate(vectors, labels, queries=range(100), gallery=range(100, 200), ks=(1,), **QUICK)
    else:
        theirs = judge.get_accuracy(unit, tags)
        ours = evaluate(vectors, labels, ks=(1,), **QUICK)
    for their, our in zip(names, ("recall@1", "map", "map@r", "r_precision", "mrr"), strict=True):
        # Its reciprocal rank is a float32 mean.
        assert ours[our] == pytest.approx(theirs[their], abs=1e-6 if our == "mrr" else 1e-9), our


def test_ties_count_against_the_model():
    # Query 0 and its positive 1 are one vector, and so is the negative 2.
    vectors, labels = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]]), [0, 0, 1, 1]
    metrics = evaluate(vectors, labels, ks=(1, 2), **QUICK)
    # 0 and 1 tie with 2; 3 is as far from its positive as from the negatives; 2 is plainly wrong.
    assert metrics["recall@1"] == 0.0
    assert metrics.optimistic["recall@1"] == 0.75
    assert metrics.counts["tied_positives"] == 3
    kind = evaluate(vectors, labels, ks=(1, 2), ties="optimistic", **QUICK)
    assert kind["recall@1"] == 0.75
    assert not kind.optimistic
    assert "ties after" in str(metrics)
    assert "ties after" not in str(evaluate(*clusters(), **QUICK))


def test_self_is_left_out_by_identity():
    """An exact copy of the query under another label must not be taken for the query itself."""
    vectors = np.array([[1.0, 0.1], [1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    metrics = evaluate(vectors, [0, 1, 0, 1, 1], ks=(1,), per_query=True, **QUICK)
    assert metrics.per_query.first_rank[0] == 2  # after the copy, which is a negative
    # The same rows in another order give each image the same rank.
    order = np.array([4, 1, 3, 0, 2])
    shuffled = evaluate(vectors[order], np.array([0, 1, 0, 1, 1])[order], ks=(1,), per_query=True, **QUICK)
    assert shuffled.per_query.first_rank.tolist() == metrics.per_query.first_rank[order].tolist()


def test_same_camera_is_ignored():
    # The nearest positive of 0 was taken by its own camera; the next one stands after a negative.
    vectors = np.array([[1.0, 0.0], [1.0, 0.01], [1.0, 0.3], [1.0, 0.2], [0.0, 1.0]])
    labels, camera = [0, 0, 0, 1, 1], ["a", "a", "b", "a", "b"]
    plain = evaluate(vectors, labels, ks=(1,), per_query=True, **QUICK)
    metrics = evaluate(vectors, labels, ks=(1,), per_query=True, ignore=camera, **QUICK)
    assert plain.per_query.first_rank[0] == 1
    assert metrics.per_query.first_rank[0] == 2
    assert metrics.per_query.positives[0] == 1
    assert metrics.counts["ignored_pairs"] == 2  # (0, 1) and (1, 0)


def test_random_galleries():
    vectors, labels = clusters(200, classes=20, noise=0.8)
    metrics = repeated_gallery(vectors, labels, repeats=10, ks=(1, 5))
    assert metrics.counts["gallery"] == len(np.unique(labels))
    assert metrics.counts["queries"] == 200 - metrics.counts["gallery"]
    assert metrics.spread["recall@1"] > 0
    again = repeated_gallery(vectors, labels, repeats=10, ks=(1, 5))
    assert (
        dict(metrics) == dict(again) != dict(repeated_gallery(vectors, labels, repeats=10, ks=(1, 5), seed=1))
    )
    assert metrics["map"] == pytest.approx(metrics["mrr"])  # one relevant item


def test_random_galleries_by_hand():
    vectors, labels = clusters(60, dim=5, classes=12)
    unit = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    generator, means = np.random.default_rng(7), []
    for _ in range(4):
        gallery = {}  # label -> the first of its images in a random order
        for image in generator.permutation(60):
            gallery.setdefault(labels[image], image)
        items = np.array(list(gallery.values()))
        ranks = []
        for query in set(range(60)) - set(items):
            similarity = dict(zip(items, unit[items] @ unit[query], strict=True))
            own = similarity[gallery[labels[query]]]
            ranks.append(1 + sum(other > own for other in similarity.values()))
        means.append(np.mean(1 / np.array(ranks)))
    metrics = repeated_gallery(vectors, labels, repeats=4, seed=7, ks=(1,))
    assert metrics["mrr"] == pytest.approx(np.mean(means), abs=1e-12)
    assert metrics.spread["mrr"] == pytest.approx(np.std(means), abs=1e-12)
    assert "bootstrap" not in metrics.settings


def test_random_galleries_count_on_average():
    """Two vehicles in two poses, all equal: whichever image is the gallery's, the two others tie with it."""
    vectors, labels = np.ones((6, 2)), [0, 0, 0, 1, 1, 1]
    counts = repeated_gallery(vectors, labels, repeats=5, ks=(1,)).counts
    assert counts == {"queries": 4, "gallery": 2, "classes": 2, "queries_without_positive": 0,
                      "tied_positives": 4, "galleries": 5}  # fmt: skip
    vectors, labels = clusters(60, dim=5, classes=12)
    counts = repeated_gallery(vectors, labels, repeats=3, ks=(1,), ignore=np.arange(60) % 4).counts
    assert counts["queries"] + counts["queries_without_positive"] == 48
    assert counts["queries_without_positive"] == counts["ignored_pairs"] > 0
    with pytest.raises(TypeError, match="per_query"):
        repeated_gallery(vectors, labels, per_query=True)


def test_queries_without_positive_are_counted_and_left_out():
    vectors, labels = clusters()
    lonely = np.concatenate([labels, [1000, 1001]])
    metrics = evaluate(np.concatenate([vectors, vectors[:2] + 5]), lonely, **QUICK)
    assert metrics.counts["queries_without_positive"] == 2
    assert metrics.counts["queries"] == 300
    assert metrics.counts["gallery"] == 302
    assert "left out: 2 queries without a positive" in str(metrics)


def test_interval_covers_and_is_seeded():
    vectors, labels = clusters(600, noise=2.0)
    metrics = evaluate(vectors, labels, nmi=False, seed=3)
    low, high = metrics.intervals["recall@1"]
    assert low < metrics["recall@1"] < high
    # Classes as unit: about as wide as the textbook's standard error over class means.
    hits = evaluate(vectors, labels, per_query=True, **QUICK).per_query.first_rank == 1
    sizes, sums = np.bincount(labels), np.bincount(labels, hits)
    error = np.sqrt((((sums - sizes * hits.mean()) / sizes.mean()) ** 2).sum()) / len(sizes)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert metrics.intervals == evaluate(vectors, labels, nmi=False, seed=3).intervals
    assert metrics.intervals != evaluate(vectors, labels, nmi=False, seed=4).intervals


def test_reads_as_a_dict_and_as_json():
    metrics = evaluate(*clusters(), ks=(1, 2), per_query=True)
    assert list(metrics) == ["recall@1", "recall@2", "map", "map@r", "r_precision", "mrr", "dists@intra",
                           "dists@inter", "nmi"]  # fmt: skip
    assert dict(**metrics)["map"] == metrics["map"]
    whole = json.loads(json.dumps(metrics.to_dict(), allow_nan=False))
    assert whole["metrics"] == dict(metrics)
    assert len(whole["per_query"]["first_rank"]) == 300
    assert isinstance(metrics, Evaluation)
    assert metrics == dict(metrics) == evaluate(*clusters(), ks=(1, 2), per_query=True)
    assert metrics != evaluate(*clusters(seed=1), ks=(1, 2), per_query=True)
    assert str(metrics).splitlines()[0].split() == ["metric", "value", "95%", "interval"]


def test_one_class_has_no_distance_between_classes():
    metrics = evaluate(clusters(20)[0], ["only"] * 20, ks=(1,))
    assert "dists@inter" not in metrics
    assert json.loads(json.dumps(metrics.to_dict(), allow_nan=False))["metrics"]["dists@intra"] > 0


@pytest.mark.parametrize("scale", [1e-310, 1e-160, 1e160, 1e300])
def test_figures_do_not_depend_on_length(scale):
    """Where the squares of the numbers leave float64, too, and where lengths differ from row to row."""
    vectors, labels = clusters(80, classes=20)
    vectors = vectors.astype(np.float64)
    expected = dict(evaluate(vectors, labels, nmi=False, bootstrap=0))
    mixed = vectors * np.where(np.arange(80) % 2, scale, 1.0)[:, None]
    for scaled in (vectors * scale, mixed):
        assert dict(evaluate(scaled, labels, nmi=False, bootstrap=0)) == pytest.approx(expected, abs=1e-9)


def test_whole_numbers_are_embeddings():
    vectors, labels = clusters(120, classes=10)
    whole = np.round(vectors * 20).astype(np.int8)
    expected = dict(evaluate(whole.astype(np.float64), labels, **QUICK))
    assert dict(evaluate(whole, labels, **QUICK)) == expected
    assert dict(evaluate(torch.from_numpy(whole), labels, **QUICK)) == expected
    with pytest.raises(InputError, match="real numbers, not bool"):
        evaluate(whole > 0, labels)


@pytest.mark.parametrize("kind", ["memmap", "torch", "float16", "bfloat16", "list"])
def test_takes_many_kinds_of_embeddings(kind, tmp_path):
    vectors, labels = clusters(120, classes=10)
    vectors = vectors.astype(np.float16).astype(np.float32)  # what every kind can hold
    if kind == "bfloat16":
        vectors = torch.from_numpy(vectors).bfloat16().float().numpy()
    expected = evaluate(vectors, labels, ks=(1,), seed=1)
    given: object = vectors
    if kind == "memmap":
        np.save(tmp_path / "e.npy", vectors)
        given = np.load(tmp_path / "e.npy", mmap_mode="r")
    elif kind == "torch":
        given = torch.from_numpy(vectors).requires_grad_()
    elif kind == "float16":
        given = vectors.astype(np.float16)
    elif kind == "bfloat16":
        given = torch.from_numpy(vectors).bfloat16()
    else:
        given = vectors.tolist()
    names = [f"name {label}" for label in labels]  # strings: other codes, same classes
    metrics = evaluate(given, names if kind != "torch" else torch.from_numpy(labels), ks=(1,), seed=1)
    assert {k: v for k, v in metrics.items() if k != "nmi"} == pytest.approx(
        {k: v for k, v in expected.items() if k != "nmi"}, abs=1e-12
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"labels": [0, 1]}, "300 embeddings but 2 labels"),
        ({"ks": (1, 300)}, r"recall@300 cannot be measured here: a query ranks only 299"),
        ({"ks": (0,)}, "positive whole numbers"),
        ({"ks": 5}, "positive whole numbers, not 5"),
        ({"ks": (1.5,)}, "positive whole numbers"),
        ({"labels": range(300)}, "none of the 300 queries has a positive"),
        ({"queries": [300]}, "row 300, but rows go from 0 to 299"),
        ({"queries": [5, -1]}, "row -1, but rows go from 0 to 299"),
        ({"queries": [0.5]}, "queries must be row numbers or a mask"),
        ({"ignore": np.zeros(300)}, "a positive in the gallery that ignore does not leave out"),
        ({"labels": ["1", 1] * 150}, "all numbers or all strings"),
        ({"labels": [None, 1] * 150}, "all numbers or all strings"),
        ({"labels": [np.nan, 1.0] * 150}, "none of them missing or NaN"),
        ({"labels": [[1], [1, 2]] * 150}, "must be a list"),
        ({"labels": None}, "must be a list"),
        ({"bootstrap": -1}, "bootstrap must be a whole number, at least 0"),
        ({"seed": -1}, "seed must be a whole number, at least 0"),
        ({"memory": 0}, "memory must be a whole number, at least 1"),
        ({"confidence": 95}, "confidence must lie between 0 and 1"),
        ({"distributed": True}, "init_process_group"),
        ({"device": "gpu"}, "device 'gpu' cannot count here"),
        ({"queries": [1, 1]}, "twice"),
        ({"gallery": np.zeros(300, dtype=bool)}, "gallery is empty"),
        ({"gallery": []}, "gallery is empty"),
        ({"queries": np.zeros(3, dtype=bool)}, "mask of 3"),
        ({"ignore": [1]}, "1 ignore"),
        ({"precision": "float16"}, "did you mean 'bfloat16'|Valid: auto"),
        ({"ties": "pesimistic"}, "did you mean 'pessimistic'"),
        ({"labels": np.zeros((300, 2))}, "must be a list"),
    ],
)
def test_bad_input_gets_one_sentence(options, sentence):
    vectors, labels = clusters()
    with pytest.raises(InputError, match=sentence) as caught:
        evaluate(vectors, options.pop("labels", labels), **{**QUICK, **options})
    assert "\n" not in str(caught.value)


def test_the_default_ks_are_cut_to_the_gallery():
    assert evaluate(*clusters(50), **QUICK).settings["ks"] == [1, 10]
