"""Which images an index shall hold: a folder, a table, a data set's name -> paths and labels below one root."""

import os
from dataclasses import dataclass
from pathlib import Path

from forerank.data import Table, open_table
from forerank.errors import InputError


@dataclass(frozen=True)
class Images:
    """Files below `root`; an empty label stands for unknown."""

    root: Path
    paths: list[str]  # relative to root, forward slashes
    labels: list[str]


def list_images(source: str | Path | Table, split: str = "all") -> Images:
    """The images of a source.

    A data set (by name, official layout, CSV or one sub-folder a class) brings its labels. In any other
    folder every image below it counts, without labels.
    """
    if isinstance(source, Table):
        table = source
    else:
        place = Path(source).expanduser()
        try:
            table = open_table(place if place.exists() else str(source))
        except InputError:
            if not place.is_dir():
                raise
            if split != "all":
                raise
            return _unlabelled(place)
    if table.box is not None:
        raise InputError(
            f"{table.name} marks objects by boxes; an index holds whole files: cut them out and index the cuts."
        )
    return _below_one_root(table.select(split))


def _unlabelled(folder: Path) -> Images:
    from forerank.models import find_images

    files = find_images(folder)
    return Images(
        folder.resolve(), [file.relative_to(folder).as_posix() for file in files], [""] * len(files)
    )


def _below_one_root(table: Table) -> Images:
    """Paths relative to the table's root, or to the folder common to all where some lie outside it."""
    # Not resolved: a link inside the root keeps the name it has there.
    files = [
        os.path.normpath(os.path.join(os.path.abspath(table.root), path)) for path in table.path.tolist()
    ]
    root = os.path.abspath(table.root)
    if any(not file.startswith(root + os.sep) for file in files):
        root = os.path.commonpath([os.path.dirname(file) for file in files])
    seen: dict[str, str] = {}
    for file, label in zip(files, table.label.tolist(), strict=True):
        relative = os.path.relpath(file, root).replace(os.sep, "/")
        if seen.setdefault(relative, label) != label:
            raise InputError(f"{relative} is listed twice, as {seen[relative]!r} and as {label!r}.")
    return Images(Path(root), list(seen), list(seen.values()))
