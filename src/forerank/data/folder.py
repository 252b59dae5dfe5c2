"""Anybody's folder: one sub-folder per class, nested as deep as you like."""

from pathlib import Path

import numpy as np

from forerank.data.image_files import no_images, scan_folder
from forerank.data.table import Table
from forerank.errors import InputError

# If all top folders have names from this list, they are the splits and the classes lie beneath them.
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


def _some_images(paths: list[str]) -> str:
    """How many images there are, and one of them.

    >>> _some_images(["a.jpg"]), _some_images(["a.jpg", "b.jpg"])
    ('1 image (a.jpg)', '2 images (the first is a.jpg)')
    """
    return f"1 image ({paths[0]})" if len(paths) == 1 else f"{len(paths):,} images (the first is {paths[0]})"


def read(root: Path) -> Table:
    """Read a folder of class folders.

    The label is the path of the folder that holds the image ("shoes/boots"). When all are nested, the top
    folder is also the category. Everything is "train" (see `hold_out`), unless the top folders are called
    train, val, test, query, gallery: then they are the splits and the classes lie beneath them.

    Images beside the class folders belong to no class. They are left out and named in the table's notes, as
    are HEIC, PDF, video and other files that cannot be read.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    content = scan_folder(root)
    if not content.images:
        raise no_images(root, content)
    path = [p for p in content.images if "/" in p]
    loose = [p for p in content.images if "/" not in p]
    if not path:
        raise InputError(
            f"{root} holds {_some_images(loose)} and no class folders: "
            "make one sub-folder per class, or write a CSV file with the columns path and label"
        )
    notes = content.notes()
    if loose:
        notes += (
            f"1 image lies outside every class folder and was left out ({loose[0]}): "
            "move it into a sub-folder of its class"
            if len(loose) == 1
            else f"{len(loose):,} images lie outside every class folder and were left out "
            f"(the first is {loose[0]}): move each into a sub-folder of its class",
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
        notes=notes,
    )
