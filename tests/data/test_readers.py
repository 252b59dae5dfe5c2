"""Readers of the official layouts, on small trees of exactly that layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerank.cli import run
from forerank.data import open_table
from forerank.data.open import source_name
from forerank.data.registry import DATA_SETS
from forerank.errors import InputError
from forerank.search.images import list_images


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def sop(tmp_path: Path) -> Path:
    head = "image_id class_id super_class_id path\n"
    put(
        tmp_path / "Ebay_train.txt",
        head + "1 1 1 bicycle_final/111085122871_0.JPG\n2 1 1 bicycle_final/111085122871_1.JPG\n"
        "3 2 2 cabinet_final/1_0.JPG\n4 2 2 cabinet_final/1_1.JPG\n",
    )
    put(
        tmp_path / "Ebay_test.txt",
        head + "5 11319 1 bicycle_final/2_0.JPG\n6 11319 1 bicycle_final/2_1.JPG\n",
    )
    return tmp_path


def test_sop(sop: Path) -> None:
    for table in (open_table("sop", sop), open_table(sop)):
        assert table.counts() == {"train": (4, 2), "test": (2, 1)}
        assert table.category is not None
        assert set(table.category) == {"bicycle", "cabinet"}
        assert table.files[0] == sop / "bicycle_final" / "111085122871_0.JPG"
    outer = sop.parent / "outer"
    outer.mkdir()
    (outer / "Stanford_Online_Products").symlink_to(sop)
    assert len(open_table("sop", outer)) == 6


def test_sop_faults_are_named(sop: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        open_table("sop", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"looked in .*empty for Ebay_train\.txt or Ebay_test\.txt"):
        open_table("sop", tmp_path / "empty")
    put(sop / "Ebay_test.txt", "head\n5 2 1 bicycle_final/2_0.JPG\n6 2 1 bicycle_final/2_1.JPG\n")
    with pytest.raises(InputError, match="class '2' is in train and in test"):
        open_table("sop", sop)
    put(sop / "Ebay_test.txt", "head\n5 2\n")
    with pytest.raises(InputError, match=r"Ebay_test\.txt line 2 has 2 columns where 4 were expected"):
        open_table("sop", sop)
    (sop / "Ebay_test.txt").unlink()
    with pytest.raises(InputError, match=r"the list file .*Ebay_test\.txt does not exist"):
        open_table("sop", sop)


@pytest.fixture
def vehicle_id(tmp_path: Path) -> Path:
    lists = tmp_path / "train_test_split"
    put(lists / "train_list.txt", "0000001 7\n0000002 7\n0000003 8\n0000004 8\n")
    for number, name in enumerate(("800", "1600", "2400"), start=1):
        rows = "".join(f"{100 * v + i:07d} {v}\n" for v in range(100, 100 + 2 * number) for i in range(3))
        put(lists / f"test_list_{name}.txt", rows)
    put(tmp_path / "attribute" / "model_attr.txt", "7 3\n8 4\n")
    return tmp_path


def test_vehicle_id_has_three_test_lists_and_two_protocols(vehicle_id: Path) -> None:
    sizes = {
        test: len(open_table(vehicle_id, test=test).select("test")) for test in ("small", "medium", "large")
    }
    assert sizes == {"small": 6, "medium": 12, "large": 18}
    table = open_table("vehicle_id", vehicle_id, test="medium")
    assert table.path[0] == "image/0000001.jpg"
    assert table.category is not None
    assert table.category[0] == "3"
    assert table.is_query.all()
    assert table.is_gallery.all()
    own = [
        open_table(vehicle_id, test="medium", protocol="one_gallery", draw=d).select("test") for d in (0, 1)
    ]
    for test in own:
        assert sorted(test.label[test.is_gallery]) == test.classes.tolist()
        assert (test.is_query ^ test.is_gallery).all()
    assert not np.array_equal(own[0].is_gallery, own[1].is_gallery)
    with pytest.raises(InputError, match="did you mean 'small'"):
        open_table(vehicle_id, test="smal")
    with pytest.raises(InputError, match="did you mean 'protocol'"):
        open_table(vehicle_id, protocoll="all")


def test_published_counts_follow_the_chosen_list() -> None:
    counts = DATA_SETS["vehicle_id"].published_counts({"test": "small"})
    assert counts["paper"]["test"] == (7_332, 800)
    assert counts["released lists"]["test"] == (6_493, 800)


def test_inaturalist_reads_the_lists_of_smooth_ap(tmp_path: Path) -> None:
    lists = tmp_path / "Inat_dataset_splits"
    put(
        lists / "Inaturalist_train_set1.txt",
        "train_val2018/Plantae/7477/a.jpg\ntrain_val2018/Plantae/7477/b.jpg\n",
    )
    put(lists / "Inaturalist_test_set1.txt", "train_val2018/Aves/3/c.jpg\ntrain_val2018/Aves/3/d.jpg\n")
    table = open_table(tmp_path)
    assert table.name == "inaturalist"
    assert table.label.tolist() == ["Plantae/7477", "Plantae/7477", "Aves/3", "Aves/3"]
    assert table.category is not None
    assert table.category.tolist() == ["Plantae"] * 2 + ["Aves"] * 2
    assert table.files[0] == tmp_path / "train_val2018/Plantae/7477/a.jpg"
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="Smooth_AP"):
        open_table("inaturalist", tmp_path / "other")


BIRDS = ["001.Black_footed_Albatross", "100.Brown_Pelican", "101.White_Pelican", "200.Common_Yellowthroat"]


def test_cub_official_layout(tmp_path: Path) -> None:
    names = [f"{bird}/{bird[4:]}_{i}.jpg" for bird in BIRDS for i in range(2)]
    put(tmp_path / "images.txt", "".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    put(
        tmp_path / "image_class_labels.txt",
        "".join(f"{i} {int(name[:3])}\n" for i, name in enumerate(names, 1)),
    )
    put(tmp_path / "bounding_boxes.txt", "".join(f"{i} 2.0 3.0 10.0 20.0\n" for i in range(1, 9)))
    table = open_table(tmp_path)
    assert table.name == "cub"
    assert table.box is None
    assert table.counts() == {"train": (4, 2), "test": (4, 2)}
    assert set(table.label[table.split == "train"]) == set(BIRDS[:2])
    assert table.path[0] == "images/001.Black_footed_Albatross/Black_footed_Albatross_0.jpg"
    boxes = open_table(tmp_path, boxes=True).box
    assert boxes is not None
    assert boxes[0].tolist() == [2, 3, 12, 23]


def test_cub_as_it_circulates_is_pooled_and_split_by_species(tmp_path: Path, image: Any) -> None:
    for part in ("train", "test"):
        for n, bird in enumerate(BIRDS):
            image(tmp_path / part / bird / f"{part}_{n}.jpg", n)
    table = open_table(tmp_path)
    assert table.counts() == {"train": (4, 2), "test": (4, 2)}
    assert set(table.label[table.split == "train"]) == set(BIRDS[:2])
    assert all(file.is_file() for file in table.files)
    with pytest.raises(InputError, match=r"needs bounding_boxes\.txt"):
        open_table(tmp_path, boxes=True)


def test_cars196_from_mat_files(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io")
    kind = [("relative_im_path", "O"), ("bbox_x1", "O"), ("bbox_y1", "O"), ("bbox_x2", "O"), ("bbox_y2", "O"),
            ("class", "O"), ("test", "O")]  # fmt: skip
    rows = [
        (f"car_ims/{i:06d}.jpg", 1, 2, 30, 40, n, 0) for i, n in enumerate([1, 1, 98, 98, 99, 99, 196, 196])
    ]
    io.savemat(tmp_path / "cars_annos.mat", {"annotations": np.array([rows], dtype=kind)})
    table = open_table(tmp_path, boxes=True)
    assert table.name == "cars196"
    assert table.counts() == {"train": (4, 2), "test": (4, 2)}
    assert table.label.tolist()[:3] == ["001", "001", "098"]
    assert table.box is not None
    assert table.box[0].tolist() == [1, 2, 30, 40]
    assert table.path[0] == "car_ims/000000.jpg"


def test_cars196_from_the_devkit(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io")
    kind = [(f"bbox_{c}", "O") for c in ("x1", "x2", "y1", "y2")] + [("class", "O"), ("fname", "O")]
    for name, classes in (("devkit/cars_train_annos", [1, 196]), ("cars_test_annos_withlabels", [1, 196])):
        rows = [(1, 9, 2, 8, n, f"{i:05d}.jpg") for i, n in enumerate(classes)]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        io.savemat(tmp_path / f"{name}.mat", {"annotations": np.array([rows], dtype=kind)})
    table = open_table(tmp_path)
    assert table.counts() == {"train": (2, 1), "test": (2, 1)}
    assert sorted(table.path[table.split == "train"]) == ["cars_test/00000.jpg", "cars_train/00000.jpg"]
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(InputError, match=r"there is no list file .*cars_test_annos_withlabels"):
        open_table(tmp_path)


def test_cars196_from_class_folders(tmp_path: Path) -> None:
    names = ["AM General Hummer SUV 2000", *(f"Car {i:03d}" for i in range(195))]
    for part in ("train", "test"):
        for name in names:
            put(tmp_path / part / name / "1.jpg", "not read here")
    table = open_table(tmp_path)
    assert table.counts() == {"train": (196, 98), "test": (196, 98)}
    assert "Car 096" in table.label[table.split == "train"]
    assert "Car 097" in table.label[table.split == "test"]
    (tmp_path / "train" / "Car 005" / "1.jpg").unlink()
    (tmp_path / "test" / "Car 005" / "1.jpg").unlink()
    with pytest.raises(InputError, match="195 class folders where 196 were expected"):
        open_table(tmp_path)


def test_inshop_has_queries_and_gallery(tmp_path: Path) -> None:
    lines = [
        "img/MEN/Denim/id_1/01_1_front.jpg id_1 train",
        "img/MEN/Denim/id_1/01_2_side.jpg   id_1 train",
        "img/WOMEN/Dresses/id_2/02_1_front.jpg id_2 query",
        "img/WOMEN/Dresses/id_2/02_2_back.jpg id_2 gallery",
    ]
    put(
        tmp_path / "Eval" / "list_eval_partition.txt",
        "4\nimage_name item_id evaluation_status\n" + "\n".join(lines),
    )
    table = open_table(tmp_path)
    assert table.name == "inshop"
    assert table.split.tolist() == ["train", "train", "test", "test"]
    assert table.is_query.tolist() == [True, True, True, False]
    assert table.is_gallery.tolist() == [True, True, False, True]
    assert table.category is not None
    assert table.category.tolist()[::2] == ["MEN/Denim", "WOMEN/Dresses"]
    put(tmp_path / "celeba" / "list_eval_partition.txt", "000001.jpg 0\n000002.jpg 0\n")
    assert source_name(tmp_path / "celeba") is None


def test_a_plain_folder_nested_or_not(class_folder: Path, image: Any) -> None:
    table = open_table(class_folder)
    assert table.counts() == {"train": (18, 6)}
    assert table.category is None
    assert table.name == "things"
    assert all(f.is_file() for f in table.files)
    (class_folder / "class0" / "notes.txt").write_text("no image")
    (class_folder / ".hidden").mkdir()
    image(class_folder / ".hidden" / "x.png", 1)
    (class_folder / "class0" / "loop").symlink_to(class_folder)
    assert len(open_table(class_folder)) == 18
    nested = class_folder.parent / "nested"
    for i in range(8):
        image(nested / ("shoes" if i < 4 else "bags") / f"item{i // 2}" / f"{i}.JPG", i)
    table = open_table(nested)
    assert table.classes.tolist() == ["bags/item2", "bags/item3", "shoes/item0", "shoes/item1"]
    assert table.category is not None
    assert set(table.category) == {"bags", "shoes"}


def test_a_folder_of_splits(tmp_path: Path, image: Any) -> None:
    for part in ("train", "query", "gallery"):
        for i in range(4):
            image(tmp_path / part / f"{'a' if part == 'train' else 'b'}{i // 2}" / f"{i}.png", i)
    table = open_table(tmp_path)
    assert table.counts() == {"train": (4, 2), "test": (8, 2)}
    test = table.select("test")
    assert test.is_query.sum() == 4
    assert (test.is_query ^ test.is_gallery).all()


def test_folder_faults_are_named(tmp_path: Path, image: Any) -> None:
    with pytest.raises(InputError, match="no image files in"):
        open_table(tmp_path)
    image(tmp_path / "loose.png", 0)
    with pytest.raises(InputError, match=r"holds 1 image \(loose\.png\) and no class folders"):
        open_table(tmp_path)
    image(tmp_path / "a" / "1.png", 0)
    image(tmp_path / "b" / "1.png", 0)
    with pytest.raises(InputError, match="every class has fewer than two images"):
        open_table(tmp_path)
    with pytest.raises(InputError, match="takes no options, but 'merged'"):
        open_table(tmp_path / "a", merged=3)


def test_names_are_helped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'glyphs'"):
        open_table("glyph")
    monkeypatch.setenv("FORERANK_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"cub was looked for in .*cub and is not there"):
        open_table("cub")


def test_sop_is_also_read_as_the_authors_of_the_paper_keep_it(sop: Path, tmp_path: Path) -> None:
    official = open_table("sop", sop)
    theirs = tmp_path / "online_products"
    for name in ("Ebay_train.txt", "Ebay_test.txt"):
        put(theirs / "Info_Files" / name, (sop / name).read_text())
    (theirs / "images").mkdir()
    for folder in (theirs, theirs.parent / "around"):
        if folder != theirs:
            folder.mkdir()
            theirs.rename(folder / "online_products")
        table = open_table("sop", folder)
        assert table.path.tolist() == [f"images/{path}" for path in official.path]
        for column in ("label", "split", "category"):
            assert (getattr(table, column) == getattr(official, column)).all()
    assert source_name(folder / "online_products") == "sop"


def test_what_is_left_out_of_a_folder_is_named(class_folder: Path, image: Any) -> None:
    image(class_folder / "loose.png", 99)
    (class_folder / "class0" / "film.mp4").write_bytes(b"x")
    table = open_table(class_folder)
    assert table.counts() == {"train": (18, 6)}
    assert table.notes == (
        "1 video file was left out (class0/film.mp4): take single pictures out of it, "
        "for instance with ffmpeg",
        "1 image lies outside every class folder and was left out (loose.png): "
        "move it into a sub-folder of its class",
    )
    image(class_folder / "second.png", 98)
    assert open_table(class_folder).notes[1] == (
        "2 images lie outside every class folder and were left out (the first is loose.png): "
        "move each into a sub-folder of its class"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("./nope", "the folder ./nope does not exist"),
        ("~/nope/deep", "the folder ~/nope/deep does not exist"),
        ("./x.csv", "the file ./x.csv does not exist"),
        ("./thigns", "the folder ./thigns does not exist: did you mean 'things'?"),
    ],
)
def test_a_path_that_does_not_exist_is_called_that_by_every_command(
    source: str, said: str, class_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(class_folder.parent)
    for words in (
        ["train", source],
        ["data", "check", source],
        ["data", "export", source, "out.csv"],
        ["index", "glyphnet", source, "-o", "index"],
    ):
        assert run(words) == 2
        assert capsys.readouterr().err == f"forerank: {said}\n"


def test_an_index_holds_loose_images_too(class_folder: Path, image: Any, capsys: Any) -> None:
    image(class_folder / "loose.png", 99)
    (class_folder / "class0" / "film.mp4").write_bytes(b"x")
    images = list_images(class_folder)
    assert dict(zip(images.paths, images.labels, strict=True))["loose.png"] == ""
    assert len(images.paths) == 19
    assert "1 video file was left out" in capsys.readouterr().err
