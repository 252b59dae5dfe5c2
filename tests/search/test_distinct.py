"""Examples, votes and different results, on vectors that can be followed by hand."""

import numpy as np
import pytest

from forerank.errors import InputError
from forerank.search import Index
from forerank.search.distinct import search_distinct
from forerank.search.examples import combine
from forerank.search.vote import count_votes


def test_examples_that_cancel_are_refused():
    with pytest.raises(InputError, match="cancel"):
        combine(np.eye(2)[:1], np.eye(2)[:1], share=1.0)
    with pytest.raises(InputError, match="at least one example"):
        combine(np.empty((0, 2)), np.eye(2))
    np.testing.assert_allclose(combine(np.array([[2.0, 0.0], [0.0, 5.0]])), np.sqrt([0.5, 0.5]), rtol=1e-6)


def test_a_vote_leaves_unlabelled_images_out():
    vote = count_votes(["", "b", "a", "", "a", "b"], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], 3)
    assert (vote.label, vote.votes, vote.voters, vote.similarity) == ("a", 2, 3, 0.7)
    assert vote.support == pytest.approx((0.7 + 0.5) / 3)
    assert count_votes([""], [0.9]) is None


@pytest.fixture
def index(tmp_path, make_rows, meta):
    """Images at growing angles from the first axis: 10 of class a, then 10 of class b, and so on."""
    from dataclasses import replace

    from forerank.search import open_engine

    engine = open_engine(tmp_path / "index")
    angles = np.linspace(0, 1.5, 40)
    vectors = np.zeros((40, 16), np.float32)
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    rows = [
        replace(row, label="abcd"[i // 10])
        for i, row in enumerate(make_rows([f"{i:02}.jpg" for i in range(40)]))
    ]
    with engine.update(16, "model-a") as update:
        update.put(rows, vectors)
        update.complete(rows, meta, None)
    return Index(open_engine(tmp_path / "index"))


def test_one_per_class_goes_as_deep_as_it_must(index):
    query = index.engine.vectors([0])[0]
    answer = search_distinct(index, query, 4, without={0}, one_per_class=True)
    assert [result.hit.id for result in answer.results] == [1, 10, 20, 30]
    assert [hit.id for hit in answer.results[0].folded] == list(range(2, 10))
    assert answer.vote.votes == 7


def test_near_duplicates_stand_behind_the_nearest(index):
    query = index.engine.vectors([0])[0]
    step = np.cos(1.5 / 39 * 4.5)  # at most four steps away
    answer = search_distinct(index, query, 3, fold=float(step))
    assert [result.hit.id for result in answer.results] == [0, 5, 10]
    assert [hit.id for hit in answer.results[1].folded] == [6, 7, 8, 9]
    assert [result.hit.rank for result in answer.results] == [1, 6, 11]
