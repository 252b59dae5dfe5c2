"""Near-identical images, found and grouped; nothing else."""

import numpy as np
import pytest

import forerank.search.duplicates as duplicates
from forerank.errors import InputError
from forerank.search import Row, find_duplicates, open_engine


def fill_engine(address, vectors, labels=None, contents=None):
    engine = open_engine(address)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    labels = labels or ["x"] * len(vectors)
    contents = contents or [f"{i:032x}" for i in range(len(vectors))]
    rows = [Row(f"{i:04d}.png", labels[i], contents[i], 1, 1) for i in range(len(vectors))]
    with engine.update(vectors.shape[1], "m") as update:
        known, order = set(), []
        for i, row in enumerate(rows):
            if row.content not in known:
                known.add(row.content)
                order.append(i)
        update.put([rows[i] for i in order], vectors[order])
        update.complete(rows, {"model": {"fingerprint": "m"}}, None)
    return engine


def planted(rng, count=60, dim=32):
    """Random vectors with three near copies of 5, one of 20, and a chain 30-31-32."""
    vectors = rng.normal(size=(count, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for copy, of in ((6, 5), (7, 5), (40, 5), (21, 20)):
        vectors[copy] = vectors[of] + 0.01 * rng.normal(size=dim)
    step = rng.normal(size=dim)
    step -= (step @ vectors[30]) * vectors[30]
    step *= 0.15 / np.linalg.norm(step)
    vectors[31], vectors[32] = vectors[30] + step, vectors[30] + 2 * step
    return vectors


def test_planted_copies_are_found(address):
    engine = fill_engine(address, planted(np.random.default_rng(0)))
    groups = find_duplicates(engine, 0.98)
    grouped = [[int(row.path[:4]) for row in sorted(group.rows, key=lambda r: r.path)] for group in groups]
    assert grouped == [[5, 6, 7, 40], [30, 31, 32], [20, 21]]
    assert all(0.98 <= group.lowest <= 1.0001 for group in groups)
    assert not any(group.identical for group in groups)
    engine.close()


@pytest.mark.parametrize("block", [1, 7, 2048])
def test_blocks_do_not_matter(tmp_path, monkeypatch, block):
    monkeypatch.setattr(duplicates, "BLOCK", block)
    engine = fill_engine(tmp_path / "index", planted(np.random.default_rng(0)))
    assert [len(group.rows) for group in find_duplicates(engine)] == [4, 3, 2]


def test_large_indexes_go_by_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "ALL_PAIRS", 10)
    engine = fill_engine(tmp_path / "index", planted(np.random.default_rng(0)))
    assert [len(group.rows) for group in find_duplicates(engine)] == [4, 3, 2]


def test_the_same_bytes_under_two_labels_are_a_contradiction(tmp_path):
    vectors = np.eye(4)[[0, 0, 1, 2]]
    contents = ["aa" * 16, "aa" * 16, "bb" * 16, "cc" * 16]
    engine = fill_engine(tmp_path / "index", vectors, ["cat", "dog", "cat", "dog"], contents)
    (group,) = find_duplicates(engine, 1.0)
    assert group.identical
    assert group.labels == ("cat", "dog")


def test_everything_alike_is_one_group(tmp_path):
    engine = fill_engine(
        tmp_path / "index", np.ones((300, 8)) + 1e-4 * np.random.default_rng(0).normal(size=(300, 8))
    )
    (group,) = find_duplicates(engine)
    assert len(group.rows) == 300


def test_a_similarity_that_makes_no_sense(tmp_path):
    engine = fill_engine(tmp_path / "index", np.eye(3))
    assert find_duplicates(engine) == []
    with pytest.raises(InputError, match=r"not 1\.5"):
        find_duplicates(engine, 1.5)
