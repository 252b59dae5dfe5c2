"""numpy releases the interpreter lock: a few threads share its work, as many as torch uses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def pool() -> ThreadPoolExecutor:
    """Threads for numpy's work."""
    return _pool(torch.get_num_threads())


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="forerank-count")


def in_parts(work: Callable[[slice], NDArray[Any]], count: int, step: int) -> NDArray[Any]:
    """Run `work` on consecutive slices by several threads and join what it returns."""
    slices = [slice(start, min(count, start + step)) for start in range(0, count, step)]
    if len(slices) < 2:
        return work(slice(0, count))
    return np.concatenate(list(pool().map(work, slices)))
