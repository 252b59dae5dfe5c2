"""The toy: what is drawn, scored and kept, and that the paper's effect is there."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from forerank.paper import toy

TINY = toy.ToySettings(seeds=2, steps=2)


@pytest.mark.parametrize("geometry", toy.GEOMETRIES)
def test_sizes_are_the_papers(geometry: str) -> None:
    points = toy.GEOMETRIES[geometry](torch.Generator().manual_seed(0))
    assert points.train.shape == points.test.shape == (4 * 150, 2)
    assert torch.bincount(toy.labels()).tolist() == [150] * 4


def test_recall_counts_the_nearest_on_the_circle() -> None:
    # 3.1 and -3.1 are neighbours across the cut of the angle.
    assert toy.recall_at_1(np.array([3.1, -3.1, 0.0, 0.1]), np.array([0, 0, 1, 1])) == 1.0
    assert toy.recall_at_1(np.array([0.0, 0.1, 0.11, 3.0]), np.array([0, 0, 1, 1])) == 0.5


def test_dq_separates_unseen_classes_where_ib_does_not() -> None:
    torch.set_num_threads(1)  # networks this small only wait for a second thread
    truth = toy.labels().numpy()
    found: dict[str, list[float]] = {"Ib": [], "Dq": []}
    for seed in range(3):
        points = toy.two_centres(torch.Generator().manual_seed(1000 + seed))
        for name, recalls in found.items():
            network = toy.train_network(points, name, toy.ToySettings(), seed)
            recalls.append(toy.recall_at_1(toy.angles(network, points.test), truth))
    assert np.mean(found["Dq"]) - np.mean(found["Ib"]) > 0.2, found


def test_finished_losses_are_not_trained_again(tmp_path: Path) -> None:
    whole = toy.run(TINY, tmp_path)
    assert toy.kept(tmp_path) == whole
    kept = json.loads((tmp_path / "toy.json").read_text())
    removed = kept["recall"]["one_centre"].pop("Dq")
    kept["recall"]["two_centres"]["Ib"] = [0.123, 0.456]  # a mark that training would wipe out
    (tmp_path / "toy.json").write_text(json.dumps(kept))
    assert toy.kept(tmp_path) is None
    again = toy.run(TINY, tmp_path)
    assert again["recall"]["two_centres"]["Ib"] == [0.123, 0.456]
    assert again["recall"]["one_centre"]["Dq"] == removed
    assert toy.run(toy.ToySettings(seeds=1, steps=1), tmp_path)["recall"]["two_centres"]["Ib"] != [
        0.123,
        0.456,
    ]


def test_a_file_that_cannot_be_read_counts_as_absent(tmp_path: Path) -> None:
    whole = toy.run(TINY, tmp_path)
    text = (tmp_path / "toy.json").read_text()
    (tmp_path / "toy.json").write_text(text[: len(text) // 2])
    assert toy.kept(tmp_path) is None
    assert toy.run(TINY, tmp_path)["recall"] == whole["recall"]
    assert toy.kept(tmp_path) is not None


def test_sentences_follow_the_numbers(tmp_path: Path) -> None:
    result = toy.run(TINY, tmp_path)
    result["recall"]["two_centres"] |= {"Dq": [1.0, 0.99], "Ib": [0.5, 0.52]}
    said = " ".join(toy.finding(result))
    assert "with 2 of 2 seeds, Ib with 0" in said
    assert "+48.50" in said
