"""CUB-200-2011 (birds): the first 100 species train, the last 100 test."""

from pathlib import Path

import numpy as np

from forerank.data.data_set import Archive, DataSet
from forerank.data.image_files import image_files
from forerank.data.lists import find_root, read_rows
from forerank.data.table import Table
from forerank.errors import InputError

TITLE = "CUB-200-2011"
FIRST_CLASS = "001.Black_footed_Albatross"
TRAIN_CLASSES = 100


def recognise(root: Path) -> bool:
    """Whether a folder has the official layout, or the train/test folders in which the set circulates."""
    official = (root / "images.txt").is_file() and (root / "image_class_labels.txt").is_file()
    return official or any((root / part / FIRST_CLASS).is_dir() for part in ("images", "train", "test"))


def read(root: Path, *, boxes: bool = False) -> Table:
    """Read `images.txt` where there is one, otherwise the class folders.

    The train and test folders in which the set circulates split the images of every species; for retrieval
    both are pooled and split by species.

    Args:
        boxes: cut every bird out by `bounding_boxes.txt` (official layout only).
    """
    marks = ["images.txt", *(f"{part}/{FIRST_CLASS}" for part in ("images", "train", "test"))]
    root = find_root(root, marks, ["CUB_200_2011"], TITLE)
    ids: list[str] = []
    if (root / "images.txt").is_file():
        rows = read_rows(root / "images.txt", TITLE, columns=2)
        ids = [number for number, _ in rows]
        path = [f"images/{name}" for _, name in rows]
    else:
        parts = [part for part in ("images", "train", "test") if (root / part / FIRST_CLASS).is_dir()]
        path = [f"{part}/{file}" for part in parts for file in image_files(root / part)]
    label = [p.split("/")[1] for p in path]
    try:
        number_of_class = np.array([int(name.split(".")[0]) for name in label])
    except ValueError:
        raise InputError(f"{TITLE}: the class folders in {root} must be called like {FIRST_CLASS}") from None
    box = None
    if boxes:
        if not ids:
            raise InputError(f"{TITLE}: boxes=True needs bounding_boxes.txt, which {root} does not have")
        given = {row[0]: row[1:] for row in read_rows(root / "bounding_boxes.txt", TITLE, columns=5)}
        left, top, wide, high = np.array([given[i] for i in ids], dtype=np.float64).T
        box = np.stack([left, top, left + wide, top + high], axis=1).astype(np.int32)
    return Table(
        path=np.array(path),
        label=np.array(label),
        split=np.where(number_of_class <= TRAIN_CLASSES, "train", "test"),
        box=box,
        root=root,
        name="cub",
    )


DATA_SET = DataSet(
    title="CUB-200-2011 (birds)",
    read=read,
    recognise=recognise,
    published={"paper": {"train": (5_864, 100), "test": (5_924, 100)}},
    home="https://data.caltech.edu/records/65de6-vp158",
    archives=(
        Archive(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
            size=1_150_585_339,
        ),
    ),
    options={"boxes": "true cuts every object out by its bounding box"},
)
