"""The table, its CSV, and the variants made from it."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from forerank.data import Table, hold_out, merge_classes, noisy_labels, open_table, random_gallery
from forerank.errors import InputError
from forerank.metrics.files import read_labels


def a_table(classes: int = 10, images: int = 4) -> Table:
    n = classes * images
    return Table([f"{i}.jpg" for i in range(n)], [f"c{i // images:02d}" for i in range(n)], ["train"] * n)


def test_a_csv_as_open_metric_learning_users_have_it(tmp_path: Path) -> None:
    # Training rows leave the flags empty; one row has no box.
    (tmp_path / "df.csv").write_text(
        "label,path,split,is_query,is_gallery,category,x_1,x_2,y_1,y_2,sequence\n"
        "0,images/circle_1.jpg,train,,,circle,10,100,0,50,s1\n"
        "0,images/circle_2.jpg,train,,,circle,,,,,s1\n"
        "1,images/rec_1.jpg,validation,True,False,rec,0,9,0,8,s2\n"
        "1,images\\rec_2.jpg,validation,False,True,rec,0,9,0,8,s3\n"
    )
    table = open_table(tmp_path / "df.csv")
    assert table.counts() == {"train": (2, 1), "validation": (2, 1)}
    assert table.is_query.tolist() == [True, True, True, False]
    assert table.is_gallery.tolist() == [True, True, False, True]
    assert table.box is not None
    assert table.box.tolist() == [[10, 0, 100, 50], [0, 0, 0, 0], [0, 0, 9, 8], [0, 0, 9, 8]]
    assert table.category is not None
    assert table.category.tolist() == ["circle", "circle", "rec", "rec"]
    assert table.sequence is not None
    assert table.sequence.tolist() == ["s1", "s1", "s2", "s3"]
    assert table.files[3] == tmp_path / "images" / "rec_2.jpg"


def test_csv_round_trip_keeps_every_column(tmp_path: Path) -> None:
    table = Table(
        ["a, with comma.jpg", 'b"quoted".jpg', "ü/ñ.jpg"],
        ["x", "x", "y"],
        ["train", "validation", "test"],
        is_query=[True, False, True],
        is_gallery=[True, True, False],
        category=["k", "k", "l"],
        sequence=["1", "2", "3"],
        box=[[0, 0, 5, 5], [1, 2, 3, 4], [0, 0, 0, 0]],
    )
    table.write_csv(tmp_path / "t.csv")
    again = Table.read_csv(tmp_path / "t.csv")
    for column in ("path", "label", "split", "is_query", "is_gallery", "category", "sequence", "box"):
        assert np.array_equal(getattr(table, column), getattr(again, column)), column


def test_csv_for_open_metric_learning_meets_its_own_checks(tmp_path: Path) -> None:
    table = Table(
        list("abcdef"), list("ppqqrr"), ["train", "train", "validation", "validation", "test", "test"]
    )
    table.write_csv(tmp_path / "oml.csv", oml=True)
    with (tmp_path / "oml.csv").open() as file:
        rows = list(csv.DictReader(file))
    # What its format check asks for: two splits, empty flags in training, whole numbers as labels.
    assert {row["split"] for row in rows} == {"train", "validation"}
    assert [row["path"] for row in rows] == ["a", "b", "e", "f"]
    assert all(row["is_query"] == "" for row in rows if row["split"] == "train")
    assert all(row["is_query"] == "True" for row in rows if row["split"] == "validation")
    assert [int(row["label"]) for row in rows] == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,klass\na.jpg,1\n", "no column 'label'"),
        ("path,label\n", "no rows"),
        ("path,label\na.jpg,\n", "line 2"),
        ("path,label,split\na.jpg,1,trian\n", "unknown split 'trian' of 'a.jpg'"),
        ("path,label,is_query\na.jpg,1,maybe\n", "line 2: is_query is 'maybe'"),
        (
            "path,label,split,is_query\na.jpg,1,test,1\nb.jpg,1,test,\n",
            "line 3: is_query is empty where other rows say 1",
        ),
        ("path,label,x_1,y_1,x_2,y_2\na.jpg,1,left,0,1,1\n", "box columns"),
        ("path,label\na.jpg,1\nb.jpg,2\n", "fewer than two images"),
    ],
)
def test_a_bad_csv_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as error:
        open_table(tmp_path / "bad.csv")
    assert "\n" not in str(error.value)


def test_columns_of_unequal_length_and_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="'label' has 1 rows where 'path' has 2"):
        Table(["a", "b"], ["x"], ["train", "train"])
    with pytest.raises(InputError, match="did you mean 'train'"):
        a_table().select("trian")


def test_where_keeps_order_and_every_column() -> None:
    table = a_table().with_columns(category=np.array(["k"] * 40), sequence=np.arange(40).astype(str))
    part = table.where([7, 3, 30])
    assert part.path.tolist() == ["7.jpg", "3.jpg", "30.jpg"]
    assert part.sequence is not None
    assert part.sequence.tolist() == ["7", "3", "30"]
    assert len(table.where([])) == 0


def test_hold_out_takes_whole_classes() -> None:
    table = a_table(20)
    held = hold_out(table, 0.2, seed=3, test=0.3)
    labels = {split: set(held.label[held.split == split]) for split in ("train", "validation", "test")}
    assert {k: len(v) for k, v in labels.items()} == {"train": 10, "validation": 4, "test": 6}
    assert not labels["train"] & labels["validation"]
    assert not labels["train"] & labels["test"]
    assert np.array_equal(held.split, hold_out(table, 0.2, seed=3, test=0.3).split)
    assert not np.array_equal(held.split, hold_out(table, 0.2, seed=4, test=0.3).split)


def test_hold_out_leaves_a_test_split_alone_and_refuses_the_impossible() -> None:
    table = a_table(10).with_columns(split=np.array(["train"] * 20 + ["test"] * 20))
    held = hold_out(table, 0.4)
    assert (held.split == "test").sum() == 20
    with pytest.raises(InputError, match="3 training classes: too few"):
        hold_out(a_table(3), 0.3)
    with pytest.raises(InputError, match="fraction"):
        hold_out(a_table(), 1.5)


def test_merge_classes_gives_every_class_at_least_three_centres() -> None:
    table = a_table(11)
    test = Table(["t0", "t1"], ["z", "z"], ["test", "test"])
    both = Table(
        np.concatenate([table.path, test.path]),
        np.concatenate([table.label, test.label]),
        np.concatenate([table.split, test.split]),
    )
    merged = merge_classes(both, 3, seed=1)
    groups = [name.split("+") for name in np.unique(merged.label[merged.split == "train"])]
    assert sorted(len(g) for g in groups) == [3, 4, 4]
    assert sorted(name for g in groups for name in g) == table.classes.tolist()
    assert merged.label[-2:].tolist() == ["z", "z"]
    with pytest.raises(InputError, match="too few to merge"):
        merge_classes(a_table(2), 3)


def test_noisy_labels_are_exactly_as_many_as_asked_and_wrong() -> None:
    table = a_table(10)
    noisy = noisy_labels(table, 0.25, seed=2)
    assert (noisy.label != table.label).sum() == 10
    assert set(noisy.label) <= set(table.label)
    assert (noisy_labels(table, 1.0).label != table.label).all()
    assert np.array_equal(noisy.label, noisy_labels(table, 0.25, seed=2).label)


def test_random_gallery_has_one_image_of_each_class() -> None:
    table = random_gallery(a_table(7), seed=5)
    assert (table.is_query == ~table.is_gallery).all()
    assert sorted(table.label[table.is_gallery]) == table.classes.tolist()
    assert not np.array_equal(table.is_gallery, random_gallery(a_table(7), seed=6).is_gallery)


def test_an_empty_cell_means_the_same_in_every_reader(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "path,label,split,is_query,is_gallery\na.jpg,1,test,,no\nb.jpg,1,test,0,1\nc.jpg,1,test,1.0,\n"
    )
    table, labels = Table.read_csv(tmp_path / "t.csv"), read_labels(tmp_path / "t.csv")
    for flags in (table, labels):
        assert flags.is_query.tolist() == [True, False, True]
        assert flags.is_gallery.tolist() == [False, True, True]
    (tmp_path / "t.csv").write_text("path,label,split,is_query\na.jpg,1,test,1\nb.jpg,1,test,\n")
    for read in (Table.read_csv, read_labels):
        with pytest.raises(InputError, match="line 3: is_query is empty where other rows say 1"):
            read(tmp_path / "t.csv")


def test_other_columns_of_a_csv_are_kept(tmp_path):
    (tmp_path / "shop.csv").write_text("path,label,price,URL\n1.jpg,a,9.90,x\n2.jpg,b,,y\n")
    table = Table.read_csv(tmp_path / "shop.csv")
    assert {name: column.tolist() for name, column in table.further.items()} == {
        "price": ["9.90", ""],
        "URL": ["x", "y"],
    }
    assert table.where([1]).further["URL"].tolist() == ["y"]
    table.write_csv(tmp_path / "again.csv")
    assert Table.read_csv(tmp_path / "again.csv").further["price"].tolist() == ["9.90", ""]
    with pytest.raises(InputError, match="column 'price' has 1 rows"):
        table.with_columns(further={"price": ["1"]})
