"""Rows to tensors: determinism, policies, workers, cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from forerank.data import (
    BadImageError,
    ClassBalancedSampler,
    ImageDataset,
    Preprocessing,
    Table,
    collate,
    dataset,
    open_table,
)
from forerank.errors import InputError

SMALL = Preprocessing(size=8, resize=10)


def test_items_and_label_ids(class_folder: Path) -> None:
    data = ImageDataset(open_table(class_folder), SMALL)
    image, label, row = data[7]  # type: ignore[misc]
    assert image.shape == (3, 8, 8)
    assert (label, row) == (2, 7)
    assert len(data) == 18


def test_a_training_view_depends_on_seed_row_and_draw_alone(class_folder: Path) -> None:
    table = open_table(class_folder)
    one, two = ImageDataset(table, SMALL, seed=1), ImageDataset(table, SMALL, seed=1, cache=True)
    for key in ((3, 0), (3, 1), (11, 5)):
        assert torch.equal(one[key][0], one[key][0])  # type: ignore[index]
        assert torch.equal(one[key][0], two[key][0])  # type: ignore[index]
    other = ImageDataset(table, SMALL, seed=2)
    assert any(not torch.equal(one[3, d][0], other[3, d][0]) for d in range(5))  # type: ignore[index]
    assert any(not torch.equal(one[3, d][0], one[3, 0][0]) for d in range(5))  # type: ignore[index]
    assert torch.equal(one[3][0], two[3][0])  # type: ignore[index]


def test_batches_through_workers_equal_batches_without(class_folder: Path) -> None:
    table = open_table(class_folder)
    data = ImageDataset(table, SMALL)
    sampler = ClassBalancedSampler(table.label_ids, 3, 2, with_draws=True)
    plain, parallel = (
        list(DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=n)) for n in (0, 2)
    )
    assert len(plain) == len(sampler)
    for (a, labels, rows), (b, *_) in zip(plain, parallel, strict=True):
        assert torch.equal(a, b)
        assert a.shape == (6, 3, 8, 8)
        assert torch.equal(labels, torch.from_numpy(table.label_ids)[rows])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [False, True])
def test_skip_leaves_bad_pictures_out_and_counts_them(class_folder: Path, workers: int, cache: bool) -> None:
    (class_folder / "class1" / "4.png").write_bytes(b"no picture")
    data = ImageDataset(open_table(class_folder), SMALL, on_bad="skip", cache=cache)
    rows = torch.cat(
        [r for _, _, r in DataLoader(data, batch_size=6, collate_fn=collate, num_workers=workers)]
    )
    assert len(rows) == 17
    assert 4 not in [int(Path(data.table.path[r]).stem) for r in rows]
    assert [file.name for file in data.skipped] == ["4.png"]


def test_refuse_names_the_file_also_from_a_worker(class_folder: Path) -> None:
    (class_folder / "class1" / "4.png").write_bytes(b"no picture")
    table = open_table(class_folder)
    with pytest.raises(BadImageError, match=r"^[^\n]*4\.png: not an image in a known format$"):
        list(DataLoader(ImageDataset(table, SMALL), batch_size=6, collate_fn=collate, num_workers=1))
    with pytest.raises(BadImageError, match=r"4\.png"):
        ImageDataset(table, SMALL, cache=True)
    with pytest.raises(InputError, match="did you mean 'skip'"):
        ImageDataset(table, SMALL, on_bad="skipp")
    with pytest.raises(InputError, match="none of the 2 pictures"):
        collate([None, None])


def test_boxes_cut_the_object_out(tmp_path: Path) -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[10:20, 30:50] = 255
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    boxes = [[30, 10, 50, 20], [0, 0, 0, 0], [30, 10, 70, 20]]
    table = Table(["scene.png"] * 3, list("aab"), ["test"] * 3, root=tmp_path, box=boxes)
    data = ImageDataset(table, Preprocessing(size=8, resize=8, mean=(0, 0, 0), std=(1, 1, 1)))
    assert data[0][0].min() == 1.0  # type: ignore[index]
    assert data[1][0].mean() < 0.2  # type: ignore[index]
    with pytest.raises(BadImageError, match=r"scene\.png: the box \(30, 10, 70, 20\) does not lie in"):
        data[2]


def test_the_cache_holds_pictures_of_any_size_and_has_a_limit(tmp_path: Path, monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    for i, size in enumerate([(9, 14), (30, 3), (1, 1), (14, 9)]):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    table = Table([f"{i}.png" for i in range(4)], list("aabb"), ["test"] * 4, root=tmp_path)
    for channels in (1, 3):
        grey = {"channels": 1, "mean": (0.5,), "std": (0.5,)} if channels == 1 else {}
        p = Preprocessing(size=8, resize=10, squash=False, **grey)  # type: ignore[arg-type]
        plain, cached = ImageDataset(table, p), ImageDataset(table, p, cache=True)
        for i in (3, 1, 0):  # an aspect of ten is handled too
            assert torch.equal(plain[i][0], cached[i][0])  # type: ignore[index]
    monkeypatch.setattr(dataset, "CACHE_LIMIT", 100)
    with pytest.raises(InputError, match="use cache=False"):
        ImageDataset(table, SMALL, cache=True)


@pytest.mark.parametrize(
    ("size", "resize", "flip"),
    [(32, 32, 0.0), (32, 32, 0.5), (27, 32, 0.0), (27, 32, 0.5), (16, 16, 0.0), (16, 16, 0.5)],
)
def test_a_batch_cut_in_one_pass_equals_its_images_one_by_one(size: int, resize: int, flip: float) -> None:
    table = open_table("glyphs").select("test")
    table = table.where(np.arange(len(table)) < 40)
    views = Preprocessing(size=size, resize=resize, mean=(0.4,), std=(0.6,), channels=1, flip=flip)
    cached, decoding = (ImageDataset(table, views, cache=cache, seed=5) for cache in (True, False))
    keys = [(row, draw) for row in (0, 3, 39, 3) for draw in range(6)] + [7]
    joined = cached.__getitems__(keys)
    assert isinstance(joined, tuple)  # the quick way was taken
    for quick, slow in zip(collate(joined), collate([decoding[key] for key in keys]), strict=True):
        assert torch.equal(quick, slow)


def test_pixels_are_decoded_once_per_process_and_anew_when_a_file_changes(
    class_folder: Path, monkeypatch: Any
) -> None:
    table, counted = open_table(class_folder), list[str]()
    monkeypatch.setattr(dataset, "_shared", type(dataset._shared)())
    read = dataset.read_image
    monkeypatch.setattr(dataset, "read_image", lambda file, **o: counted.append(file) or read(file, **o))
    first, second = (ImageDataset(table, SMALL, cache=True, seed=seed) for seed in (1, 2))
    assert len(counted) == len(table)
    assert torch.equal(first[3][0], second[3][0])  # type: ignore[index]
    Image.new("RGB", (12, 12), "red").save(table.files[3])
    changed = ImageDataset(table, SMALL, cache=True)
    assert len(counted) == 2 * len(table)
    assert not torch.equal(first[3][0], changed[3][0])  # type: ignore[index]
    ImageDataset(table, Preprocessing(size=8, resize=9), cache=True)  # other views, other pixels
    assert len(counted) == 3 * len(table)


def test_pixels_kept_for_the_next_data_set_have_a_limit(class_folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(dataset, "_shared", type(dataset._shared)())
    monkeypatch.setattr(dataset, "SHARED_LIMIT", 1)
    ImageDataset(open_table(class_folder), SMALL, cache=True)
    assert not dataset._shared
