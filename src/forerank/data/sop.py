"""Stanford Online Products: 12 super categories of things sold on eBay."""

from pathlib import Path

import numpy as np

from forerank.data.lists import find_root, read_rows
from forerank.data.table import Table

TITLE = "Stanford Online Products"
LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}


def recognise(root: Path) -> bool:
    """Whether a folder has this layout."""
    return all((root / name).is_file() for name in LISTS.values())


def read(root: Path) -> Table:
    """Read `Ebay_train.txt` and `Ebay_test.txt`: image id, class id, super class id, path."""
    root = find_root(root, list(LISTS.values()), ["Stanford_Online_Products"], TITLE)
    rows, split = [], []
    for part, name in LISTS.items():
        listed = read_rows(root / name, TITLE, columns=4, header=1)
        rows += listed
        split += [part] * len(listed)
    _, label, _, path = zip(*rows, strict=True)
    # "bicycle_final/111085122871_0.JPG" -> "bicycle"
    category = [p.split("/")[0].removesuffix("_final") for p in path]
    return Table(
        path=np.array(path),
        label=np.array(label),
        split=np.array(split),
        category=np.array(category),
        root=root,
        name="sop",
    )
