"""The embedded set: what it promises."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from forerank.data import ImageDataset, Table, glyphs, open_table
from forerank.data.registry import DATA_SETS


@pytest.fixture(scope="module")
def table() -> Table:
    """The whole set, from the machine's cache; drawn if this is the first use."""
    return open_table("glyphs")


@pytest.fixture(scope="module")
def latin() -> Any:
    drawn, versions = glyphs.draw_characters()
    return {code: faces for code, faces in drawn.items() if code < 0x180}, versions


@pytest.fixture
def few(latin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, with Latin letters alone, to be damaged."""
    monkeypatch.setattr(glyphs, "draw_characters", lambda: latin)
    return tmp_path


def test_counts_classes_and_disjoint_splits(table: Table) -> None:
    manifest = json.loads((table.root / "manifest.json").read_text())
    assert len(table) == manifest["images"]
    assert len(table.classes) == manifest["classes"]
    labels = [set(table.select(s).label) for s in ("train", "validation", "test")]
    assert all(labels)
    assert sum(map(len, labels)) == len(table.classes)
    assert np.unique(table.label, return_counts=True)[1].min() >= glyphs.MIN_IMAGES
    if not table.notes:  # the reference fonts and rasteriser
        assert table.counts() == glyphs.COUNTS == DATA_SETS["glyphs"].published_counts({})["reference"]


def test_characters_that_look_alike_are_one_class(table: Table) -> None:
    alike = json.loads((table.root / "manifest.json").read_text())["look_alikes"]
    assert {"U+0391", "U+0410"} <= set(alike["U+0041"])  # Latin A, Greek Alpha, Cyrillic A
    assert "U+0391" not in table.label
    assert "U+0041" in table.label
    assert "U+004F" in table.label
    assert "U+0030" in table.label


def test_no_two_images_are_equal(table: Table) -> None:
    pixels = [np.asarray(Image.open(file)).tobytes() for file in table.files]
    assert len(set(pixels)) == len(pixels)
    assert len(pixels[0]) == 32 * 32


def test_second_opening_draws_nothing_and_damage_is_repaired(
    few: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table("glyphs", root=few)
    assert "drawing" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(glyphs, "draw", lambda folder: pytest.fail("drawn again"))
        again = open_table("glyphs", root=few)
    assert np.array_equal(again.path, table.path)
    assert capsys.readouterr().err == ""
    before = (table.root / "manifest.json").read_text()
    file = table.files[123]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"?")  # one byte of one file
    open_table("glyphs", root=few)
    assert "do not match their checksum" in capsys.readouterr().err
    assert file.read_bytes() == whole
    assert (table.root / "manifest.json").read_text() == before  # the same bytes again
    assert [p.name for p in few.iterdir()] == [table.root.name]  # no leftovers


def test_a_difference_from_the_reference_is_said(few: Path) -> None:
    notes = open_table("glyphs", root=few).notes
    assert len(notes) == 1
    assert "differ from the reference" in notes[0]
    assert "FreeType" in notes[0]


def test_variants_touch_the_training_split_alone(table: Table) -> None:
    merged = open_table("glyphs", merged=3)
    train = len(table.select("train").classes)
    assert len(merged.select("train").classes) == train // 3
    noisy = open_table("glyphs", noise=0.2, seed=1)
    wrong = noisy.label != table.label
    assert wrong.sum() == round(0.2 * (table.split == "train").sum())
    for variant in (merged, noisy):
        held = table.split != "train"
        assert np.array_equal(variant.label[held], table.label[held])


def test_ready_for_training(table: Table) -> None:
    data = ImageDataset(table.where(np.arange(100)), glyphs.PREPROCESSING, cache=True)
    image, _, _ = data[0]  # type: ignore[misc]
    assert image.shape == (1, 32, 32)
    assert image.min() == -1
    assert image.max() > 0.9
