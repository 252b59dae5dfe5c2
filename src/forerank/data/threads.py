"""Call a function on many items in threads, in their order; Ctrl-C ends it and cannot lock it up."""

import _thread
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import count, islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(
    function: Callable[[T], R], items: Iterable[T], *, workers: int, ahead: int = 1024
) -> Generator[R, None, None]:
    """`function(item)` of every item, in order; what it raises is raised here.

    An executor's `submit` and `Thread.start` take locks in Python code, and a KeyboardInterrupt that arises
    between taking one and letting go of it leaves the workers waiting for ever. What is used here takes none.

    Args:
        workers: threads.
        ahead: items that may be worked on before the result of the first of them is taken.

    >>> list(map_in_threads(str.upper, "abc", workers=2))
    ['A', 'B', 'C']
    """
    todo: SimpleQueue[tuple[int, T] | None] = SimpleQueue()
    done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        while (job := todo.get()) is not None:
            place, item = job
            try:
                done.put((place, function(item), None))
            except BaseException as error:  # raised again where the result is asked for
                done.put((place, None, error))

    source, sent, early = iter(items), 0, dict[int, tuple[Any, BaseException | None]]()
    try:
        for _ in range(workers):
            _thread.start_new_thread(work, ())
        for place in count():
            for item in islice(source, place + ahead - sent):
                todo.put((sent, item))
                sent += 1
            if place == sent:
                return
            while place not in early:
                number, result, error = done.get()
                early[number] = result, error
            result, error = early.pop(place)
            if error is not None:
                raise error
            yield result
    finally:
        with suppress(Empty):
            while True:
                todo.get_nowait()
        for _ in range(workers):
            todo.put(None)
