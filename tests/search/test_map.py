"""The map of an index: near images lie near each other, it is the same again, and it outlives changes."""

from contextlib import suppress

import numpy as np
import pytest

from forerank.cli import run
from forerank.metrics.layout import lay_out
from forerank.search import Index, open_engine
from forerank.search.exact import top_k
from forerank.search.map import make_map, read_map

pytest.importorskip("umap")


def clusters(count=4, each=30, dim=16):
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(count, dim))
    vectors = np.repeat(centres, each, axis=0) + 0.15 * rng.normal(size=(count * each, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def filled(tmp_path, make_rows, meta):
    """Four clusters of 30 images; the label of an image is its cluster."""
    from dataclasses import replace

    made = make_rows([f"{i:03}.jpg" for i in range(120)])
    rows = [replace(row, label=f"class{i // 30}") for i, row in enumerate(made)]
    vectors = clusters()

    def fill(chosen):
        engine = open_engine(tmp_path / "index")
        with engine.update(16, meta["model"]["fingerprint"]) as update:
            update.put([rows[i] for i in chosen], vectors[list(chosen)])
            update.complete([rows[i] for i in chosen], meta, None)
        return Index(open_engine(tmp_path / "index"))

    return fill


def test_near_images_lie_near_each_other(filled):
    index = filled(range(120))
    assert make_map(index) == 120
    made = read_map(index)
    assert made.names == ("class0", "class1", "class2", "class3")
    assert made.ids.tolist() == list(range(120))
    assert made.positions.min() >= -1e-6
    assert made.positions.max() <= 1 + 1e-6
    apart = np.linalg.norm(made.positions[:, None] - made.positions[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (made.labels[apart.argmin(axis=1)] == made.labels).mean() > 0.95


def test_the_same_seed_gives_the_same_map_and_copies_are_no_trouble():
    vectors = np.concatenate([clusters(), clusters()[:20]])
    similarities, nearest = (part for part in reversed(top_k(vectors, vectors, 15)))
    first, second = (lay_out(vectors, nearest, similarities, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all()


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_a_few_images_have_places_too(filled, count):
    index = filled(range(0, 13 * count, 13))
    assert make_map(index) == count
    assert np.isfinite(read_map(index).positions).all()


def test_a_map_outlives_changes_of_the_index(filled):
    index = filled(range(0, 100))
    make_map(index)
    paths = [row.path for row in index.engine.all_rows()]
    before = dict(zip(paths, map(tuple, read_map(index).positions), strict=True))
    index.close()
    changed = filled(range(50, 120))
    after = read_map(changed)
    assert (len(after.ids), after.missing) == (50, 20)
    for number, place in zip(after.ids.tolist(), after.positions, strict=True):
        assert before[changed.engine.rows([number])[0].path] == tuple(place)


def test_the_points_that_a_filter_accepts(filled, monkeypatch):
    from forerank.search import map as maps
    from forerank.search.engine import Filter

    monkeypatch.setattr(maps, "PAGE", 7)  # several pages, the last one not full
    index = filled(range(120))
    make_map(index)
    made = read_map(index)
    rows = {row.id: row for row in index.engine.all_rows()}
    for where in (
        Filter(),
        Filter(label="class2"),
        Filter(text="CLASS1"),
        Filter(text="07"),
        Filter(label=""),
    ):
        expected = [where.accepts(rows[number]) for number in made.ids.tolist()]
        assert maps.accepted_points(index, made, where).tolist() == expected


def test_a_map_of_another_model_is_no_map_and_a_damaged_one_is_told(filled, tmp_path, capsys):
    from forerank.errors import InputError

    index = filled(range(40))
    assert read_map(index) is None
    assert run(["map", str(tmp_path / "index")]) == 0
    assert "a map of 40 images" in capsys.readouterr().out
    whole, expected = index.engine.map_file().read_bytes(), read_map(index).positions
    for place in range(len(whole) - 300, len(whole)):  # where the names, sizes and methods of packing stand
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        index.engine.map_file().write_bytes(flipped)
        with suppress(InputError):
            assert np.array_equal(read_map(index).positions, expected)
    index.engine.map_file().write_bytes(whole)
    index.meta["model"] = {**index.meta["model"], "fingerprint": "other"}
    assert read_map(index) is None
    index.engine.map_file().write_bytes(b"nothing")
    with pytest.raises(InputError, match="make it again with forerank map"):
        read_map(index)
    assert run(["map", str(tmp_path / "index"), "--seed", "-1"]) == 2
