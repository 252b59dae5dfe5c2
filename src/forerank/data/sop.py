"""Stanford Online Products: 12 super categories of things sold on eBay."""

from pathlib import Path

import numpy as np

from forerank.data.data_set import Archive, DataSet
from forerank.data.lists import find_root, read_rows
from forerank.data.table import Table

TITLE = "Stanford Online Products"
LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
# The authors of the paper, and others, keep the lists in a folder of their own and the images beside it.
LIST_FOLDER, IMAGE_FOLDER = "Info_Files", "images"


def recognise(root: Path) -> bool:
    """Whether a folder has this layout."""
    return any(
        all((folder / name).is_file() for name in LISTS.values()) for folder in (root, root / LIST_FOLDER)
    )


def read(root: Path) -> Table:
    """Read `Ebay_train.txt` and `Ebay_test.txt`: image id, class id, super class id, path.

    They lie beside the images, as in the official archive, or in `Info_Files/` with the images in `images/`.
    """
    marks = [place + name for place in ("", f"{LIST_FOLDER}/") for name in LISTS.values()]
    root = find_root(root, marks, ["Stanford_Online_Products", "online_products"], TITLE)
    lists = root if (root / LISTS["train"]).is_file() else root / LIST_FOLDER
    rows, split = [], []
    for part, name in LISTS.items():
        listed = read_rows(lists / name, TITLE, columns=4, header=1)
        rows += listed
        split += [part] * len(listed)
    _, label, _, path = zip(*rows, strict=True)
    # "bicycle_final/111085122871_0.JPG" -> "bicycle"
    category = [p.split("/")[0].removesuffix("_final") for p in path]
    return Table(
        path=np.array([f"{IMAGE_FOLDER}/{p}" for p in path] if (root / IMAGE_FOLDER).is_dir() else path),
        label=np.array(label),
        split=np.array(split),
        category=np.array(category),
        root=root,
        name="sop",
    )


DATA_SET = DataSet(
    title="Stanford Online Products",
    read=read,
    recognise=recognise,
    published={"paper": {"train": (59_551, 11_318), "test": (60_502, 11_316)}},
    ks=(1, 10, 100, 1000),
    home="https://cvgl.stanford.edu/projects/lifted_struct/",
    archives=(
        Archive(
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            md5="7f73d41a2f44250d4779881525aea32e",
        ),
    ),
)
