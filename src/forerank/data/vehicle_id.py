"""VehicleID (PKU): vehicles seen by surveillance cameras, one class per vehicle."""

from pathlib import Path
from typing import Any

import numpy as np

from forerank.data.data_set import DataSet
from forerank.data.lists import find_root, read_rows
from forerank.data.split import random_gallery
from forerank.data.table import Table
from forerank.errors import check_name

TITLE = "VehicleID"
TEST_LISTS = {"small": "test_list_800.txt", "medium": "test_list_1600.txt", "large": "test_list_2400.txt"}
PROTOCOLS = ("all", "one_gallery")
# Images and classes; the lists that are handed out today differ from the paper's table.
PAPER = {
    "train": (110_178, 13_134),
    "small": (7_332, 800),
    "medium": (12_995, 1_600),
    "large": (20_038, 2_400),
}
RELEASED = {
    "train": (113_346, 13_164),
    "small": (6_493, 800),
    "medium": (13_377, 1_600),
    "large": (19_777, 2_400),
}


def recognise(root: Path) -> bool:
    """Whether a folder has this layout."""
    return (root / "train_test_split" / "train_list.txt").is_file()


def published(options: dict[str, Any]) -> dict[str, dict[str, tuple[int, int]]]:
    """Counts of the train list and of the chosen test list, by source."""
    test = options.get("test", "large")
    return {
        source: {"train": counts["train"], "test": counts[test]}
        for source, counts in (("paper", PAPER), ("released lists", RELEASED))
    }


def read(root: Path, *, test: str = "large", protocol: str = "all", draw: int = 0) -> Table:
    """Read `train_test_split/train_list.txt` and one of the three test lists: image name, vehicle id.

    Args:
        test: "small" (800 vehicles), "medium" (1,600) or "large" (2,400).
        protocol: "all": every test image queries all the others (the paper). "one_gallery": one random image
            of each vehicle is the gallery, the others are queries (the set's own; average over ten draws).
        draw: which random gallery, 0 to 9.
    """
    check_name("VehicleID test list", test, TEST_LISTS)
    check_name("VehicleID protocol", protocol, PROTOCOLS)
    root = find_root(root, ["train_test_split"], ["VehicleID_V1.0", "VehicleID", "vehicle_id"], TITLE)
    train = read_rows(root / "train_test_split" / "train_list.txt", TITLE, columns=2)
    held = read_rows(root / "train_test_split" / TEST_LISTS[test], TITLE, columns=2)
    rows = train + held
    models = root / "attribute" / "model_attr.txt"
    model_of = dict(read_rows(models, TITLE, columns=2)) if models.is_file() else {}
    table = Table(
        # Some copies of the lists name "0000001", some "1": the files have seven digits.
        path=np.array([f"image/{name.removesuffix('.jpg').zfill(7)}.jpg" for name, _ in rows]),
        label=np.array([vehicle for _, vehicle in rows]),
        split=np.array(["train"] * len(train) + ["test"] * len(held)),
        category=np.array([model_of.get(vehicle, "unknown") for _, vehicle in rows]) if model_of else None,
        root=root,
        name=f"vehicle_id ({test})",
    )
    if protocol == "one_gallery":
        drawn = random_gallery(table, seed=draw)
        is_test = table.split == "test"
        table = table.with_columns(
            is_gallery=~is_test | drawn.is_gallery, is_query=~is_test | drawn.is_query
        )  # training rows keep both parts
    return table


DATA_SET = DataSet(
    title="VehicleID (PKU)",
    read=read,
    recognise=recognise,
    published=published,
    ks=(1, 5),
    home="https://pkuml.org/resources/pku-vehicleid.html",
    steps=(
        "Ask the makers for access, as their page describes; it is given for research.",
        "Unpack: the folder then holds image/, attribute/ and train_test_split/.",
    ),
    options={
        "test": "small, medium or large (default)",
        "protocol": "all (the paper, default) or one_gallery (the data set's own)",
        "draw": "which random gallery of one_gallery, 0 to 9",
    },
)
