"""forerank data check: faults put in on purpose are found and named, and nothing is changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from forerank.cli import run
from forerank.data import Table, check_table, hold_out, open_table


def test_a_clean_folder_is_clean(class_folder: Path) -> None:
    check = check_table(hold_out(open_table(class_folder), 0.34))
    assert check.problems == 0
    assert check.counts == {"train": (12, 4), "validation": (6, 2)}
    assert check.formats == {"PNG": 18}
    assert check.modes == {"RGB": 18}
    assert check.smallest == check.largest == (16, 12)
    assert "no problems" in str(check)


@pytest.mark.parametrize("pixels", [False, True])
def test_every_fault_is_named(class_folder: Path, pixels: bool) -> None:
    table = open_table(class_folder)
    split = table.split.astype("<U10")
    split[12:] = "test"
    table = table.with_columns(split=split, path=table.path.copy())
    names = table.path.tolist()
    assert names[0] == "class0/0.png"
    (class_folder / "class0/1.png").unlink()
    (class_folder / "class1/3.png").write_bytes(b"")
    shutil.copy(class_folder / "class2/6.png", class_folder / "class4/12.png")  # train -> test, other class
    shutil.copy(class_folder / "class3/10.png", class_folder / "class3/9.png")  # copy within a class
    whole = (class_folder / "class5/15.png").read_bytes()
    (class_folder / "class5/15.png").write_bytes(whole[:-40])  # the header is whole, the pixels are not
    twice = table.where([*range(len(table)), names.index("class2/8.png")])
    before = {file: file.read_bytes() for file in class_folder.rglob("*.png")}
    check = check_table(twice, pixels=pixels)
    assert check.missing == ["class0/1.png"]
    assert check.broken["class1/3.png"] == "the file is empty"
    assert ("class5/15.png" in check.broken) == pixels
    assert check.leaked == [["class2/6.png", "class4/12.png"]]
    assert check.conflicting == check.leaked
    assert check.listed_twice == ["class2/8.png"]
    assert check.repeated == 1
    assert check.problems == 5 + pixels
    assert {file: file.read_bytes() for file in class_folder.rglob("*.png")} == before
    assert "class0/1.png" in str(check)
    assert "LEAKED" in str(check)


def test_pixels_find_a_copy_in_another_file_format(tmp_path: Path, image: Any) -> None:
    image(tmp_path / "a.png", 1)
    Image.open(tmp_path / "a.png").save(tmp_path / "b.bmp")
    table = Table(["a.png", "b.bmp"], ["x", "x"], ["train", "test"], root=tmp_path)
    assert check_table(table).leaked == []
    assert check_table(table, pixels=True).leaked == [["a.png", "b.bmp"]]


def test_labels_are_looked_at(tmp_path: Path, image: Any) -> None:
    rows = [
        ("Dog", "train"),
        ("Dog", "train"),
        ("dog ", "train"),
        ("cat", "test"),
        ("cat", "test"),
        ("Dog", "test"),
    ]
    for i in range(len(rows)):
        image(tmp_path / f"{i}.png", i)
    table = Table([f"{i}.png" for i in range(6)], [r[0] for r in rows], [r[1] for r in rows], root=tmp_path)
    check = check_table(table)
    assert check.shared_classes == ["Dog"]
    assert check.look_alike_labels == [["Dog", "dog "]]
    assert check.small_classes == {"train": ["dog "], "test": ["Dog"]}
    assert check.queries_without_positive == 1
    assert check.problems == 0


def test_odd_files_are_counted(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (9, 5)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("CMYK", (9, 6)).save(tmp_path / "cmyk.jpg")
    Image.new("L", (9, 7)).save(tmp_path / "really_png.bmp", format="PNG")
    moving = [Image.new("RGB", (9, 8), colour) for colour in ("red", "green")]
    moving[0].save(tmp_path / "m.gif", save_all=True, append_images=moving[1:])
    files = ["turned.jpg", "cmyk.jpg", "really_png.bmp", "m.gif"]
    check = check_table(Table(files, list("aabb"), ["train"] * 4, root=tmp_path))
    assert (check.rotated, check.animated, check.wrong_ending) == (1, 1, 1)
    assert check.modes["CMYK"] == 1
    assert check.problems == 0


def test_the_command_prints_and_exits(class_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "check", str(class_folder)]) == 0
    assert "train      18        6" in capsys.readouterr().out
    (class_folder / "class0" / "0.png").write_bytes(b"")
    assert run(["data", "check", str(class_folder), "--pixels", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["broken"] == {"class0/0.png": "the file is empty"}
    assert report["problems"] == 1
    assert run(["data", "check", str(class_folder / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_counts_stand_beside_the_published_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], image: Any
) -> None:
    for part in ("train", "test"):
        for n, bird in enumerate(("001.Black_footed_Albatross", "200.Common_Yellowthroat")):
            image(tmp_path / part / bird / f"{part}.jpg", 2 * n + len(part))
    assert run(["data", "check", "cub", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "5,864 / 100" in out
    assert "DIFFER" in out


def test_list_show_export(class_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "list"]) == 0
    assert "120,053" in capsys.readouterr().out
    assert run(["data", "show", "vehicle_id"]) == 0
    assert "Ask the makers" in capsys.readouterr().out
    assert run(["data", "show", "soop"]) == 2
    assert "did you mean 'sop'" in capsys.readouterr().err
    out = tmp_path / "t.csv"
    assert run(["data", "export", str(class_folder), str(out)]) == 0
    assert len(Table.read_csv(out, class_folder)) == 18
    assert run(["data", "export", str(class_folder), str(out)]) == 2
    assert "not be overwritten" in capsys.readouterr().err
    assert run(["data", "check", str(class_folder), "--option", "nonsense"]) == 2
