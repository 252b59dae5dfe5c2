"""Planted faults are found by their own rule, and an ordinary collection is left in peace."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from forerank.data import Table
from forerank.search.audit_claim import expected_wrong
from forerank.search.curation import curate
from forerank.search.duplicates import near_copies
from forerank.search.label_audit import audit
from forerank.search.picture_quality import find_issues, measure_pictures


def scene(seed, side=300):
    """Bright blocks of random colours: sharp edges, a different picture for every seed."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(60, 255, (12, 12, 3)).astype(np.uint8)
    return Image.fromarray(blocks).resize((side, side), Image.Resampling.NEAREST)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """40 scenes in 4 classes: 3 dark, 7 blurred, 11 tiny, 13 broken; 20 is a smaller copy of 19."""
    folder = tmp_path_factory.mktemp("planted")
    for i in range(40):
        picture = scene(i)
        if i == 3:
            picture = picture.point(lambda v: v // 8)
        if i == 7:
            picture = picture.filter(ImageFilter.GaussianBlur(30))
        if i == 11:
            picture = picture.resize((24, 24))
        if i == 20:
            picture = scene(19).resize((220, 220), Image.Resampling.BICUBIC)
        picture.save(folder / f"{i}.jpg", quality=70 if i == 20 else 92)
    (folder / "13.jpg").write_bytes((folder / "13.jpg").read_bytes()[:40])
    labels = [f"c{i % 4}" for i in range(40)]
    split = ["test" if i % 4 == 0 else "train" for i in range(40)]
    rng = np.random.default_rng(0)
    centres = np.eye(4, 16)
    vectors = np.stack([centres[i % 4] for i in range(40)]) + 0.05 * rng.normal(size=(40, 16))
    vectors[20] = vectors[19]
    vectors[30] = rng.normal(size=16)  # like nothing else
    vectors[13] = np.nan
    return Table([f"{i}.jpg" for i in range(40)], labels, split, root=folder), vectors.astype(np.float32)


def test_each_planted_picture_is_found_by_its_rule(planted):
    table, vectors = planted
    issues = find_issues(vectors, measure_pictures(table))
    assert {(issue.kind, issue.row) for issue in issues if issue.kind != "outlier"} == {
        ("unreadable", 13),
        ("tiny", 11),
        ("dark", 3),
        ("blurred", 7),
    }
    assert next(issue.row for issue in issues if issue.kind == "outlier") == 30
    said = {issue.row: issue.reason for issue in issues}
    assert said[11] == "its shorter side has 24 pixels"


def test_a_collection_of_small_dark_pictures_is_not_a_list_of_faults(tmp_path):
    for i in range(20):
        scene(i, side=32).point(lambda v: v // 8).save(tmp_path / f"{i}.png")
    table = Table([f"{i}.png" for i in range(20)], ["a"] * 20, ["train"] * 20, root=tmp_path)
    assert find_issues(None, measure_pictures(table)) == []


def test_copies_need_the_model_and_the_pixels(planted):
    table, vectors = planted
    thumbnails = measure_pictures(table).thumbnails
    unit = np.nan_to_num(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    ((rows, correlation),) = near_copies(unit, thumbnails, 0.95)
    assert rows.tolist() == [19, 20]
    assert 0.95 <= correlation <= 1
    alone = unit.copy()
    alone[20] = -alone[19]
    assert near_copies(alone, thumbnails, 0.95) == []
    # All alike for the model, as images of one class may be after training: the pixels tell them apart.
    alike = np.tile(unit[:1], (40, 1))
    assert [rows.tolist() for rows, _ in near_copies(alike, thumbnails, 0.95)] == [[19, 20]]


def test_a_smaller_copy_is_found_although_the_model_sees_a_difference(planted):
    table, vectors = planted
    thumbnails = measure_pictures(table).thumbnails
    unit = np.nan_to_num(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    across = np.eye(unit.shape[1], dtype=unit.dtype)[0]
    across -= (across @ unit[19]) * unit[19]
    across /= np.linalg.norm(across)
    assert thumbnails[19] @ thumbnails[20] >= 0.995
    for seen, groups in ((0.8, [[19, 20]]), (0.6, [])):
        unit[20] = seen * unit[19] + np.sqrt(1 - seen**2) * across
        assert [rows.tolist() for rows, _ in near_copies(unit, thumbnails, 0.95)] == groups


def test_a_copy_across_training_and_test_is_leakage(planted):
    table, vectors = planted
    curation = curate(table, vectors, audited="train")
    (group,) = curation.copies
    assert group.rows == (19, 20)  # the larger picture first
    assert group.leaks
    assert not group.identical
    assert table.split[[19, 20]].tolist() == ["train", "test"]
    assert {one.split for one in curation.classes} == {"train", "test"}
    assert len(curation.labels.table) == (table.split == "train").sum() - 1  # without the broken one


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.15])
def test_the_claim_is_close_to_the_truth(rate):
    """Labels really wrong at a known rate: the expected number is close to what the list really holds."""
    from forerank.data import noisy_labels

    rng = np.random.default_rng(3)
    codes = np.repeat(np.arange(60), 10)
    vectors = rng.normal(size=(60, 24))[codes] + 1.1 * rng.normal(size=(600, 24))
    clean = Table([f"{i}.png" for i in range(600)], [f"c{c}" for c in codes], ["train"] * 600)
    given = noisy_labels(clean, rate, seed=5)
    wrong = given.label != clean.label
    audited = audit(vectors, given)
    claim = expected_wrong(audited, vectors)
    held = int(wrong[audited.order()[: claim.shown]].sum())
    assert abs(claim.wrong - held) <= max(6, 0.25 * held)
    assert claim.shown <= int(audited.suspect.sum())
    assert claim.wrong >= 0.2 * claim.shown  # the list ends where fewer than one in five would be wrong
    if rate:
        assert held > 0.8 * wrong.sum()
        assert f"about {claim.wrong:,.0f} of them wrong" in str(claim)
