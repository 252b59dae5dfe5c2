"""Reading the text files that data sets come with, and saying plainly when they are not there."""

from collections.abc import Sequence
from pathlib import Path

from forerank.errors import InputError


def find_root(root: Path, marks: Sequence[str], names: Sequence[str], title: str) -> Path:
    """The folder that holds one of the `marks`: `root`, or a sub-folder of it called like one of `names`.

    Archives unpack into a folder of their own, so people name either that folder or the one around it.
    """
    if not root.is_dir():
        raise InputError(f"{title}: there is no folder {root}")
    for folder in (root, *(root / name for name in names)):
        if any((folder / mark).exists() for mark in marks):
            return folder
    raise InputError(
        f"{title}: looked in {root} for {' or '.join(marks)} and found none; is it the right folder?"
    )


def read_rows(file: Path, title: str, columns: int, header: int = 0) -> list[list[str]]:
    """Lines of words, split at white space into exactly `columns` (the last one may contain spaces).

    Args:
        header: number of first lines to leave out.
    """
    if not file.is_file():
        raise InputError(f"{title}: the list file {file} does not exist")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{title}: {file} is not a text file ({error})") from error
    rows = []
    for number, line in enumerate(lines[header:], start=header + 1):
        if not line.strip():
            continue
        words = line.split(maxsplit=columns - 1)
        if len(words) != columns:
            raise InputError(
                f"{title}: {file} line {number} has {len(words)} columns where {columns} were expected"
            )
        rows.append([word.strip() for word in words])
    if not rows:
        raise InputError(f"{title}: {file} lists no images")
    return rows
