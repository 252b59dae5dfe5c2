"""The data sets known by name: how to read them, what their papers counted, where they come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerank.data import cars196, cub, glyphs, inaturalist, inshop, sop, vehicle_id
from forerank.data.table import Table

Counts = Mapping[str, tuple[int, int]]  # split -> images, classes


@dataclass(frozen=True)
class Archive:
    """A file to download: where it is, and what it must be.

    Args:
        md5: as published by the makers or their loaders; None if nobody published one.
        size: bytes, if known.
    """

    url: str
    md5: str | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """File name of the archive."""
        return self.url.rsplit("/", 1)[-1].split("?")[0]


@dataclass(frozen=True)
class DataSet:
    """One entry of the registry.

    Args:
        read: folder and options -> table.
        recognise: whether a folder has the official layout.
        published: source -> counts by split; a function where they depend on the options.
        ks: recall is reported at these.
        home: page of the makers.
        archives: what can be downloaded without asking anybody.
        steps: how to get the set, or what else to do after the download.
    """

    title: str
    read: Callable[..., Table]
    recognise: Callable[[Path], bool]
    published: Mapping[str, Counts] | Callable[[dict[str, Any]], Mapping[str, Counts]]
    ks: tuple[int, ...]
    home: str
    archives: tuple[Archive, ...] = ()
    steps: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def published_counts(self, options: dict[str, Any]) -> Mapping[str, Counts]:
        """Source -> split -> (images, classes)."""
        return self.published(options) if callable(self.published) else self.published


_BOXES = {"boxes": "true cuts every object out by its bounding box"}

DATA_SETS: dict[str, DataSet] = {
    "glyphs": DataSet(
        title="Glyphs: characters in the typefaces that matplotlib ships",
        read=glyphs.read,
        recognise=lambda root: False,
        published={"reference": glyphs.COUNTS},
        ks=(1, 2, 4, 8),
        home="drawn on this machine from matplotlib's fonts",
        steps=("Nothing to do: the images are drawn when first needed and kept in the cache.",),
        options={
            "merged": "merge every so many training classes into one",
            "noise": "share of wrong training labels",
            "seed": "of the two variants",
        },
    ),
    "sop": DataSet(
        title="Stanford Online Products",
        read=sop.read,
        recognise=sop.recognise,
        published={"paper": {"train": (59_551, 11_318), "test": (60_502, 11_316)}},
        ks=(1, 10, 100, 1000),
        home="https://cvgl.stanford.edu/projects/lifted_struct/",
        archives=(
            Archive(
                "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                md5="7f73d41a2f44250d4779881525aea32e",
            ),
        ),
    ),
    "vehicle_id": DataSet(
        title="VehicleID (PKU)",
        read=vehicle_id.read,
        recognise=vehicle_id.recognise,
        published=vehicle_id.published,
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
    ),
    "inaturalist": DataSet(
        title="iNaturalist 2018, Smooth-AP's split",
        read=inaturalist.read,
        recognise=inaturalist.recognise,
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
    ),
    "cub": DataSet(
        title="CUB-200-2011 (birds)",
        read=cub.read,
        recognise=cub.recognise,
        published={"paper": {"train": (5_864, 100), "test": (5_924, 100)}},
        ks=(1, 2, 4, 8),
        home="https://data.caltech.edu/records/65de6-vp158",
        archives=(
            Archive(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                md5="97eceeb196236b17998738112f37df78",
                size=1_150_585_339,
            ),
        ),
        options=_BOXES,
    ),
    "cars196": DataSet(
        title="Cars196 (Stanford Cars)",
        read=cars196.read,
        recognise=cars196.recognise,
        published={"paper": {"train": (8_054, 98), "test": (8_131, 98)}},
        ks=(1, 2, 4, 8),
        home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        archives=(Archive("http://ftp.cs.stanford.edu/cs/cvgl/CARS196.zip"),),
        steps=("Any copy will do that has cars_annos.mat beside car_ims/, devkit/, or one folder a model.",),
        options=_BOXES,
    ),
    "inshop": DataSet(
        title="In-Shop Clothes Retrieval (DeepFashion)",
        read=inshop.read,
        recognise=inshop.recognise,
        published={"paper": {"train": (25_882, 3_997), "test": (26_830, 3_985)}},
        ks=(1, 10, 20, 30),
        home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        steps=(
            "Open the Google Drive folder of that page: take Img/img.zip and Eval/list_eval_partition.txt.",
            "Unpack img.zip beside Eval/: the folder then holds img/ and Eval/list_eval_partition.txt.",
        ),
    ),
}
"""The data sets by name. `open_table` and recipes look a name up here; a new entry adds a data set."""
