"""In-Shop Clothes Retrieval (DeepFashion): separate query and gallery images."""

from pathlib import Path

import numpy as np

from forerank.data.data_set import DataSet
from forerank.data.lists import find_root, read_rows
from forerank.data.table import Table
from forerank.errors import InputError

TITLE = "In-Shop"
LIST = "list_eval_partition.txt"
PLACES = (LIST, f"Eval/{LIST}")


def recognise(root: Path) -> bool:
    """Whether a folder has this layout (CelebA has a list of the same name, with other lines)."""
    for place in PLACES:
        if (root / place).is_file():
            with (root / place).open(encoding="utf-8", errors="replace") as lines:
                return "item_id" in "".join(line for line, _ in zip(lines, range(2), strict=False))
    return False


def read(root: Path) -> Table:
    """Read `list_eval_partition.txt` (in the root or in `Eval/`): image, item id, train / query / gallery."""
    root = find_root(root, PLACES, ["In-shop Clothes Retrieval Benchmark", "inshop", "DeepFashion"], TITLE)
    file = next(root / place for place in PLACES if (root / place).is_file())
    rows = read_rows(file, TITLE, columns=3, header=2)
    path, label, status = (np.array(column) for column in zip(*rows, strict=True))
    wrong = set(status.tolist()) - {"train", "query", "gallery"}
    if wrong:
        raise InputError(
            f"{TITLE}: {file} has the status {sorted(wrong)[0]!r}; known are train, query, gallery"
        )
    folder = root / "Img" if (root / "Img" / "img").is_dir() else root
    train = status == "train"
    return Table(
        path=path,
        label=label,
        split=np.where(train, "train", "test"),
        is_query=train | (status == "query"),
        is_gallery=train | (status == "gallery"),
        # "img/WOMEN/Dresses/id_00000002/02_1_front.jpg" -> "WOMEN/Dresses"
        category=np.array(["/".join(p.split("/")[1:3]) for p in path.tolist()]),
        root=folder,
        name="inshop",
    )


DATA_SET = DataSet(
    title="In-Shop Clothes Retrieval (DeepFashion)",
    read=read,
    recognise=recognise,
    published={"paper": {"train": (25_882, 3_997), "test": (26_830, 3_985)}},
    ks=(1, 10, 20, 30),
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    steps=(
        "Open the Google Drive folder of that page: take Img/img.zip and Eval/list_eval_partition.txt.",
        "Unpack img.zip beside Eval/: the folder then holds img/ and Eval/list_eval_partition.txt.",
    ),
)
