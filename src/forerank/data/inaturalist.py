"""iNaturalist 2018 for retrieval: 5,690 species train, 2,452 others test (Smooth-AP's lists)."""

from pathlib import Path

import numpy as np

from forerank.data.data_set import Archive, DataSet
from forerank.data.lists import find_root, read_rows
from forerank.data.table import Table
from forerank.errors import InputError

TITLE = "iNaturalist 2018"
LISTS = {"train": "Inaturalist_train_set1.txt", "test": "Inaturalist_test_set1.txt"}
# The lists are not part of iNaturalist; the authors of Smooth-AP hand them out from their repository's page.
SOURCE_OF_LISTS = (
    "the two lists come from github.com/Andrew-Brown1/Smooth_AP (section Data): "
    "unpack Inat_dataset_splits beside train_val2018"
)


def recognise(root: Path) -> bool:
    """Whether a folder has this layout."""
    return any((folder / LISTS["train"]).is_file() for folder in (root, root / "Inat_dataset_splits"))


def read(root: Path) -> Table:
    """Read the two lists, lines like `train_val2018/Plantae/7477/3b60.jpg`; a class is "Plantae/7477"."""
    try:
        home = find_root(
            root, [f"Inat_dataset_splits/{LISTS['train']}", LISTS["train"]], ["Inaturalist"], TITLE
        )
    except InputError as error:
        raise InputError(f"{error} ({SOURCE_OF_LISTS})") from None
    folder = home / "Inat_dataset_splits" if (home / "Inat_dataset_splits").is_dir() else home
    path, split = [], []
    for part, name in LISTS.items():
        lines = [row[0] for row in read_rows(folder / name, TITLE, columns=1)]
        path += lines
        split += [part] * len(lines)
    parts = [p.split("/") for p in path]
    for line, words in zip(path, parts, strict=True):
        if len(words) < 3:
            raise InputError(
                f"{TITLE}: {line!r} in {folder} is not of the form train_val2018/super category/class/file"
            )
    return Table(
        path=np.array(path),
        label=np.array([f"{words[-3]}/{words[-2]}" for words in parts]),
        split=np.array(split),
        category=np.array([words[-3] for words in parts]),
        root=home,
        name="inaturalist",
    )


DATA_SET = DataSet(
    title="iNaturalist 2018, Smooth-AP's split",
    read=read,
    recognise=recognise,
    published={"paper": {"train": (325_846, 5_690), "test": (136_093, 2_452)}},
    ks=(1, 4, 16, 32),
    home="https://github.com/visipedia/inat_comp/tree/master/2018",
    archives=(
        Archive(
            "https://ml-inat-competition-datasets.s3.amazonaws.com/2018/train_val2018.tar.gz",
            md5="b1c6952ce38f31868cc50ea72d066cc3",
        ),
    ),
    steps=(
        "The split is not part of iNaturalist: get Inat_dataset_splits.zip from the page "
        "https://github.com/Andrew-Brown1/Smooth_AP (section Data, a Google Drive link).",
        "Unpack it beside train_val2018: Inat_dataset_splits/Inaturalist_train_set1.txt is then there.",
    ),
)
