"""Counting on one tile of similarities, compiled for the processor it runs on.

What torch needs several passes for, and memory for flags, is one pass here over numbers that are still in the
cache: a comparison with each threshold, the pairs too near to tell decided on the spot by a dot product in
float64. Only what even that leaves open is handed back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

SEGMENT = 256  # numbers of a row looked at together: they and their limits stay in the first-level cache
GROUP = 64  # a segment is searched for its undecided numbers by groups
TOGETHER = 4  # rows whose comparisons with the limits of the columns share the reading of those limits
FEW = 64  # up to one number in FEW that reaches a threshold: taken one by one

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(**options: Any) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        try:
            compiled: F = njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # nowhere to keep the compiled code: compile again in each process
            compiled = njit(nogil=True, **options)(function)
        return compiled

    return decorate


class Side(NamedTuple):
    """The queries of a tile. Thresholds ascend, padding is +inf; limits are of the tile's type.

    `low` and `high` are (C, P) where the queries are the tile's rows, (P, C) where they are its columns.
    """

    low: NDArray[Any]  # an item below is surely below the threshold
    high: NDArray[Any]  # an item above is surely above the threshold
    number: NDArray[np.int64]  # (C,) thresholds of each query
    threshold: NDArray[np.float64]  # (C, P)
    vectors: NDArray[np.float32]  # (C, D)


@_compiled(fastmath={"reassoc", "contract"})
def _dot(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    total = 0.0
    for k in range(first.shape[0]):
        total += np.float64(first[k]) * np.float64(second[k])
    return total


# Counts of a type as narrow as the numbers: or the compiler spreads the comparisons over wider registers.
@_compiled()
def _reaching(values: NDArray[Any], low: float) -> int:
    count = np.uint32(0)
    for j in range(values.shape[0]):
        count = np.uint32(count + np.uint32(1 if values[j] >= low else 0))
    return count  # type: ignore[return-value]


@_compiled()
def _reaching_own(values: NDArray[Any], low: NDArray[Any]) -> int:
    count = np.uint32(0)
    for j in range(values.shape[0]):
        count = np.uint32(count + np.uint32(1 if values[j] >= low[j] else 0))
    return count  # type: ignore[return-value]


@_compiled()
def _within(values: NDArray[Any], low: float, high: float) -> int:
    count = np.uint32(0)
    for j in range(values.shape[0]):
        count = np.uint32(count + np.uint32(1 if (values[j] >= low) & (values[j] <= high) else 0))
    return count  # type: ignore[return-value]


@_compiled()
def _within_own(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> int:
    count = np.uint32(0)
    for j in range(values.shape[0]):
        inside = (values[j] >= low[j]) & (values[j] <= high[j])
        count = np.uint32(count + np.uint32(1 if inside else 0))
    return count  # type: ignore[return-value]


# A branch that is taken every other time costs more than writing down a place that turns out wrong.
@_compiled()
def _find(values: NDArray[Any], low: float, high: float, hits: NDArray[np.int64]) -> int:
    count = 0
    for j in range(values.shape[0]):
        hits[count] = j
        count += (values[j] >= low) & (values[j] <= high)
    return count


@_compiled()
def _find_own(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any], hits: NDArray[np.int64]) -> int:
    count = 0
    for j in range(values.shape[0]):
        hits[count] = j
        count += (values[j] >= low[j]) & (values[j] <= high[j])
    return count


@_compiled()
def _compare(values: NDArray[Any], low: float, high: float) -> tuple[int, int]:
    """How many are at least `low`, and above `high`."""
    reached, passed = np.uint32(0), np.uint32(0)
    for j in range(values.shape[0]):
        reached = np.uint32(reached + np.uint32(1 if values[j] >= low else 0))
        passed = np.uint32(passed + np.uint32(1 if values[j] > high else 0))
    return reached, passed  # type: ignore[return-value]


@_compiled()
def _compare_own(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], d: NDArray[Any],
    low: NDArray[Any], high: NDArray[Any], above: NDArray[np.uint32],
) -> tuple[int, int]:  # fmt: skip
    """The same for four rows at once with limits of each column's own, also adding to its count."""
    reached, passed = np.uint32(0), np.uint32(0)
    for j in range(low.shape[0]):
        floor, ceiling = low[j], high[j]
        up = np.uint32(
            np.uint32(1 if a[j] > ceiling else 0)
            + np.uint32(1 if b[j] > ceiling else 0)
            + np.uint32(1 if c[j] > ceiling else 0)
            + np.uint32(1 if d[j] > ceiling else 0)
        )
        above[j] = np.uint32(above[j] + up)
        passed = np.uint32(passed + up)
        reached = np.uint32(
            reached
            + np.uint32(1 if a[j] >= floor else 0)
            + np.uint32(1 if b[j] >= floor else 0)
            + np.uint32(1 if c[j] >= floor else 0)
            + np.uint32(1 if d[j] >= floor else 0)
        )
    return reached, passed  # type: ignore[return-value]


@_compiled()
def _decide(
    side: Side, items: NDArray[np.float32], query: int, item: int, p: int, margin: float,
    above: NDArray[np.uint32], i: int, j: int, rest: NDArray[np.int32], seen: NDArray[np.int64],
) -> None:  # fmt: skip
    """Count one pair at above[i, j] by its dot product, or note it in `rest`."""
    seen[1] += 1
    gap = _dot(side.vectors[query], items[item]) - side.threshold[query, p]
    if gap > margin:
        above[i, j] += 1
    elif gap >= -margin:
        rest[seen[0], 0], rest[seen[0], 1], rest[seen[0], 2] = query, item, p
        seen[0] += 1


@_compiled()
def _sparse_row(
    row: NDArray[Any], i: int, begin: int, end: int, side: Side, items: NDArray[np.float32], margin: float,
    above: NDArray[np.uint32], rest: NDArray[np.int32], seen: NDArray[np.int64],
) -> None:  # fmt: skip
    lows, highs = side.low[i], side.high[i]
    for group in range(begin, end, GROUP):
        values = row[group : min(end, group + GROUP)]
        if _reaching(values, lows[0]) == 0:
            continue
        for j in range(values.shape[0]):
            if values[j] < lows[0]:
                continue
            for p in range(side.number[i]):
                if values[j] > highs[p]:
                    above[i, p] += 1
                elif values[j] >= lows[p]:
                    _decide(side, items, i, group + j, p, margin, above, i, p, rest, seen)
                else:
                    break


@_compiled()
def count_rows(
    tile: NDArray[Any], start: int, stop: int, side: Side, items: NDArray[np.float32], margin: float,
    above: NDArray[np.uint32], rest: NDArray[np.int32], seen: NDArray[np.int64], room: int,
) -> None:  # fmt: skip
    """Rows start to stop of the tile are queries: add to `above` (C, P) how many items stand above.

    `margin` is the error of `_dot`. Pairs (query, item, threshold) that it leaves open are written to `rest`;
    `seen` counts these, and all pairs that it was needed for. With more than `room` of them it gives up: the
    counts are then worthless. So `rest` needs `room` places and those of one more step (TOGETHER segments).
    """
    width = tile.shape[1]
    hits = np.empty(GROUP, np.int64)
    for i in range(start, stop):
        number = side.number[i]
        if number == 0:
            continue
        lows, highs, row = side.low[i], side.high[i], tile[i]
        for begin in range(0, width, SEGMENT):
            if seen[1] > room:
                return
            end = min(width, begin + SEGMENT)
            values = row[begin:end]
            reached = _reaching(values, lows[0])
            if reached == 0:
                continue
            if reached * FEW <= values.shape[0]:
                _sparse_row(row, i, begin, end, side, items, margin, above, rest, seen)
                continue
            for p in range(number):
                reached, passed = _compare(values, lows[p], highs[p])
                if reached == 0:
                    break
                above[i, p] += passed
                if reached == passed:
                    continue
                for group in range(begin, end, GROUP):
                    part = row[group : min(end, group + GROUP)]
                    if _within(part, lows[p], highs[p]) == 0:
                        continue
                    for k in range(_find(part, lows[p], highs[p], hits)):
                        item = group + hits[k]
                        _decide(side, items, i, item, p, margin, above, i, p, rest, seen)


@_compiled()
def _sparse_columns(
    tile: NDArray[Any], i: int, begin: int, end: int, side: Side, items: NDArray[np.float32], margin: float,
    above: NDArray[np.uint32], rest: NDArray[np.int32], seen: NDArray[np.int64],
) -> None:  # fmt: skip
    for group in range(begin, end, GROUP):
        last = min(end, group + GROUP)
        values, lowest = tile[i][group:last], side.low[0][group:last]
        if _reaching_own(values, lowest) == 0:
            continue
        for j in range(values.shape[0]):
            if values[j] < lowest[j]:
                continue
            query = group + j
            for p in range(side.number[query]):
                if values[j] > side.high[p, query]:
                    above[p, query] += 1
                elif values[j] >= side.low[p, query]:
                    _decide(side, items, query, i, p, margin, above, p, query, rest, seen)
                else:
                    break


@_compiled()
def count_columns(
    tile: NDArray[Any], start: int, stop: int, side: Side, items: NDArray[np.float32], margin: float,
    above: NDArray[np.uint32], rest: NDArray[np.int32], seen: NDArray[np.int64], room: int,
) -> None:  # fmt: skip
    """The columns are queries, rows start to stop the items: add to `above` (P, C); else like `count_rows`.

    Rows are taken four at a time: the tile must have so many, those beyond its items below every threshold.
    """
    most, width = side.low.shape
    hits = np.empty(GROUP, np.int64)
    for i in range(start, stop, TOGETHER):
        for begin in range(0, width, SEGMENT):
            if seen[1] > room:
                return
            end = min(width, begin + SEGMENT)
            lowest, reached = side.low[0][begin:end], 0
            for row in range(i, i + TOGETHER):
                reached += _reaching_own(tile[row][begin:end], lowest)
            if reached == 0:
                continue
            if reached * FEW <= TOGETHER * lowest.shape[0]:
                for row in range(i, i + TOGETHER):
                    _sparse_columns(tile, row, begin, end, side, items, margin, above, rest, seen)
                continue
            a, b = tile[i][begin:end], tile[i + 1][begin:end]
            c, d = tile[i + 2][begin:end], tile[i + 3][begin:end]
            for p in range(most):
                lows, highs = side.low[p][begin:end], side.high[p][begin:end]
                reached, passed = _compare_own(a, b, c, d, lows, highs, above[p][begin:end])
                if reached == 0:
                    break
                if reached == passed:
                    continue
                for row in range(i, i + TOGETHER):
                    for group in range(begin, end, GROUP):
                        last = min(end, group + GROUP)
                        part = tile[row][group:last]
                        lows, highs = side.low[p][group:last], side.high[p][group:last]
                        if _within_own(part, lows, highs) == 0:
                            continue
                        for k in range(_find_own(part, lows, highs, hits)):
                            query = group + hits[k]
                            _decide(side, items, query, row, p, margin, above, p, query, rest, seen)


@_compiled()
def count_exact(
    tile: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], number: NDArray[np.int64],
    above: NDArray[np.int64], tied: NDArray[np.int64],
) -> None:  # fmt: skip
    """Rows of a float64 tile are queries, their limits (C, P) enclose the ties: count both kinds (C, P)."""
    for i in range(tile.shape[0]):
        for p in range(number[i]):
            reached, passed = _compare(tile[i], low[i, p], high[i, p])
            if reached == 0:
                break
            above[i, p] += passed
            tied[i, p] += reached - passed


def prepare(dtype: type[np.generic]) -> None:
    """Compile what counts tiles of this type, or read it from where it is kept; some seconds, or a moment."""
    size = TOGETHER
    tile, limit = np.zeros((size, size), dtype), np.ones((size, 1), dtype)
    threshold, number = np.ones((size, 1)), np.ones(size, np.int64)
    vectors, above = np.zeros((size, 1), np.float32), np.zeros((size, 1), np.uint32)
    rest, seen = np.empty((1, 3), np.int32), np.zeros(2, np.int64)
    side = Side(limit, limit, number, threshold, vectors)
    count_rows(tile, 0, size, side, vectors, 0.0, above, rest, seen, 1)
    side = Side(limit.T.copy(), limit.T.copy(), number, threshold, vectors)
    count_columns(tile, 0, size, side, vectors, 0.0, above.T.copy(), rest, seen, 1)
