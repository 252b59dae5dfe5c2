"""Embeddings and labels from files, for people who bring their own vectors."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerank.errors import InputError

TRUE, FALSE = {"1", "true", "yes"}, {"0", "false", "no", ""}


@dataclass(frozen=True)
class LabelFile:
    """Columns of a label file, a row for each embedding."""

    label: NDArray[np.str_]  # (N,)
    is_query: NDArray[np.bool_] | None
    is_gallery: NDArray[np.bool_] | None
    sequence: NDArray[np.str_] | None  # camera or sequence


def read_embeddings(path: Path) -> NDArray[np.floating]:
    """A matrix from a .npy file, left on disk and read as it is needed."""
    if not path.is_file():
        raise InputError(f"there is no file {path}: --embeddings takes a .npy matrix (images, dimensions).")
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path} is not a .npy matrix of numbers: {error}.") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path} holds several arrays: save the one matrix with numpy.save.")
    return found


def read_labels(path: Path) -> LabelFile:
    """Labels from a .csv with a column `label`, from one label a line, or from a .npy file.

    A .csv may also have the columns is_query, is_gallery and sequence.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "labels.csv"
        >>> _ = file.write_text("label,is_query,is_gallery\\ncup,1,0\\ncup,0,1\\n")
        >>> found = read_labels(file)
        >>> found.label.tolist(), found.is_query.tolist()
        (['cup', 'cup'], [True, False])
    """
    if not path.is_file():
        raise InputError(
            f"there is no file {path}: --labels takes a .csv with a column 'label', a row an image."
        )
    if path.suffix == ".npy":
        return LabelFile(np.load(path, allow_pickle=False).astype(str), None, None, None)
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise InputError(f"{path} is empty.")
    header = [name.strip() for name in rows[0]]
    if "label" not in header:
        if any(len(row) != 1 for row in rows):
            raise InputError(f"{path} has no column 'label'; its columns are: {', '.join(header)}.")
        return LabelFile(np.array([row[0] for row in rows]), None, None, None)
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: {len(row)} values for {len(header)} columns.")

    def column(name: str) -> list[str] | None:
        return [row[header.index(name)].strip() for row in rows[1:]] if name in header else None

    def flags(name: str) -> NDArray[np.bool_] | None:
        values = column(name)
        if values is None or not any(values):
            return None
        for number, value in enumerate(values, start=2):
            if value.casefold() not in TRUE | FALSE:
                raise InputError(f"{path}, line {number}: {name} must be 1 or 0, not {value!r}.")
        return np.array([value.casefold() in TRUE for value in values])

    sequence = column("sequence")
    return LabelFile(
        np.array(column("label")),
        flags("is_query"),
        flags("is_gallery"),
        np.array(sequence) if sequence and any(sequence) else None,
    )
