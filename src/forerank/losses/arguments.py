"""Checking the numbers a loss is built with, which may come from a recipe file."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, TypedDict

from forerank.errors import InputError, check_name
from forerank.ranking.soft import LinearTail

Tail = LinearTail | Mapping[str, float] | bool | None


# The arguments that losses share, written down once: a loss takes those that mean something to it as
# `**shared: Unpack[...]` and hands them on. `RankingLoss` says what each one means and its default.
class Shared(TypedDict, total=False):
    """Arguments of every loss."""

    count_self: bool
    gather: bool
    chunk_size: int | None


class Softened(Shared, total=False):
    """Arguments of a loss whose counts are softened by a sigmoid."""

    temperature: float


class SoftenedWithTail(Softened, total=False):
    """Arguments of a loss where the sigmoid may also continue along a line."""

    linear_tail: Tail


def check_number(
    name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """The value as a float; refused unless it is finite, above `above`, and from `least` to `most`.

    >>> check_number("alpha", "4", least=1)
    Traceback (most recent call last):
    forerank.errors.InputError: alpha must be a number of at least 1, not '4'.
    """
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if number and above < value and least <= value <= most:
        return float(value)
    limit = f"of at least {least:g}" if math.isfinite(least) else f"greater than {above:g}"
    limit += f" and at most {most:g}" if math.isfinite(most) else ""
    raise InputError(f"{name} must be a number {limit}, not {value!r}.")


def check_count(name: str, value: Any) -> int:
    """A whole number of at least 1.

    >>> check_count("chunk_size", 2.5)
    Traceback (most recent call last):
    forerank.errors.InputError: chunk_size must be a whole number of at least 1, not 2.5.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")


def check_tail(value: Any) -> LinearTail | None:
    """A linear tail from itself, from a mapping of its arguments, or from True for its defaults.

    >>> check_tail({"start": 0.1})
    LinearTail(start=0.1, slope=100.0, jump=0.0)
    """
    if value is None or value is False:
        return None
    if isinstance(value, Mapping):
        for name in value:
            check_name("argument of linear_tail", name, LinearTail.__dataclass_fields__)
        return LinearTail(**value)
    if value is True or isinstance(value, LinearTail):
        return LinearTail() if value is True else value
    raise InputError(f"linear_tail must be true, false or its start and slope, not {value!r}.")
