"""Spoiled labels are found again; split classes too; and nothing is suspected where nothing is wrong."""

import csv
from itertools import combinations

import numpy as np
import pytest

from forerank.data import Table, merge_classes, noisy_labels, open_table
from forerank.errors import InputError
from forerank.search.audit_page import write_csv, write_page
from forerank.search.curation import curate
from forerank.search.label_audit import _chance, audit, score


def clusters(classes=40, per_class=10, dim=24, noise=0.25, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    centres = rng.normal(size=(classes, dim)) / np.sqrt(dim)
    vectors = centres[labels] + noise * rng.normal(size=(len(labels), dim)) / np.sqrt(dim)
    table = Table(
        [f"{i}.png" for i in range(len(labels))], [f"c{i:02d}" for i in labels], ["train"] * len(labels)
    )
    return vectors, table


def test_chance_against_counting_all_orders():
    """Two positives among four negatives: of the 15 placements, how many bring one within the first R."""
    for before in range(5):
        placements = list(combinations(range(6), 2))
        expected = np.mean([min(places) < before for places in placements])
        assert _chance(np.array([float(before)]), np.array([2]), np.array([4]))[0] == pytest.approx(expected)


def test_clear_classes_without_spoiled_labels_are_left_in_peace():
    vectors, table = clusters()
    audited = audit(vectors, table)
    assert not audited.suspect.any()
    assert audited.split_classes == []
    assert audited.before_nearest.max() == 0


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_spoiled_labels_are_found_and_the_right_ones_suggested(rate):
    vectors, table = clusters()
    spoiled = noisy_labels(table, rate, seed=1)
    wrong = spoiled.label != table.label
    audited = audit(vectors, spoiled)
    result = score(audited, wrong)
    assert result.wrong == round(rate * len(table))
    assert result.precision >= 0.95
    assert result.recall >= 0.8  # 1 - limit = 0.9 in the mean
    hits = audited.suspect & wrong
    assert (audited.suggestion[hits] == table.label[hits]).mean() > 0.95
    assert result.average_precision > 0.95


def test_the_share_found_is_what_the_limit_promises():
    """Wrong labels that have nothing to do with the image: recall is at least 1 - limit."""
    vectors, table = clusters(classes=100, per_class=10)
    for limit in (0.1, 0.5):
        recalls = []
        for seed in range(3):
            spoiled = noisy_labels(table, 0.1, seed=seed)
            recalls.append(score(audit(vectors, spoiled, limit=limit), spoiled.label != table.label).recall)
        assert np.mean(recalls) >= 1 - limit - 0.05


def test_merged_classes_have_several_centres():
    vectors, table = clusters(classes=60)
    merged = merge_classes(table, 3, seed=0)
    audited = audit(vectors, merged)
    # Two merged classes may happen to be neighbours, with nothing between them.
    assert len(audited.split_classes) >= 19
    in_three = [split for split in audited.split_classes if len(split.centres) == 3]
    assert len(in_three) >= 14
    for split in in_three:
        assert all(len({table.label[row] for row in centre}) == 1 for centre in split.centres)
    assert not audited.suspect.any()


def test_few_classes_are_no_reason_to_suspect_everybody():
    """With three classes even the first place is often right by chance; only the stranger is suspected."""
    vectors, table = clusters(classes=3, per_class=10)
    label = table.label.copy()
    label[4] = "c02"
    assert np.flatnonzero(audit(vectors, table.with_columns(label=label)).suspect).tolist() == [4]


def test_an_image_alone_in_its_class_is_not_judged():
    vectors, table = clusters(classes=5)
    label = table.label.copy()
    label[0] = "alone"
    audited = audit(vectors, table.with_columns(label=label))
    assert np.isnan(audited.chance[0])
    assert not audited.suspect[0]


def test_glyphs_with_labels_spoiled_on_purpose(capsys):
    """On drawings and plain pixels as vectors: printed, and no worse than it was when this was written."""
    from PIL import Image

    table = open_table("glyphs").select("train")
    table = table.where(np.isin(table.label, table.classes[:120]))
    pixels = np.stack(
        [np.asarray(Image.open(f).convert("L").resize((16, 16)), np.float32).ravel() for f in table.files]
    )
    pixels -= pixels.mean(axis=0)
    spoiled = noisy_labels(table, 0.05, seed=0)
    result = score(audit(pixels, spoiled), spoiled.label != table.label)
    with capsys.disabled():
        print(f"\n  glyphs, {len(table):,} images, plain pixels: {result}")
    assert result.recall > 0.8
    assert result.precision > 0.5
    assert result.average_precision > 0.85


def test_the_page_and_the_table(tmp_path):
    from PIL import Image

    vectors, table = clusters(classes=6, per_class=5)
    for path in table.path:
        Image.new("L", (8, 8), int(path.split(".")[0]) % 256).save(tmp_path / path)
    markup = "<b>c</b>"
    names = np.array([markup if name == "c03" else name for name in table.label])
    spoiled = noisy_labels(
        table.with_columns(
            label=names,
            root=tmp_path,
            split=["test" if i % 4 == 0 else "train" for i in range(30)],
            is_query=[i % 2 == 0 for i in range(30)],
            category=[f"kind {i % 3}" for i in range(30)],
            box=[[0, 0, 1 + i % 8, 8] for i in range(30)],
        ),
        0.1,
        seed=0,
    )
    audited = audit(vectors, spoiled)
    write_csv(audited, tmp_path / "audit.csv")
    whole = curate(spoiled, vectors.astype(np.float32))
    write_page(whole, tmp_path / "audit.html", title="Audit", checked=score(audited, spoiled.label != names))
    rows = list(csv.DictReader((tmp_path / "audit.csv").open()))
    assert len(rows) == 30
    assert [row["suspect"] for row in rows] == ["True"] * int(audited.suspect.sum()) + ["False"] * int(
        (~audited.suspect).sum()
    )
    assert Table.read_csv(tmp_path / "audit.csv").label.tolist() == [row["label"] for row in rows]
    # The table of the next training: it can lie anywhere, and nothing of the audited one is lost.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "audit.csv").rename(tmp_path / "elsewhere" / "audit.csv")
    again = open_table(tmp_path / "elsewhere" / "audit.csv")
    assert all(file.is_file() for file in again.files)
    by_name = {file.name: row for row, file in enumerate(again.files)}
    rows_again = [by_name[path] for path in spoiled.path.tolist()]
    for column in ("label", "split", "is_query", "category", "box"):
        np.testing.assert_array_equal(getattr(again, column)[rows_again], getattr(spoiled, column))
    page = (tmp_path / "audit.html").read_text()
    assert markup not in page
    assert "Labels worth a look" in page
    assert "likely wrong" not in page
    assert page.count('<img src="data:') > 10
    assert "http" not in page.replace("http-equiv", "")


def test_what_cannot_be_audited():
    vectors, table = clusters(classes=3)
    with pytest.raises(InputError, match="29 vectors for 30 images"):
        audit(vectors[:-1], table)
    with pytest.raises(InputError, match="only one"):
        audit(vectors[:10], table.where(np.arange(10)))
