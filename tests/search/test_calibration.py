"""Thresholds: chosen right by hand, and as good on fresh data as they claim."""

import numpy as np
import pytest

from forerank.errors import InputError
from forerank.search import Index, Row, calibrate, open_engine
from forerank.search.calibration import (
    Trials,
    choose_threshold,
    promise,
    run_trials,
)
from forerank.search.distinct import search_distinct
from forerank.search.vote import count_votes, vote_on_hits


def make_index(address, vectors, labels, contents=None):
    engine = open_engine(address)
    vectors = np.asarray(vectors, np.float32)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    names = contents or [f"{i:032x}" for i in range(len(labels))]
    rows = [Row(f"{i:05d}.png", label, names[i], 1, 1) for i, label in enumerate(labels)]
    with engine.update(vectors.shape[1], "m") as update:
        update.put(rows, vectors)
        update.complete(rows, {"model": {"fingerprint": "m"}, "root": ".", "labelled": True}, None)
    return Index(engine)


def angle(degrees):
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]


def test_trials_by_hand(address):
    """a at 0 and 10 degrees, b at 14 and 90, c alone at 180."""
    index = make_index(address, [angle(x) for x in (0, 10, 14, 90, 180)], list("aabbc"))
    trials = run_trials(index.engine, None, None)
    by_label = np.argsort(trials.labels, kind="stable")
    cosine = np.cos(np.radians([10, 4, 4, 76])).tolist()
    np.testing.assert_allclose(np.sort(trials.nearest[by_label][:2]), np.sort(cosine[:2]), atol=1e-5)
    assert sorted(trials.correct[by_label][:4].tolist()) == [False, False, True, True]
    assert not np.isfinite(trials.nearest[trials.labels == "c"]).any()  # its class has nothing else to find
    np.testing.assert_allclose(trials.nearest_other[trials.labels == "c"], np.cos(np.radians(90)), atol=1e-5)


def test_a_copy_of_the_query_proves_nothing(tmp_path):
    same = ["00" * 16, "00" * 16, "11" * 16, "22" * 16]
    index = make_index(tmp_path / "i", [angle(x) for x in (0, 0, 30, 50)], list("aabb"), same)
    trials = run_trials(index.engine, None, None)
    assert not np.isfinite(trials.nearest[trials.labels == "a"]).any()


def test_the_threshold_by_hand():
    """Present: 0.9 right, 0.8 right, 0.7 wrong, 0.6 right. Absent: 0.75, 0.5, 0.4, 0.3, all wrong."""
    trials = Trials(
        np.array([0.9, 0.8, 0.7, 0.6]),
        np.array([True, True, False, True]),
        np.array([0.75, 0.5, 0.4, 0.3]),
        np.array(list("abcd")),
    )
    # At 0.6: 3 right of 5 given. At 0.75: 2 of 3. At 0.8: 2 of 2.
    assert choose_threshold(trials, precision=0.6, absent=0.5, min_answers=1).similarity == pytest.approx(0.6)
    assert choose_threshold(trials, precision=0.65, absent=0.5, min_answers=1).similarity == pytest.approx(
        0.75
    )
    strict = choose_threshold(trials, precision=0.95, absent=0.5, min_answers=1)
    assert (strict.similarity, strict.precision) == (pytest.approx(0.8), 1.0)
    assert (strict.answered, strict.false_answers) == (0.5, 0.0)
    # Were nothing ever absent, 0.6 would give 3 of 4.
    assert choose_threshold(trials, precision=0.75, absent=0.0, min_answers=1).similarity == pytest.approx(
        0.6
    )


def test_a_precision_out_of_reach_is_refused_with_the_best():
    trials = Trials(np.array([0.9, 0.5]), np.array([False, True]), np.array([0.3, 0.2]), np.array(["a", "b"]))
    with pytest.raises(
        InputError,
        match=r"no threshold gives a precision of 99\.0% with 1 answers or more: the best is 50\.0%",
    ):
        choose_threshold(trials, precision=0.99, absent=0.5, min_answers=1)


def test_a_few_lucky_answers_are_no_threshold_and_no_certainty():
    """Fifteen right answers at the top, then chance: with twenty asked for, luck is not enough."""
    nearest = np.concatenate([np.linspace(1, 0.95, 15), np.linspace(0.9, 0.1, 85)])
    correct = np.concatenate([np.ones(15, bool), np.arange(85) % 2 == 0])
    trials = Trials(nearest, correct, np.full(100, 0.0), np.array([f"c{i}" for i in range(100)]))
    with pytest.raises(InputError, match="with 20 answers or more"):
        choose_threshold(trials, precision=0.99, absent=0.5)
    lucky = choose_threshold(trials, precision=0.99, absent=0.5, min_answers=1)
    assert lucky.precision == 1.0
    assert lucky.low == pytest.approx(15 / (15 + 1.96**2), abs=0.03)  # not "100% to 100%"


def clusters(rng, classes, per_class, dim=16, noise=0.42):
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), per_class)
    vectors = centres[labels] + noise * np.linalg.norm(centres, axis=1).mean() / np.sqrt(dim) * rng.normal(
        size=(len(labels), dim)
    ) * rng.uniform(0.5, 3.0, (len(labels), 1))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def test_the_promise_holds_on_fresh_data(tmp_path):
    """Calibrated on some classes, the precision measured on others mostly lies in the stated interval."""
    inside, errors = 0, []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        results = []
        for part in range(2):
            vectors, labels = clusters(rng, 120, 4)
            similarity = vectors @ vectors.T
            np.fill_diagonal(similarity, -9)
            alike = labels[:, None] == labels[None, :]
            same = np.where(alike & (similarity > -5), similarity, -9).max(1)
            other = np.where(alike, -9, similarity).max(1)
            trials = Trials(np.maximum(same, other), same > other, other, labels.astype(str))
            if part == 0:
                chosen = choose_threshold(trials, precision=0.9, absent=0.5, seed=seed)
            else:
                right = (trials.nearest >= chosen.similarity) & trials.correct
                given = (trials.nearest >= chosen.similarity).sum() + (other >= chosen.similarity).sum()
                results.append(right.sum() / given)
        inside += chosen.low - 0.02 <= results[0] <= chosen.high + 0.02
        errors.append(results[0] - 0.9)
        assert chosen.low <= chosen.precision <= chosen.high
    assert inside >= 24
    assert abs(np.mean(errors)) < 0.02  # no systematic optimism


def test_stored_and_used(address):
    rng = np.random.default_rng(0)
    vectors, labels = clusters(rng, 40, 4, noise=0.3)
    index = make_index(address, vectors, [f"class {i}" for i in labels])
    result = calibrate(index, precision=0.9)
    index.close()
    again = Index(open_engine(address))
    assert again.threshold == pytest.approx(result.similarity)
    assert again.meta["threshold"]["classes"] == 40
    stranger = rng.normal(size=16)
    assert again.search(stranger, 3).found == (again.search(stranger, 3)[0].similarity >= result.similarity)
    near = again.search(vectors[0], 3)
    assert near.found
    assert near.to_dict()["hits"][0]["trusted"]
    # Survives the next update of the same model.
    rows = list(again.engine.all_rows())
    with again.engine.update(16, "m") as update:
        update.complete(rows[:-1], again.meta, None)
    again.close()
    assert Index(open_engine(address)).threshold == pytest.approx(result.similarity)


def test_validation_images_with_labels_outside_the_catalogue(tmp_path):
    """A query whose class is not there counts only among the absent."""
    index = make_index(tmp_path / "i", [angle(x) for x in (0, 5, 90, 95)], list("aabb"))
    queries = np.array([angle(x) for x in (2, 93, 200)], np.float32)
    trials = run_trials(index.engine, queries, ["a", "b", "unheard of"])
    assert np.isfinite(trials.nearest).tolist() == [True, True, False]
    assert np.isfinite(trials.nearest_other).all()


def test_numbers_that_make_no_sense_are_refused(tmp_path):
    index = make_index(tmp_path / "index", [angle(x) for x in (0, 10, 14, 90)], list("aabb"))
    for wrong in ({"max_queries": -3}, {"max_queries": 0}, {"seed": -1}):
        with pytest.raises(InputError, match="at least one query and a seed from 0 on"):
            calibrate(index, **wrong)


def test_an_index_without_labels_is_refused(tmp_path):
    index = make_index(tmp_path / "i", [angle(x) for x in (0, 5)], ["", ""])
    with pytest.raises(InputError, match="no labels"):
        calibrate(index)


def hard_to_tell(seed=0, classes=30, per_class=6):
    """Classes that overlap so much that only a few very close pairs can be trusted."""
    rng = np.random.default_rng(seed)
    vectors, labels = clusters(rng, classes, per_class, noise=1.2)
    # A few copies with a little noise: right answers at the very top.
    for i in range(0, 2 * per_class, 2):
        vectors[i + 1] = vectors[i] + 0.001 * rng.normal(size=vectors.shape[1])
    return vectors, [f"class {i:02d}" for i in labels]


def test_a_threshold_that_answers_almost_nothing_is_not_stored(tmp_path):
    vectors, labels = hard_to_tell()
    index = make_index(tmp_path / "i", vectors, labels)
    refusal = r"only \d\.\d% of the questions about things in the catalogue.*Nothing was stored.*--anyway"
    with pytest.raises(InputError, match=refusal):
        calibrate(index, precision=0.95, min_answers=5)
    assert index.threshold is None
    assert "threshold" not in index.meta
    result = calibrate(index, precision=0.95, min_answers=5, anyway=True)
    assert result.answered < 0.1
    assert index.threshold == pytest.approx(result.similarity)


def test_the_curve_is_stored_and_is_what_counting_gives(tmp_path):
    vectors, labels = clusters(np.random.default_rng(0), 40, 5)
    index = make_index(tmp_path / "i", vectors, [f"class {i}" for i in labels])
    result = calibrate(index, precision=0.9, absent=0.5)
    curve = index.meta["threshold"]["curve"]
    assert 20 <= len(curve) <= 60
    assert all(set(point) == {"similarity", "precision", "answered"} for point in curve)
    answered = [point["answered"] for point in curve]
    assert answered == sorted(answered)
    assert answered[-1] == 1.0
    trials = run_trials(index.engine, None, None)
    for point in curve[:: len(curve) // 5]:
        given = trials.nearest >= point["similarity"] - 1e-6
        absent = trials.nearest_other >= point["similarity"] - 1e-6
        expected = (given & trials.correct).mean() / (given.mean() + absent.mean())
        assert point["precision"] == pytest.approx(expected, abs=0.01)
        assert point["answered"] == pytest.approx(given.mean(), abs=0.01)
    assert any(abs(point["similarity"] - result.similarity) < 0.05 for point in curve)


def test_a_vote_by_hand():
    vote = count_votes(["a", "b", "b"], [0.9, 0.5, 0.3])
    assert (vote.label, vote.votes, vote.support) == ("b", 2, pytest.approx(0.8 / 3))
    vote = count_votes(["a", "b"], [0.7, 0.5])
    assert (vote.label, vote.support) == ("a", pytest.approx(0.35))
    assert count_votes([], []) is None


def test_votes_against_a_plain_loop(tmp_path):
    """Every query by brute force: sort, leave itself out, let the nearest vote; again without its class."""
    vectors, labels = clusters(np.random.default_rng(1), 12, 5, noise=0.6)
    names = [f"class {i:02d}" for i in labels]
    index = make_index(tmp_path / "i", vectors, names)
    trials = run_trials(index.engine, None, None, neighbours=7)
    stored = {row.path: row.id for row in index.engine.all_rows()}
    assert len(stored) == len(names) == len(trials.labels)
    unit = vectors.astype(np.float32).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    similarity = unit @ unit.T
    for i in range(len(names)):
        order = [j for j in np.argsort(-similarity[i]) if j != i]
        vote = count_votes([names[j] for j in order], [similarity[i, j] for j in order], 7)
        assert trials.correct[i] == (vote.label == names[i])
        assert trials.nearest[i] == pytest.approx(vote.support, abs=1e-5)
        apart = [j for j in order if names[j] != names[i]]
        vote = count_votes([names[j] for j in apart], [similarity[i, j] for j in apart], 7)
        assert trials.nearest_other[i] == pytest.approx(vote.support, abs=1e-5)


def test_the_vote_is_stored_beside_the_nearest_image(tmp_path):
    vectors, labels = clusters(np.random.default_rng(0), 40, 6, noise=0.5)
    index = make_index(tmp_path / "i", vectors, [f"class {i}" for i in labels])
    voted = calibrate(index, precision=0.8, neighbours=5)
    assert index.threshold is None  # searches by the nearest image are not calibrated yet
    nearest = calibrate(index, precision=0.8)
    assert index.threshold == pytest.approx(nearest.similarity)
    assert index.meta["threshold"]["vote"]["similarity"] == pytest.approx(voted.similarity)
    assert index.meta["threshold"]["vote"]["neighbours"] == 5
    assert "a vote of the nearest 5" in str(voted)
    # The winner is the one that the search page shows, and it is trusted from the stored support on.
    vote = vote_on_hits(index.meta, index.search(vectors[0], 8).hits)
    assert vote == search_distinct(index, index.engine.vectors([0])[0], 1).vote
    assert (vote.voters, vote.threshold) == (5, voted.similarity)
    assert vote.trusted == (vote.support >= voted.similarity)
    stranger = vote_on_hits(index.meta, index.search(-vectors.mean(axis=0), 8).hits)
    assert not stranger.trusted
    assert "no match" in str(stranger)
    with pytest.raises(InputError, match="from 1 to 100 nearest images"):
        calibrate(index, neighbours=0)


def test_no_promise_is_a_certainty():
    for low in (0.5, 0.93, 0.9999, 1.0):
        said = promise({"precision": 1.0, "low": low, "high": 1.0})
        assert "100" not in said
    assert promise({"precision": 0.9, "low": 0.85, "high": 0.94}).startswith("about 90%")
