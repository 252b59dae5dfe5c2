"""Answers given together are the answers given one by one."""

import threading

import numpy as np
import pytest

from forerank.search.engine import RowNeighbours
from forerank.web.shared_search import SharedSearch
from waiting import LIMIT, wait_until


def exact(queries, k, where=None):
    order = np.argsort(-queries, axis=1)[:, :k]
    return RowNeighbours(order, np.take_along_axis(queries, order, axis=1))


def all_at_once(together, ask, count, begun, go_on):
    """`ask(0)`, and while its search is running, which sets `begun` and waits for `go_on`, all the others."""
    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(count)]
    threads[0].start()
    assert begun.wait(LIMIT)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(together._waiting) == count - 1, "all the others wait")
    go_on.set()
    for thread in threads:
        thread.join(LIMIT)


def test_everybody_gets_their_own_answer():
    sizes, begun, go_on = [], threading.Event(), threading.Event()

    def search(queries, k, where):
        sizes.append(len(queries))
        begun.set()
        assert go_on.wait(LIMIT)
        return exact(queries, k)

    together = SharedSearch(search, most=16)
    answers = {}

    def ask(i):
        query = np.random.default_rng(i).normal(size=(1 + i % 3, 30)).astype(np.float32)
        answers[i] = (together(query, 1 + i % 7), exact(query, 1 + i % 7))

    all_at_once(together, ask, 60, begun, go_on)
    assert len(answers) == 60
    for given, expected in answers.values():
        np.testing.assert_array_equal(given.ids, expected.ids)
        np.testing.assert_array_equal(given.similarities, expected.similarities)
    assert sum(sizes) == sum(1 + i % 3 for i in range(60))
    assert len(sizes) == 5  # the first alone, the others together, 16 at a time


def test_a_fault_reaches_those_it_concerns_and_nobody_else():
    calls = []

    def faulty(queries, k, where):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("once")
        return exact(queries, k)

    together = SharedSearch(faulty)
    query = np.ones((1, 3), np.float32)
    with pytest.raises(RuntimeError, match="once"):
        together(query, 1)
    assert together(query, 1).ids.shape == (1, 1)


def test_queries_with_different_filters_are_not_mixed():
    from forerank.search.engine import Filter

    seen, begun, go_on = [], threading.Event(), threading.Event()

    def search(queries, k, where):
        seen.append((len(queries), where))
        begun.set()
        assert go_on.wait(LIMIT)
        return exact(queries * (-1 if where.label else 1), k)

    together = SharedSearch(search)
    answers = {}

    def ask(i):
        where = Filter(label="a") if i % 2 else Filter()
        answers[i] = together(np.array([[0.1, 0.9]], np.float32), 1, where).ids.tolist()

    all_at_once(together, ask, 20, begun, go_on)
    assert answers == {i: [[0]] if i % 2 else [[1]] for i in range(20)}
    assert sorted(size for size, _ in seen) == [1, 9, 10]  # the first, and one search for each filter
