"""Embeddings and labels from files, for people who bring their own vectors."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.data.cells import is_empty, read_flags
from forerank.errors import InputError


@dataclass(frozen=True)
class LabelFile:
    """Columns of a label file, one row per embedding."""

    label: NDArray[Any]  # (N,) strings, or the numbers of a .npy file
    is_query: NDArray[np.bool_] | None
    is_gallery: NDArray[np.bool_] | None
    sequence: NDArray[np.str_] | None  # camera or sequence
    category: NDArray[np.str_] | None


def read_embeddings(path: Path) -> NDArray[np.floating]:
    """A matrix from a .npy file, left on disk and read as it is needed."""
    if not path.is_file():
        raise InputError(f"there is no file {path}: --embeddings takes a .npy matrix (images, dimensions).")
    return _load(path, "matrix of numbers")


def _load(path: Path, what: str) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy reads the head as Python: damage raises errors of many types
        raise InputError(f"{path} is not a .npy {what}: {error}.") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays: save the one {what} with numpy.save.")
    return array


def read_labels(path: Path, count: int | None = None) -> LabelFile:
    """Labels from a .csv with a column `label`, from one label per line, or from a .npy file.

    A .csv may also have the columns is_query and is_gallery (`read_flags` says what an empty cell means),
    sequence and category. `count`, the number of embeddings, helps to tell a heading from a label.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "labels.csv"
        >>> _ = file.write_text("label,is_query,is_gallery\\ncup,1,0\\ncup,0,1\\n")
        >>> labels = read_labels(file)
        >>> labels.label.tolist(), labels.is_query.tolist()
        (['cup', 'cup'], [True, False])
    """
    if not path.is_file():
        raise InputError(
            f"there is no file {path}: --labels takes a .csv with a column 'label', one row per image."
        )
    if path.suffix == ".npy":
        return LabelFile(np.array(_load(path, "list of labels")), None, None, None, None)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise InputError(f"{path} is not text in UTF-8 that reads as .csv: {error}.") from error
    if not lines:
        raise InputError(f"{path} is empty.")
    header = lines[0][1]
    if "label" not in header:
        if any(len(row) != 1 for _, row in lines):
            raise InputError(f"{path} has no column 'label'; its columns are: {', '.join(header)}.")
        if len(lines) - 1 == count:
            raise InputError(
                f"{path} has {len(lines):,} lines for {count:,} embeddings: if the first, {header[0]!r}, "
                "is a heading, write 'label' there."
            )
        header = ["label"]
    else:
        lines = lines[1:]
    for number, row in lines:
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: {len(row)} values for {len(header)} columns.")
        if not row[header.index("label")]:
            raise InputError(f"{path}, line {number}: the label is empty.")

    def column(name: str) -> list[str] | None:
        return [row[header.index(name)] for _, row in lines] if name in header else None

    def flags(name: str) -> NDArray[np.bool_] | None:
        values = column(name)
        if values is None or all(map(is_empty, values)):
            return None
        flags = np.array(read_flags(values, [number for number, _ in lines], name, path))
        if not flags.any():
            raise InputError(f"{path}: no row has a 1 in the column {name}.")
        return flags

    def text(name: str) -> NDArray[np.str_] | None:
        values = column(name)
        return np.array(values) if values and any(values) else None

    return LabelFile(
        np.array(column("label")), flags("is_query"), flags("is_gallery"), text("sequence"), text("category")
    )
