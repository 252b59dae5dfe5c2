"""Cells of a table file: which words are true, which are false, and what an empty cell means."""

from collections.abc import Sequence

from forerank.errors import InputError

TRUE, FALSE, EMPTY = {"true", "1", "1.0", "yes"}, {"false", "0", "0.0", "no"}, {"", "nan", "none", "null"}


def is_empty(cell: str | None) -> bool:
    """Whether a cell states nothing: pandas writes some of them as "nan" or "None".

    >>> is_empty(" "), is_empty("NaN"), is_empty("0")
    (True, True, False)
    """
    return (cell or "").strip().casefold() in EMPTY


def read_flags(cells: Sequence[str], lines: Sequence[int], column: str, file: object) -> list[bool]:
    """The cells of a column of true and false, such as `is_query`.

    An empty cell means true: an image is a query and a gallery image unless the file says otherwise. A
    column that holds true and empty cells and no false one is refused, because there the empty cells may
    have been meant as "no", and the results would be silently wrong.

    Args:
        cells: the text of each cell.
        lines: where each cell stands in the file, for messages.

    >>> read_flags(["1", "no", ""], [2, 3, 4], "is_query", "a.csv")
    [True, False, True]
    >>> read_flags(["1", "1", ""], [2, 3, 4], "is_query", "a.csv")
    Traceback (most recent call last):
    forerank.errors.InputError: a.csv line 4: is_query is empty where other rows say 1: write 0 or 1 in \
every row
    """
    folded = [cell.strip().casefold() for cell in cells]
    for cell, line in zip(folded, lines, strict=True):
        if cell not in TRUE | FALSE | EMPTY:
            raise InputError(f"{file} line {line}: {column} is {cell!r} where true or false was expected")
    empty = [line for cell, line in zip(folded, lines, strict=True) if cell in EMPTY]
    if empty and not TRUE.isdisjoint(folded) and FALSE.isdisjoint(folded):
        raise InputError(
            f"{file} line {empty[0]}: {column} is empty where other rows say 1: write 0 or 1 in every row"
        )
    return [cell not in FALSE for cell in folded]
