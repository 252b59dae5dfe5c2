"""From images to vectors: threads decode the next images while the network works on the last ones."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from forerank.data.threads import map_in_threads

T = TypeVar("T")
Array = NDArray[np.float32]


def compute_vectors(
    read: Callable[[T], Array | None],
    items: Sequence[T],
    network: Callable[[Array], Array],
    *,
    batch_size: int,
    workers: int | None = None,
) -> Iterator[tuple[list[int], Array, int]]:
    """(positions (n,), vectors (n, D), items taken) of batch after batch, in order.

    At most three batches of views are held at once, however many items there are.

    Args:
        read: an item -> its view as an array, or None to leave the item out; called in several threads.
        workers: threads that read; None: one for each core, eight at most.
        network: views (n, ...) -> vectors (n, D); called in the thread that asks for the results.

    >>> double = lambda views: 2 * views
    >>> for positions, vectors, taken in compute_vectors(
    ...     lambda i: None if i == 1 else np.float32([i]), [0, 1, 2], double, batch_size=2
    ... ):
    ...     print(positions, vectors.tolist(), taken)
    [0] [[0.0]] 2
    [2] [[4.0]] 1
    """
    threads = workers or max(1, min(8, os.cpu_count() or 1, len(items)))
    views = map_in_threads(read, items, workers=threads, ahead=2 * batch_size)
    with closing(views):  # an interrupted caller does not leave threads decoding
        for start in range(0, len(items), batch_size):
            batch = list(islice(views, batch_size))
            kept = [(start + i, view) for i, view in enumerate(batch) if view is not None]
            if kept:
                positions = [position for position, _ in kept]
                yield positions, network(np.stack([view for _, view in kept])), len(batch)
