"""One rule for which files beneath a folder are images."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forerank.data import check_table, open_table, read_image
from forerank.data.image_files import find_images, image_files, scan_folder
from forerank.errors import InputError, install_command
from forerank.models import create_model, embed_files
from forerank.models.retriever import Retriever
from forerank.search.images import list_images

from .conftest import write_image


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    root = tmp_path / "mixed"
    for name in ("a/1.png", "a/2.PNG", ".cache/x.png", "a/.hidden.png", "__MACOSX/a/1.png", "b/3.jpg"):
        write_image(root / name, 1)
    (root / "a" / "notes.txt").write_text("no picture")
    write_image(tmp_path / "elsewhere" / "4.png", 2)
    (root / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "a" / "5.png").symlink_to(tmp_path / "elsewhere" / "4.png")
    (root / "a" / "loop").symlink_to(root, target_is_directory=True)
    return root


def test_links_are_followed_and_hidden_and_macos_names_are_passed_over(mixed: Path) -> None:
    names = ["a/1.png", "a/2.PNG", "a/5.png", "b/3.jpg", "linked/4.png"]
    assert image_files(mixed) == names
    assert find_images(mixed) == [mixed / name for name in names]
    assert find_images(mixed / "a" / "1.png") == [mixed / "a" / "1.png"]
    assert list_images(mixed).paths == names
    (shape, left_out) = embed_files(
        lambda: Retriever(create_model("glyphnet", embedding_dim=4)), [mixed], mixed.parent / "v.npy"
    )
    assert shape == (5, 4)
    assert not left_out


def test_files_that_cannot_be_read_are_counted_by_kind_with_what_to_do(mixed: Path) -> None:
    for name in ("a/scan.pdf", "b/film.MOV", "b/film.mp4", "a/shot.CR2"):
        (mixed / name).write_bytes(b"x")
    notes = scan_folder(mixed).notes()
    assert notes == (
        "1 PDF file was left out (a/scan.pdf): save its pages as images",
        "1 camera RAW file was left out (a/shot.CR2): convert it to JPEG or PNG",
        "2 video files were left out (the first is b/film.MOV): take single pictures out of them, "
        "for instance with ffmpeg",
    )


def test_a_folder_without_images_says_what_is_in_it_instead(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are no image files in .* known endings: \.jpg"):
        find_images(tmp_path)
    (tmp_path / "film.mp4").write_bytes(b"x")
    with pytest.raises(InputError, match=r"no image files in .*\. 1 video file was left out"):
        find_images(tmp_path)
    with pytest.raises(InputError, match="there is no file or folder"):
        find_images(tmp_path / "nope")


WITHOUT_HEIF = """
import sys
sys.modules["pillow_heif"] = None  # as if it were not installed
from forerank.cli import run
sys.exit(run(["data", "check", sys.argv[1]]))
"""


def test_heic_photographs_are_read_with_the_extra_and_named_without(class_folder: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, :48] = (200, 30, 40)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side, as telephones do
    file = class_folder / "class0" / "IMG_0001.HEIC"
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=90, exif=exif.tobytes())

    table = open_table(class_folder)
    assert "class0/IMG_0001.HEIC" in table.path
    assert not table.notes
    picture = np.asarray(read_image(file)).astype(int)
    assert picture.shape == (96, 64, 3)
    assert abs(picture[10, 32] - (200, 30, 40)).max() < 12
    assert picture[86, 32].max() < 12
    assert check_table(table, pixels=True).problems == 0

    checked = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEIF, str(class_folder)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert (
        "1 HEIC file was left out (class0/IMG_0001.HEIC): "
        f"it is read after: {install_command('heic')}" in checked.stdout
    )
