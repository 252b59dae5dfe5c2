"""One rule for which files beneath a folder are images."""

from pathlib import Path

import pytest

from forerank.data.image_files import find_images, image_files, scan_folder
from forerank.errors import InputError
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
        "1 PDF file was left out (the first is a/scan.pdf): save their pages as images",
        "1 camera RAW file was left out (the first is a/shot.CR2): convert them to JPEG or PNG",
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
