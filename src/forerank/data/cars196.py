"""Cars196 (Stanford Cars): the first 98 models train, the last 98 test."""

from pathlib import Path
from typing import Any

import numpy as np

from forerank.data.data_set import Archive, DataSet
from forerank.data.image_files import image_files
from forerank.data.lists import find_root
from forerank.data.table import Table
from forerank.errors import InputError, require

TITLE = "Cars196"
CLASSES, TRAIN_CLASSES = 196, 98
FIRST_CLASS = "AM General Hummer SUV 2000"
DEVKIT = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
PLACES = ("", "train", "test", "images", "car_data/train", "car_data/test", "car_data/car_data/train",
          "car_data/car_data/test")  # fmt: skip


def _class_folders(root: Path) -> list[str]:
    return [place for place in PLACES if (root / place / FIRST_CLASS).is_dir()]


def recognise(root: Path) -> bool:
    """Whether a folder has one of the three layouts."""
    devkit = (root / "devkit" / DEVKIT["cars_train"]).is_file()
    return (root / "cars_annos.mat").is_file() or devkit or bool(_class_folders(root))


def read(root: Path, *, boxes: bool = False) -> Table:
    """Read `cars_annos.mat`, or `devkit/` with `cars_train/` and `cars_test/`, or class folders.

    The .mat files need scipy. Class folders (as on Kaggle) are numbered in alphabetical order, which is
    the order of the official numbers.

    Args:
        boxes: cut every car out by its bounding box (.mat layouts only).
    """
    marks = ["cars_annos.mat", "devkit", *(f"{place}/{FIRST_CLASS}".lstrip("/") for place in PLACES)]
    root = find_root(root, marks, ["cars196", "CARS196", "stanford_cars", "stanford-cars"], TITLE)
    if (root / "cars_annos.mat").is_file():
        rows = _annotations(root / "cars_annos.mat", "relative_im_path", "")
    elif (root / "devkit").is_dir():
        rows = []
        for folder, name in DEVKIT.items():
            # The copy with the labels of the test images lies beside devkit/ in the official downloads.
            places = [p for p in (root / "devkit" / name, root / name) if p.is_file()]
            if not places:
                raise InputError(f"{TITLE}: there is no list file {root / 'devkit' / name} or {root / name}")
            rows += _annotations(places[0], "fname", f"{folder}/")
    else:
        if boxes:
            raise InputError(f"{TITLE}: boxes=True needs cars_annos.mat, which {root} does not have")
        return _read_folders(root)
    path, number, box = zip(*rows, strict=True)
    return Table(
        path=np.array(path),
        label=np.array([f"{n:03d}" for n in number]),
        split=np.where(np.array(number) <= TRAIN_CLASSES, "train", "test"),
        box=np.array(box) if boxes else None,
        root=root,
        name="cars196",
    )


def _annotations(file: Path, path_field: str, prefix: str) -> list[tuple[str, int, tuple[int, ...]]]:
    """Path, class number and box (x1, y1, x2, y2) of every image in a .mat file."""
    scipy_io: Any = require("scipy.io")
    content = scipy_io.loadmat(str(file), squeeze_me=True, struct_as_record=True)
    if "annotations" not in content or path_field not in (content["annotations"].dtype.names or ()):
        raise InputError(f"{TITLE}: {file} has no annotations with the field {path_field!r}")
    annotations = np.atleast_1d(content["annotations"])
    if "class" not in (annotations.dtype.names or ()):
        raise InputError(f"{TITLE}: {file} has no classes; cars_test_annos_withlabels.mat has them")
    corners = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
    return [
        (prefix + str(row[path_field]), int(row["class"]), tuple(int(row[c]) for c in corners))
        for row in annotations
    ]


def _read_folders(root: Path) -> Table:
    path = [
        f"{place}/{file}".lstrip("/") for place in _class_folders(root) for file in image_files(root / place)
    ]
    label = np.array([p.split("/")[-2] for p in path])
    classes = np.unique(label)
    if len(classes) != CLASSES:
        raise InputError(
            f"{TITLE}: {root} has {len(classes)} class folders where {CLASSES} were expected; "
            "the split goes by their order, so none may be missing"
        )
    return Table(
        path=np.array(path),
        label=label,
        split=np.where(np.isin(label, classes[:TRAIN_CLASSES]), "train", "test"),
        root=root,
        name="cars196",
    )


DATA_SET = DataSet(
    title="Cars196 (Stanford Cars)",
    read=read,
    recognise=recognise,
    published={"paper": {"train": (8_054, 98), "test": (8_131, 98)}},
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    archives=(Archive("http://ftp.cs.stanford.edu/cs/cvgl/CARS196.zip"),),
    steps=("Any copy will do: cars_annos.mat beside car_ims/, or devkit/, or one folder per car model.",),
    options={"boxes": "true cuts every object out by its bounding box"},
)
