"""numpy releases the interpreter lock: a few threads share its work, as many as torch uses."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits


def in_parts(work: Callable[[slice], NDArray[Any]], count: int, step: int) -> NDArray[Any]:
    """Run `work` on consecutive slices by several threads; its arrays joined, in order.

    >>> in_parts(lambda some: np.array([some.stop - some.start]), 10, 4).tolist()
    [4, 4, 2]
    """
    slices = [slice(start, min(count, start + step)) for start in range(0, count, step)] or [slice(0, 0)]
    workers = torch.get_num_threads()
    if workers == 1 or len(slices) == 1:
        return np.concatenate([work(some) for some in slices])
    # A few runs of slices for each thread: handing over every slice alone costs as much as small slices take.
    run = -(-len(slices) // (2 * workers))
    runs = [slices[start : start + run] for start in range(0, len(slices), run)]
    done = _pool(workers).map(lambda some: np.concatenate([work(s) for s in some]), runs)
    return np.concatenate(list(done))


class _OneThreadEach:
    """Several evaluations may overlap: the first to come changes the setting, the last to go restores it."""

    def __init__(self) -> None:
        self.lock, self.inside, self.threads = threading.Lock(), 0, 1
        self.limits: threadpool_limits | None = None

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.threads, self.limits = torch.get_num_threads(), threadpool_limits(1, user_api="blas")
                torch.set_num_threads(1)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0 and self.limits is not None:
                torch.set_num_threads(self.threads)
                self.limits.restore_original_limits()


_the_one = _OneThreadEach()


def one_thread_each() -> AbstractContextManager[None]:
    """Within, a product of torch or numpy uses the thread that asks for it and no other."""
    return _the_one


def threads() -> int:
    """How many threads torch has been given, whatever an evaluation has set meanwhile."""
    return _the_one.threads if _the_one.inside else torch.get_num_threads()


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="forerank-count")
