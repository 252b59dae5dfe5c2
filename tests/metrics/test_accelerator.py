"""Evaluation on an accelerator: every figure of the CPU, exactly."""

import numpy as np
import pytest
import torch

from forerank.metrics import evaluate, neighbours
from forerank.ranking import hard_blocks
from pretend_device import DEVICE


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.arange(240) // 4, np.full(60, 500)])  # one class of many positives
    vectors = generator.normal(size=(501, 12))[labels] + 1.2 * generator.normal(size=(300, 12))
    vectors[:10] = vectors[20:30]  # ties
    return vectors.astype(np.float32), labels


@pytest.mark.parametrize("precision", ["auto", "bfloat16", "float64"])
@pytest.mark.parametrize("halves", [False, True])
def test_evaluation_equals_the_cpu(precision: str, halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_blocks, "BLOCK", 64)  # several tiles
    vectors, labels = data()
    split = {"queries": np.arange(0, 300, 2), "gallery": np.arange(1, 300, 2)} if halves else {}
    camera = np.arange(300) % 3
    options = {"ignore": camera, "per_query": True, "precision": precision, **split}
    here = evaluate(vectors, labels, **options).to_dict()
    for there in (torch.from_numpy(vectors).to(DEVICE), vectors):
        assert evaluate(there, labels, device=DEVICE, **options).to_dict() == here


def test_neighbours_equal_the_cpu() -> None:
    vectors, labels = data()
    there, here = (neighbours(x, labels, k=5) for x in (torch.from_numpy(vectors).to(DEVICE), vectors))
    for name in vars(here):
        assert np.array_equal(getattr(there, name), getattr(here, name)), name
