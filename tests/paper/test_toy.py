"""The toy: what is drawn, scored and kept, and that the paper's effect is there."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from forerank.paper import toy, toy_figure

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
    recalls_of: dict[str, list[float]] = {"Ib": [], "Dq": []}
    for seed in range(3):
        points = toy.two_centres(torch.Generator().manual_seed(1000 + seed))
        for name, recalls in recalls_of.items():
            network = toy.train_network(points, name, toy.ToySettings(), seed)
            recalls.append(toy.recall_at_1(toy.angles(network, points.test), truth))
    assert np.mean(recalls_of["Dq"]) - np.mean(recalls_of["Ib"]) > 0.2, recalls_of


def test_finished_seeds_are_not_trained_again(tmp_path: Path) -> None:
    whole = toy.run_toy(TINY, tmp_path, jobs=1)
    assert toy.read_result(tmp_path) == whole
    kept = json.loads((tmp_path / "toy.json").read_text())
    removed = kept["seeds"].pop("one_centre, Dq, 1")
    kept["seeds"]["two_centres, Ib, 0"]["recall"] = 0.123  # a mark that training would wipe out
    (tmp_path / "toy.json").write_text(json.dumps(kept))
    assert toy.read_result(tmp_path) is None
    again = toy.run_toy(TINY, tmp_path, jobs=1)
    assert again["recall"]["two_centres"]["Ib"][0] == 0.123
    assert again["recall"]["one_centre"]["Dq"][1] == removed["recall"]
    text = (tmp_path / "toy.json").read_text()
    (tmp_path / "toy.json").write_text(text[: len(text) // 2])  # cannot be read: counts as absent
    assert toy.read_result(tmp_path) is None


def test_sentences_follow_the_numbers() -> None:
    recall = {loss: [0.5, 0.6] for loss in toy.LOSSES}
    result = {
        "settings": asdict(toy.ToySettings()),
        "recall": {"two_centres": {**recall, "Dq": [1.0, 0.99], "Ib": [0.5, 0.52]}, "one_centre": recall},
    }
    said = " ".join(toy_figure.finding(result))
    assert "with 2 of 2 seeds, Ib with 0" in said
    assert "+48.500" in said
    assert "searched for" in said
    assert "no difference there, within 0.5 points" in said
    assert "larger by +48.500" in said


def test_a_control_that_varies_is_undecided_and_not_called_equal() -> None:
    result = {
        "settings": asdict(toy.ToySettings()),
        "recall": {
            "two_centres": {"Dq": [1.0, 0.9, 1.0], "Ib": [0.5, 0.6, 0.4]},
            "one_centre": {"Dq": [0.9, 0.5, 0.7], "Ib": [0.5, 0.8, 0.6]},
        },
    }
    assert "undecided there" in toy_figure.finding(result)[1]
    result["recall"]["one_centre"] = {"Dq": [0.90, 0.91, 0.92], "Ib": [0.5, 0.5, 0.52]}
    said = toy_figure.finding(result)[1]
    assert "a difference there too" in said
    assert "which decides nothing" in said
