"""Labels, row numbers and ks as they are given, checked once and turned into arrays."""

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError
from forerank.ranking.hard import MEMORY


def label_codes(labels: ArrayLike, count: int, what: str) -> NDArray[np.int64]:
    """Each row's number (N,) among the sorted distinct labels."""
    try:
        array = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    except ValueError as error:
        raise InputError(f"{what} must be a list of numbers or strings, one for each embedding.") from error
    if array.ndim != 1:
        raise InputError(f"{what} must be a list, one for each embedding, not of shape {array.shape}.")
    if len(array) != count:
        raise InputError(f"there are {count:,} embeddings but {len(array):,} {what}: one is needed for each.")
    # numpy would write a number among strings as a string, and 1 and "1" would be one class.
    if not _of_one_kind(array if isinstance(labels, np.ndarray | torch.Tensor) else labels, array.dtype):
        raise InputError(f"{what} must be all numbers or all strings, none of them missing or NaN.")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _of_one_kind(labels: Any, kind: np.dtype[Any]) -> bool:
    if kind.kind == "f":
        return not np.isnan(np.asarray(labels)).any()
    if kind.kind in "iub" or (kind.kind in "US" and isinstance(labels, np.ndarray)):
        return True
    return all(isinstance(label, str | bytes) for label in labels) or all(
        isinstance(label, int | float | np.number) and label == label for label in labels
    )


def check_numbers(*, bootstrap: int = 0, seed: int = 0, memory: int = MEMORY) -> None:
    """Refuse counts and sizes that would fail later, or mean nothing."""
    for name, value, least in (("bootstrap", bootstrap, 0), ("seed", seed, 0), ("memory", memory, 1)):
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} must be a whole number, at least {least}, not {value!r}.")


def row_numbers(chosen: ArrayLike | None, count: int, what: str) -> NDArray[np.int64]:
    """Row numbers from numbers, a mask or None (all rows)."""
    if chosen is None:
        return np.arange(count, dtype=np.int64)
    array = chosen.detach().cpu().numpy() if isinstance(chosen, torch.Tensor) else np.asarray(chosen)
    if array.dtype == bool:
        if array.shape != (count,):
            raise InputError(f"{what} is a mask of {array.size:,} values for {count:,} embeddings.")
        array = np.flatnonzero(array)
    if array.size == 0:
        raise InputError(f"{what} is empty: at least one row is needed.")
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{what} must be row numbers or a mask.")
    outside = array[(array < 0) | (array >= count)]
    if len(outside):
        raise InputError(f"{what} names row {int(outside[0])}, but rows go from 0 to {count - 1:,}.")
    if len(np.unique(array)) != len(array):
        raise InputError(f"{what} names a row twice.")
    return array.astype(np.int64)


def ranked_items(queries: NDArray[np.int64], gallery: NDArray[np.int64]) -> int:
    """How many gallery items a query ranks at most; the query itself does not count."""
    return len(gallery) - int(np.isin(queries, gallery).all())


def checked_ks(
    ks: Iterable[int], queries: NDArray[np.int64], gallery: NDArray[np.int64], *, cut: bool
) -> tuple[int, ...]:
    """The ks as asked; those beyond what a query can rank are refused, or cut away."""
    try:
        wanted = tuple(operator.index(k) for k in ks)
    except TypeError:
        wanted = ()
    if not wanted or min(wanted) < 1:
        raise InputError(f"ks must be a list of positive whole numbers, not {ks!r}.")
    most = ranked_items(queries, gallery)
    if cut:
        return tuple(k for k in wanted if k <= most) or (1,)
    if max(wanted) > most:
        raise InputError(
            f"recall@{max(wanted)} cannot be measured here: a query ranks only {most:,} gallery items."
        )
    return wanted
