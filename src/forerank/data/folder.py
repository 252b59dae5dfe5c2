"""Anybody's folder: one sub-folder a class, nested as deep as you like."""

import os
from pathlib import Path

import numpy as np

from forerank.data.decode import EXTENSIONS
from forerank.data.table import Table
from forerank.errors import InputError

# Top folders with these names (and no others) say what part the classes beneath them play.
PARTS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
    "query": "test",
    "gallery": "test",
}


def image_files(root: Path) -> list[str]:
    """Every image file beneath a folder, as sorted relative paths; hidden ones are passed over."""
    found: list[str] = []
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__MACOSX")
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        found += [prefix + f for f in files if f.lower().endswith(EXTENSIONS) and not f.startswith(".")]
    return sorted(found)


def read(root: Path) -> Table:
    """Read a folder of class folders.

    The label is the path of the folder that holds the image ("shoes/boots"). When all are nested, the top
    folder is also the category. Everything is "train" (see `hold_out`), unless the top folders are called
    train, val, test, query, gallery: then they are the splits and the classes lie beneath them.
    """
    if not root.is_dir():
        raise InputError(f"no folder at {root}")
    path = image_files(root)
    if not path:
        raise InputError(f"no image files in {root} or beneath it; known endings are {' '.join(EXTENSIONS)}")
    loose = [p for p in path if "/" not in p]
    if loose:
        raise InputError(
            f"{root} holds {len(loose)} images outside any class folder (the first is {loose[0]}): "
            "put each class in a sub-folder of its own, or write a CSV with path and label"
        )
    top = np.array([p.split("/")[0] for p in path])
    names = set(top.tolist())
    split = np.full(len(path), "train")
    query = gallery = np.ones(len(path), dtype=bool)
    folders = [p.rsplit("/", 1)[0] for p in path]
    if len(names) > 1 and all(name.lower() in PARTS for name in names) and all("/" in f for f in folders):
        split = np.array([PARTS[name.lower()] for name in top])
        folders = [f.split("/", 1)[1] for f in folders]
        lower = np.char.lower(top)
        query, gallery = lower != "gallery", lower != "query"
    category = np.array([f.split("/")[0] for f in folders]) if all("/" in f for f in folders) else None
    return Table(
        path=np.array(path),
        label=np.array(folders),
        split=split,
        is_query=query,
        is_gallery=gallery,
        category=category,
        root=root,
        name=root.resolve().name,
    )
