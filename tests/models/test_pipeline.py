"""The pipeline from images to vectors: order, what is left out, bounded memory, faults."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from forerank.models.pipeline import compute_vectors
from waiting import LIMIT


def test_every_item_is_computed_once_in_its_place_and_some_are_left_out() -> None:
    begun = [threading.Event() for _ in range(23)]

    def read(item: int) -> np.ndarray | None:
        begun[item].set()
        if item % 3 == 0 and item < 22:  # the next one is read before this one is ready
            assert begun[item + 1].wait(LIMIT)
        return None if item % 5 == 0 else np.float32([item])

    result = np.full((23, 1), np.nan)
    taken = 0
    batches = compute_vectors(read, range(23), lambda views: 2 * views, batch_size=4, workers=3)
    for positions, vectors, number in batches:
        assert len(positions) == len(vectors) <= 4
        result[positions] = vectors
        taken += number
    items = np.arange(23)
    np.testing.assert_array_equal(result[:, 0], np.where(items % 5, 2 * items, np.nan))
    assert taken == 23


def test_no_more_than_three_batches_are_held_however_slow_the_network() -> None:
    """Items that were given to the readers count as held: sooner or later they are."""
    given, done, held = 0, 0, []

    class Items(list[int]):
        def __iter__(self) -> Iterator[int]:
            nonlocal given
            for item in super().__iter__():
                given += 1
                yield item

    def network(views: np.ndarray) -> np.ndarray:
        nonlocal done
        held.append(given - done)
        done += len(views)
        return views

    def read(item: int) -> np.ndarray:
        return np.zeros(1, np.float32)

    for _ in compute_vectors(read, Items(range(200)), network, batch_size=8, workers=4):
        pass
    assert done == 200
    assert 8 < max(held) <= 3 * 8


def test_what_a_reader_raises_is_raised_to_the_caller() -> None:
    def read(item: int) -> np.ndarray:
        if item == 6:
            raise ValueError("item 6")
        return np.zeros(1, np.float32)

    batches = compute_vectors(read, range(20), lambda views: views, batch_size=4)
    assert next(batches)[0] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="item 6"):
        next(batches)
