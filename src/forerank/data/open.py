"""Open anything as a table: a data set's name, a folder, a CSV file."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from forerank.data import folder
from forerank.data.cache import data_folder
from forerank.data.registry import DATA_SETS
from forerank.data.table import Table
from forerank.errors import InputError, check_name, nearest, no_such_path

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def open_table(source: str | Path, root: str | Path | None = None, **options: Any) -> Table:
    """Open a data set.

    Args:
        source: a name of the registry ("glyphs", "sop", ...: see `forerank data list`), a folder (an official
            layout is recognised, otherwise there is one sub-folder per class), or a .csv file.
        root: where a named set lies, by default `$FORERANK_DATA/NAME`; for a CSV, where its paths start.
        options: of the reader, for instance `test="small"` (VehicleID) or `merged=3` (glyphs).

    >>> open_table("my_imagse")
    Traceback (most recent call last):
    forerank.errors.InputError: 'my_imagse' is neither a data set (glyphs, ...) nor a folder nor a CSV file
    """
    name = source_name(source)
    if name is not None:
        if not (isinstance(source, str) and source in DATA_SETS):  # a folder of an official layout
            return _read(name, Path(source).expanduser(), options)
        place = Path(root) if root is not None else data_folder() / name
        if name == "glyphs":
            return _read(name, None if root is None else place, options)
        if root is None and not place.is_dir():
            raise InputError(
                f"{name} was looked for in {place} and is not there: give its folder (root), "
                f"set FORERANK_DATA, or see how to get it with: forerank data show {name}"
            )
        return _read(name, place, options)
    path = Path(source).expanduser()
    if path.is_file() and path.suffix.lower() == ".csv":
        _refuse_unknown_options(options, [], "a CSV file")
        table = Table.read_csv(path, root)
    elif path.is_dir():
        _refuse_unknown_options(options, [], f"the folder {path}")
        table = folder.read(path)
    else:
        guess = nearest(str(source), DATA_SETS)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise no_such_path(source) or InputError(
            f"{str(source)!r} is neither a data set ({', '.join(DATA_SETS)}) "
            f"nor a folder nor a CSV file{hint}"
        )
    _refuse_single_images(table)
    return table


def source_name(source: str | Path) -> str | None:
    """The registry's name for a source: the name itself, or that of the layout a folder has.

    >>> source_name("sop")
    'sop'
    """
    if isinstance(source, str) and source in DATA_SETS:
        return source
    root = Path(source).expanduser()
    if not root.is_dir():
        return None
    return next((name for name, entry in DATA_SETS.items() if entry.recognise(root)), None)


def _read(name: str, root: Path | None, options: dict[str, Any]) -> Table:
    entry = DATA_SETS[name]
    parameters = inspect.signature(entry.read).parameters
    _refuse_unknown_options(options, [p for p in parameters if p != "root"], name)
    for key, value in options.items():
        kind = type(parameters[key].default)
        if not (type(value) is kind or (kind is float and type(value) is int)):
            raise InputError(f"{name}: the option {key} must be {_KINDS[kind]}, not {value!r}")
    table = entry.read(root, **options)
    _refuse_single_images(table)
    shared = np.intersect1d(table.label[table.split == "train"], table.label[table.split != "train"])
    if len(shared):
        raise InputError(
            f"{name}: class {str(shared[0])!r} is in train and in test ({len(shared)} such classes), "
            f"but this set tests on unseen classes; check the lists in {table.root}"
        )
    return table


def _refuse_unknown_options(options: dict[str, Any], valid: list[str], what: str) -> None:
    for key in options:
        if not valid:
            raise InputError(f"{what} takes no options, but {key!r} was given")
        check_name(f"option of {what}", key, valid)


def _refuse_single_images(table: Table) -> None:
    if len(table) and np.unique(table.label, return_counts=True)[1].max() < 2:
        raise InputError(
            f"{table.name}: every class has fewer than two images, so no image has another one to find "
            f"({len(table)} images in {table.root})"
        )
