"""Batches of k classes x |P| images: the properties the documentation promises."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerank.data import ClassBalancedSampler
from forerank.errors import InputError

SIZES = st.lists(st.integers(2, 9), min_size=4, max_size=12)


def labels_of(sizes: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(2, 4), st.integers(2, 5), st.integers(0, 3), st.integers(1, 30))
def test_what_a_batch_and_an_epoch_hold(sizes: list[int], k: int, p: int, seed: int, batches: int) -> None:
    labels = labels_of(sizes)
    sampler = ClassBalancedSampler(labels, k, p, seed=seed, batches=batches)
    visits: Counter[int] = Counter()
    shown: dict[int, list[int]] = {c: [] for c in range(len(sizes))}
    for batch in sampler:
        assert len(batch) == k * p
        runs = np.array(batch).reshape(k, p)
        classes = labels[runs[:, 0]]
        assert (labels[runs] == classes[:, None]).all()  # a run is of one class
        assert len(set(classes.tolist())) == k  # classes are distinct
        for run, c in zip(runs.tolist(), classes.tolist(), strict=True):
            assert len(set(run)) == min(p, sizes[c])  # topped up only where the class is smaller
            visits[c] += 1
            shown[c] += run
    assert sum(visits.values()) == batches * k
    counts = [visits[c] for c in range(len(sizes))]
    assert max(counts) - min(counts) <= 1
    for c, images in shown.items():  # no image again before all have been shown
        if sizes[c] >= p:
            assert len(set(images)) == min(sizes[c], visits[c] * p)
            assert max(Counter(images).values(), default=0) <= -(-len(images) // sizes[c]) + 1


def test_len_is_the_number_of_batches() -> None:
    labels = labels_of([5, 5, 5, 5, 5, 5])
    sampler = ClassBalancedSampler(labels, 3, 4)
    assert len(sampler) == 3 == len(list(sampler))  # ceil(30 / 12)


def test_seed_and_epoch_fix_every_batch() -> None:
    labels = labels_of([6] * 10)
    first = ClassBalancedSampler(labels, 4, 3, seed=1)
    again = ClassBalancedSampler(labels, 4, 3, seed=1)
    assert list(first) == list(again) == list(first)
    again.set_epoch(1)
    assert list(first) != list(again)
    assert list(first) != list(ClassBalancedSampler(labels, 4, 3, seed=2))


@pytest.mark.parametrize("mode", ["distinct", "official"])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_give_the_batch_of_one_process(world: int, mode: str) -> None:
    labels = labels_of([6] * 12)
    alone = ClassBalancedSampler(labels, 8, 3, seed=5, mode=mode)
    ranks = [
        ClassBalancedSampler(labels, 8, 3, seed=5, mode=mode, rank=r, world_size=world) for r in range(world)
    ]
    for sampler in (alone, *ranks):
        sampler.set_epoch(2)
    joined = [[i for part in parts for i in part] for parts in zip(*ranks, strict=True)]
    assert joined == list(alone)
    assert len(ranks[0]) == len(alone)


@pytest.mark.parametrize("mode", ["distinct", "official"])
def test_state_in_the_middle_of_an_epoch(mode: str) -> None:
    labels = labels_of([7] * 9)
    whole = ClassBalancedSampler(labels, 3, 2, seed=3, mode=mode, with_draws=True)
    whole.set_epoch(4)
    expected = list(whole)
    running = ClassBalancedSampler(labels, 3, 2, seed=3, mode=mode, with_draws=True)
    running.set_epoch(4)
    batches = iter(running)
    for _ in range(5):
        next(batches)
    for state in (running.state_dict(), running.state_dict(consumed=3)):
        resumed = ClassBalancedSampler(labels, 3, 2, seed=3, mode=mode, with_draws=True)
        resumed.load_state_dict(state)
        resumed.set_epoch(4)  # the loop says so at the start of every epoch; it must not start it again
        assert list(resumed) == expected[state["position"] :]
        resumed.set_epoch(5)
        assert len(list(resumed)) == len(resumed)


def test_a_foreign_state_is_refused() -> None:
    sampler = ClassBalancedSampler(labels_of([4] * 5), 2, 2, seed=1)
    with pytest.raises(InputError, match="has seed 9, this sampler has 1"):
        sampler.load_state_dict({"epoch": 0, "position": 0, "seed": 9, "batches": len(sampler)})


def test_draws_never_repeat_for_an_image() -> None:
    labels = labels_of([2, 3, 5, 9])
    sampler = ClassBalancedSampler(labels, 2, 4, with_draws=True)
    met: list[tuple[int, int]] = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        met += [pair for batch in sampler for pair in batch]
    assert len(met) == len(set(met))


def test_categories_harden_a_batch() -> None:
    labels = labels_of([4] * 40)
    categories = labels // 10  # four categories of ten classes
    sampler = ClassBalancedSampler(labels, 8, 2, categories=categories, categories_per_batch=2, batches=200)
    visits: Counter[int] = Counter()
    for batch in sampler:
        assert len(set(categories[batch])) == 2
        classes = set(labels[batch].tolist())
        assert len(classes) == 8
        visits.update(classes)
    assert min(visits.values()) > 0.6 * max(visits.values())  # classes still come about equally often


def test_categories_too_small_for_a_batch_take_a_further_one() -> None:
    labels = labels_of([3] * 9)
    sampler = ClassBalancedSampler(labels, 6, 2, categories=labels // 3, categories_per_batch=1, batches=50)
    for batch in sampler:
        assert len(set(labels[batch].tolist())) == 6
        assert len(set((labels // 3)[batch].tolist())) == 2


def test_the_official_draw_collides_as_often_as_the_birthday_rule_says() -> None:
    labels = labels_of([4] * 500)
    sampler = ClassBalancedSampler(labels, 24, 4, mode="official", batches=1500)
    collided = np.mean([len(set(labels[batch].tolist())) < 24 for batch in sampler])
    expected = 1 - np.prod(1 - np.arange(24) / 500)
    assert abs(collided - expected) < 4 * np.sqrt(expected * (1 - expected) / 1500)
    repeats = [len(set(batch[:4])) < 4 for batch in sampler]
    assert np.mean(repeats) > 0.8  # four of four with replacement: 1 - 4!/4^4 = 91%


def test_single_images_are_left_out() -> None:
    sampler = ClassBalancedSampler(["a", "a", "b", "b", "lonely"], 2, 2)
    assert sampler.left_out == 1
    assert 4 not in {i for batch in sampler for i in batch}


@pytest.mark.parametrize(
    ("labels", "arguments", "said"),
    [
        ([0, 0, 1, 1], {"classes_per_batch": 3}, "there are 2: lower classes_per_batch"),
        ([0, 1, 2, 3], {}, "every class has fewer than two images"),
        ([], {}, "every class has fewer than two images"),
        ([0, 0, 1, 1], {"images_per_class": 1}, "at least 2 classes x 2 images"),
        ([0, 0, 1, 1], {"world_size": 3}, "shared equally among 3 processes"),
        ([0, 0, 1, 1], {"rank": 2, "world_size": 2}, "rank 2"),
        ([0, 0, 1, 1], {"mode": "offical"}, "did you mean 'official'"),
        ([0, 0, 1, 1], {"categories": [1, 2]}, "categories has shape"),
        (
            [0, 0, 1, 1],
            {"categories": [1, 1, 2, 2], "categories_per_batch": 3},
            "needs as many of them; there are 2",
        ),
    ],
)
def test_bad_input(labels: list[int], arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        ClassBalancedSampler(labels, **{"classes_per_batch": 2, "images_per_class": 2, **arguments})
    assert said in str(error.value)
