"""Counting on one tile of similarities, compiled for the processor it runs on.

What torch needs several passes for, and memory for flags, is one pass here over numbers that are still in the
cache: as numbers of 16 bits they are compared with each threshold. What is too near to tell is decided by the
tile's own number, then by a dot product in float64. Only what even that leaves open is handed back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

SEGMENT = 512  # numbers of a row looked at together: they and their limits stay in the first-level cache
GROUP = 64  # a segment is searched by groups if few of its numbers reach a threshold
TOGETHER = 4  # rows whose comparisons with the limits of the columns share the reading of those limits
SCALE = 32_000  # of narrow numbers: similarities from -1 to 1, and a little more, fit in 16 bits
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
    """The queries of a tile. Thresholds ascend, padding is +inf.

    Limits are (C, P) where the queries are the tile's rows, (P, C) where they are its columns: `low` and
    `high` of the tile's type, `floor` and `ceiling` for its narrow numbers.
    """

    floor: NDArray[np.int16]  # an item that is not above is surely below the threshold
    ceiling: NDArray[np.int16]  # an item above is surely above the threshold
    low: NDArray[Any]  # an item below is surely below the threshold
    high: NDArray[Any]  # an item above is surely above the threshold
    number: NDArray[np.int64]  # (C,) thresholds of each query


@_compiled(fastmath={"reassoc", "contract"})
def _dot(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    total = 0.0
    for k in range(first.shape[0]):
        total += np.float64(first[k]) * np.float64(second[k])
    return total


@_compiled()
def narrow(values: NDArray[np.float32], out: NDArray[np.int16]) -> None:
    """Cut (R, C) to steps of 1 / SCALE, so that twice as many numbers are compared at a time.

    This never swaps two numbers, so limits that were cut the same way decide the same; what lies outside
    becomes the last step.
    """
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            scaled = min(max(values[i, j] * np.float32(SCALE), np.float32(-32767)), np.float32(32767))
            out[i, j] = np.int16(scaled)


# Counts of a type as narrow as the numbers: or the compiler spreads the comparisons over wider registers.
@_compiled(forceinline=True)
def _reaching(values: NDArray[np.int16], floor: int) -> int:
    count = np.uint16(0)
    for j in range(values.shape[0]):
        count = np.uint16(count + np.uint16(1 if values[j] > floor else 0))
    return count  # type: ignore[return-value]


@_compiled(forceinline=True)
def _reaching_own(values: NDArray[np.int16], floor: NDArray[np.int16]) -> int:
    count = np.uint16(0)
    for j in range(values.shape[0]):
        count = np.uint16(count + np.uint16(1 if values[j] > floor[j] else 0))
    return count  # type: ignore[return-value]


@_compiled(forceinline=True)
def _compare(
    values: NDArray[np.int16], floor: int, ceiling: int, near: NDArray[np.uint16]
) -> tuple[int, int]:
    """How many are above the ceiling, and how many only above the floor; `near` tells which."""
    passed, open_ = np.uint16(0), np.uint16(0)
    for j in range(values.shape[0]):
        up = np.uint16(1 if values[j] > ceiling else 0)
        gap = np.uint16(np.uint16(1 if values[j] > floor else 0) - up)
        near[j] = gap
        passed = np.uint16(passed + up)
        open_ = np.uint16(open_ + gap)
    return passed, open_  # type: ignore[return-value]


@_compiled(forceinline=True)
def _over(a: int, b: int, c: int, d: int, limit: int) -> int:
    first = np.uint16(np.uint16(1 if a > limit else 0) + np.uint16(1 if b > limit else 0))
    second = np.uint16(np.uint16(1 if c > limit else 0) + np.uint16(1 if d > limit else 0))
    return np.uint16(first + second)  # type: ignore[return-value]


@_compiled(forceinline=True)
def _compare_own(
    a: NDArray[np.int16], b: NDArray[np.int16], c: NDArray[np.int16], d: NDArray[np.int16],
    floor: NDArray[np.int16], ceiling: NDArray[np.int16], above: NDArray[np.uint16], near: NDArray[np.uint16],
) -> tuple[int, int]:  # fmt: skip
    """The same for four rows at once with limits of each column's own, also adding to its count."""
    passed, open_ = np.uint16(0), np.uint16(0)
    for j in range(floor.shape[0]):
        low, high = floor[j], ceiling[j]
        up = _over(a[j], b[j], c[j], d[j], high)
        gap = np.uint16(_over(a[j], b[j], c[j], d[j], low) - up)
        above[j] = np.uint16(above[j] + up)
        near[j] = gap
        passed = np.uint16(passed + up)
        open_ = np.uint16(open_ + gap)
    return passed, open_  # type: ignore[return-value]


@_compiled()
def _places(near: NDArray[np.uint16], length: int, hits: NDArray[np.int64]) -> int:
    """Where the first numbers of `near` are not zero: that is rare, so sixteen are looked at together."""
    count = 0
    words = near.view(np.uint64)
    for w in range(0, (length + 3) // 4, 4):
        if words[w] | words[w + 1] | words[w + 2] | words[w + 3] != 0:
            for j in range(4 * w, min(4 * w + 16, length)):
                hits[count] = j
                count += near[j] != 0
    return count


@_compiled(forceinline=True)
def _note(
    value: float, side: Side, i: int, j: int, query: int, item: int, p: int, rest: NDArray[np.int32],
    seen: NDArray[np.int64],
) -> bool:  # fmt: skip
    """Whether the tile's own value is above the limits at [i, j]; one between them goes to `rest`."""
    # A branch that is taken every other time costs more than writing down a pair that turns out decided.
    place = seen[0]
    rest[place, 0], rest[place, 1], rest[place, 2] = query, item, p
    seen[0] = place + ((value >= side.low[i, j]) & (value <= side.high[i, j]))
    return bool(value > side.high[i, j])


@_compiled()
def _sparse_row(
    row: NDArray[np.int16], fine: NDArray[Any], i: int, begin: int, end: int, side: Side,
    above: NDArray[np.uint16], rest: NDArray[np.int32], seen: NDArray[np.int64],
) -> None:  # fmt: skip
    floors, ceilings = side.floor[i], side.ceiling[i]
    for group in range(begin, end, GROUP):
        values = row[group : min(end, group + GROUP)]
        if _reaching(values, floors[0]) == 0:
            continue
        for j in range(values.shape[0]):
            if values[j] <= floors[0]:
                continue
            item = group + j
            for p in range(side.number[i]):
                if values[j] > ceilings[p]:
                    above[i, p] += 1
                elif values[j] > floors[p]:
                    above[i, p] += _note(fine[item], side, i, p, i, item, p, rest, seen)
                else:
                    break


@_compiled()
def count_rows(
    slab: NDArray[np.int16], tile: NDArray[Any], start: int, stop: int, side: Side,
    above: NDArray[np.uint16], rest: NDArray[np.int32], seen: NDArray[np.int64], room: int,
) -> None:  # fmt: skip
    """Rows start to stop of the tile are queries: add to `above` (C, P) how many items stand above.

    `slab` has these rows as narrow numbers. Pairs (query, item, threshold) that the tile cannot decide are
    written to `rest`, and `seen` counts them. With more than `room` of them it gives up: the counts are then
    worthless. So `rest` needs `room` places, those of one more step (TOGETHER segments), and one.
    """
    width = tile.shape[1]
    near, hits = np.zeros(SEGMENT, np.uint16), np.empty(SEGMENT + 1, np.int64)
    dense = False
    for i in range(start, stop):
        number = side.number[i]
        if number == 0:
            continue
        floors, ceilings, row, fine = side.floor[i], side.ceiling[i], slab[i - start], tile[i]
        for begin in range(0, width, SEGMENT):
            if seen[0] > room:
                return
            end = min(width, begin + SEGMENT)
            values = row[begin:end]
            if not dense:  # else the first comparison tells the same
                reached = _reaching(values, floors[0])
                if reached == 0:
                    continue
                if reached * FEW <= values.shape[0]:
                    _sparse_row(row, fine, i, begin, end, side, above, rest, seen)
                    continue
            for p in range(number):
                passed, open_ = _compare(values, floors[p], ceilings[p], near)
                if p == 0:
                    dense = (passed + open_) * FEW > values.shape[0]
                above[i, p] += passed
                if open_ != 0:
                    for k in range(_places(near, end - begin, hits)):
                        item = begin + hits[k]
                        above[i, p] += _note(fine[item], side, i, p, i, item, p, rest, seen)
                elif passed == 0:
                    break


@_compiled()
def _sparse_columns(
    row: NDArray[np.int16], fine: NDArray[Any], item: int, begin: int, end: int, side: Side,
    above: NDArray[np.uint16], rest: NDArray[np.int32], seen: NDArray[np.int64],
) -> None:  # fmt: skip
    for group in range(begin, end, GROUP):
        last = min(end, group + GROUP)
        values, lowest = row[group:last], side.floor[0][group:last]
        if _reaching_own(values, lowest) == 0:
            continue
        for j in range(values.shape[0]):
            if values[j] <= lowest[j]:
                continue
            query = group + j
            for p in range(side.number[query]):
                if values[j] > side.ceiling[p, query]:
                    above[p, query] += 1
                elif values[j] > side.floor[p, query]:
                    above[p, query] += _note(fine[query], side, p, query, query, item, p, rest, seen)
                else:
                    break


@_compiled()
def count_columns(
    slab: NDArray[np.int16], tile: NDArray[Any], start: int, stop: int, side: Side,
    above: NDArray[np.uint16], rest: NDArray[np.int32], seen: NDArray[np.int64], room: int,
) -> None:  # fmt: skip
    """The columns are queries, rows start to stop the items: add to `above` (P, C); else like `count_rows`.

    Rows are taken four at a time: slab and tile must have so many, those beyond the items below every limit.
    """
    most, width = side.low.shape
    near, hits = np.zeros(SEGMENT, np.uint16), np.empty(SEGMENT + 1, np.int64)
    dense = False
    for begin in range(0, width, SEGMENT):
        end = min(width, begin + SEGMENT)
        for i in range(0, stop - start, TOGETHER):
            if seen[0] > room:
                return
            if not dense:
                lowest, reached = side.floor[0][begin:end], 0
                for row in range(i, i + TOGETHER):
                    reached += _reaching_own(slab[row][begin:end], lowest)
                if reached == 0:
                    continue
                if reached * FEW <= TOGETHER * lowest.shape[0]:
                    for row in range(i, i + TOGETHER):
                        item = start + row
                        _sparse_columns(slab[row], tile[item], item, begin, end, side, above, rest, seen)
                    continue
            a, b = slab[i][begin:end], slab[i + 1][begin:end]
            c, d = slab[i + 2][begin:end], slab[i + 3][begin:end]
            for p in range(most):
                floor, ceiling = side.floor[p][begin:end], side.ceiling[p][begin:end]
                passed, open_ = _compare_own(a, b, c, d, floor, ceiling, above[p][begin:end], near)
                if p == 0:
                    dense = (passed + open_) * FEW > TOGETHER * (end - begin)
                if open_ != 0:
                    for k in range(_places(near, end - begin, hits)):
                        query = begin + hits[k]
                        for row in range(i, i + TOGETHER):
                            if floor[hits[k]] < slab[row, query] <= ceiling[hits[k]]:
                                item = start + row
                                above[p, query] += _note(
                                    tile[item, query], side, p, query, query, item, p, rest, seen
                                )
                elif passed == 0:
                    break


@_compiled()
def decide_open_pairs(
    vectors: NDArray[np.float32], items: NDArray[np.float32], threshold: NDArray[np.float64], margin: float,
    above: NDArray[np.int64], rest: NDArray[np.int32],
) -> int:  # fmt: skip
    """Decide the pairs of `rest` by dot products with this error: add to `above` (C, P).

    Returns how many stay open; they are then the first ones of `rest`.
    """
    left = 0
    for k in range(rest.shape[0]):
        query, item, p = rest[k]
        gap = _dot(vectors[query], items[item]) - threshold[query, p]
        if gap > margin:
            above[query, p] += 1
        elif gap >= -margin:
            rest[left, 0], rest[left, 1], rest[left, 2] = query, item, p
            left += 1
    return left


@_compiled()
def count_exact(
    tile: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], number: NDArray[np.int64],
    above: NDArray[np.int64], tied: NDArray[np.int64],
) -> None:  # fmt: skip
    """Rows of a float64 tile are queries, their limits (C, P) enclose the ties: count both kinds (C, P)."""
    for i in range(tile.shape[0]):
        for p in range(number[i]):
            reached, passed = 0, 0
            for j in range(tile.shape[1]):
                reached += tile[i, j] >= low[i, p]
                passed += tile[i, j] > high[i, p]
            if reached == 0:
                break
            above[i, p] += passed
            tied[i, p] += reached - passed


def prepare(dtype: type[np.generic]) -> None:
    """Compile what counts tiles of this type, or read it from where it is kept; some seconds, or a moment."""
    size = TOGETHER
    tile, slab, limit = (
        np.zeros((size, size), dtype),
        np.zeros((size, size), np.int16),
        np.ones((size, 1), dtype),
    )
    number, above = np.ones(size, np.int64), np.zeros((size, 1), np.uint16)
    rest, seen = np.empty((2 * size, 3), np.int32), np.zeros(1, np.int64)
    vectors = np.zeros((size, 1), np.float32)
    narrow(vectors, slab)
    bound = slab[:, :1].copy()
    count_rows(slab, tile, 0, size, Side(bound, bound, limit, limit, number), above, rest, seen, 1)
    side = Side(bound.T.copy(), bound.T.copy(), limit.T.copy(), limit.T.copy(), number)
    count_columns(slab, tile, 0, size, side, above.T.copy(), rest, seen, 1)
    decide_open_pairs(vectors, vectors, np.ones((size, 1)), 0.0, above.astype(np.int64), rest[:0])
