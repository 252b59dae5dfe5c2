"""Which images an index is to hold: a folder, a table, a data set's name -> paths and labels, one root."""

import os
from dataclasses import dataclass
from pathlib import Path

from forerank.console import say
from forerank.data import Table, open_table
from forerank.data.image_files import image_files, no_images, scan_folder
from forerank.data.open import source_name
from forerank.errors import InputError


@dataclass(frozen=True)
class Images:
    """Files below `root`; an empty label stands for unknown."""

    root: Path
    paths: list[str]  # relative to root, forward slashes
    labels: list[str]
    columns: list[dict[str, str]]  # what else is known of each: category, price, URL, ...


def list_images(source: str | Path | Table, split: str = "all") -> Images:
    """The images of a source.

    A data set (by name, official layout, CSV or one sub-folder per class) brings its labels. In any other
    folder every image below it counts; those in sub-folders have the sub-folder as label, loose ones none.
    """
    if isinstance(source, Table):
        table = source
    else:
        place = Path(source).expanduser()
        plain = split == "all" and place.is_dir() and source_name(source) is None
        if plain and any("/" not in path for path in image_files(place)):
            return _any_folder(place)  # images without a class are searched for too
        try:
            table = open_table(place if place.exists() else str(source))
        except InputError:
            if not place.is_dir() or split != "all":
                raise
            return _any_folder(place)
        for note in table.notes:
            say(note)
    if table.box is not None:
        raise InputError(
            f"{table.name} marks objects by boxes, and an index holds whole files: "
            "cut the objects out and index the cuts."
        )
    return _below_one_root(table.select(split))


def _any_folder(folder: Path) -> Images:
    content = scan_folder(folder)
    if not content.images:
        raise no_images(folder, content)
    paths = content.images
    for note in content.notes():
        say(note)
    labels = [path.rpartition("/")[0] for path in paths]
    return Images(folder.absolute(), paths, labels, [{} for _ in paths])


def _below_one_root(table: Table) -> Images:
    """Paths relative to the table's root, or to the folder common to all where some lie outside it."""
    # Not resolved: a link inside the root keeps the name it has there.
    root = Path(os.path.normpath(Path(table.root).absolute()))
    files = [Path(os.path.normpath(root / path)) for path in table.path.tolist()]
    if any(not file.is_relative_to(root) for file in files):
        root = Path(os.path.commonpath([file.parent for file in files]))
    labels: dict[str, str] = {}
    columns: dict[str, dict[str, str]] = {}
    for file, label, further in zip(files, table.label.tolist(), _further_columns(table), strict=True):
        relative = file.relative_to(root).as_posix()
        if labels.setdefault(relative, label) != label:
            raise InputError(f"{relative} is listed twice, as {labels[relative]!r} and as {label!r}.")
        columns.setdefault(relative, further)
    return Images(root, list(labels), list(labels.values()), list(columns.values()))


def _further_columns(table: Table) -> list[dict[str, str]]:
    """What a table says of each image beside its label; empty cells are left out."""
    columns = {name: getattr(table, name) for name in ("category", "sequence")} | dict(table.further)
    values = {name: column.tolist() for name, column in columns.items() if column is not None}
    return [{name: column[i] for name, column in values.items() if column[i]} for i in range(len(table))]
