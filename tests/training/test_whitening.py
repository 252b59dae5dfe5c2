"""The start in closed form: what it makes of the spread within classes, and when a run takes it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from forerank.errors import InputError
from forerank.metrics import evaluate
from forerank.models import load_model
from forerank.training import load_recipe, train
from forerank.training.whitening import (
    choose_start,
    principal_axes,
    whitening_weight,
    within_class_spread,
)

from .conftest import QUICK


def noisy_classes(classes: int = 30, each: int = 20, loud: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, 12) whose first four numbers are loud and say nothing about the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    centres = torch.randn(classes, 12, generator=generator)
    centres[:, :4] = 0
    noise = torch.randn(len(labels), 12, generator=generator)
    noise[:, :4] *= loud
    return centres[labels] * 2 + noise, labels


def test_the_whitened_spread_within_classes_is_the_same_in_every_direction() -> None:
    features, labels = noisy_classes()
    weight = whitening_weight(within_class_spread(features, labels), 1e-9, 12).double()
    unit = F.normalize(features.double())
    centred = unit - torch.stack([unit[labels == c].mean(0) for c in range(30)])[labels]
    covariance = torch.cov((centred @ weight.T).T, correction=0)
    assert torch.allclose(covariance / covariance.diagonal().mean(), torch.eye(12).double(), atol=1e-4)


def test_few_images_of_many_features_are_whitened_by_the_same_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(12, 60, generator=generator), torch.arange(4).repeat_interleave(3)
    unit = F.normalize(features.double())
    centred = unit - torch.stack([unit[labels == c].mean(0) for c in range(4)])[labels]
    within = centred.T @ centred / 12
    values, axes = torch.linalg.eigh(within + 0.1 * within.diagonal().mean() * torch.eye(60).double())
    by_hand = axes @ torch.diag(values.rsqrt()) @ axes.T
    weight = whitening_weight(within_class_spread(features, labels), 0.1, 60).double()
    assert torch.allclose(weight / weight.norm(), by_hand / by_hand.norm(), atol=1e-5)
    # The axes of a narrow head keep everything that twelve images say.
    kept = principal_axes(features)[:, :12].double()
    assert torch.allclose(unit @ kept @ kept.T, unit, atol=1e-5)


def test_whitening_finds_classes_that_loud_directions_hide_and_a_narrow_head_keeps_it() -> None:
    features, labels = noisy_classes()
    spread = within_class_spread(features[:300], labels[:300])  # half of the classes

    def recall(vectors: torch.Tensor) -> float:
        return float(evaluate(vectors[300:].numpy(), labels[300:].numpy(), ks=[1], nmi=False)["recall@1"])

    plain = recall(features)
    for width in (12, 8):
        assert recall(features @ whitening_weight(spread, 0.01, width).T) > plain + 0.1
    assert recall(features @ whitening_weight(spread, 1e6, 12).T) == plain  # shrunk to nothing


def test_the_better_start_is_taken_and_ties_keep_the_features() -> None:
    spread = within_class_spread(*noisy_classes())
    for gain, taken in ((0.1, True), (0.0, False), (-0.1, False)):
        start = choose_start(
            spread, 12, "map@r", lambda weight, gain=gain: 0.5 + gain * (weight is not None),
            shrinkage=None, wanted=False,
        )  # fmt: skip
        assert start.taken is taken
    assert choose_start(spread, 12, "map@r", None, shrinkage=None, wanted=True).taken


def test_a_whitened_run_has_a_row_of_its_own(images: Path, tmp_path: Path) -> None:
    values = [
        *QUICK,
        "mode=head",
        "embedding_dim=0",
        "head_start=whitening",
        "lr=1e-12",
        "steps=1",
        "every=1",
    ]
    results = train(load_recipe(images, values), tmp_path / "run").results
    assert [*results["test"]][-2:] == ["whitened", "trained"]
    # A rate of almost nothing: the trained model is the whitened one, or the one from before was better.
    assert results["kept"] in ("untrained", "whitened")
    assert results["test"]["trained"] == pytest.approx(results["test"][results["kept"]])
    stored = json.loads((tmp_path / "run" / "before.json").read_text())
    assert stored["start"]["whitening"] is True
    head = load_model(tmp_path / "run" / "last").head
    assert head is not None
    assert not np.allclose(head.weight.detach().numpy(), np.eye(head.in_features))
    assert "whitened" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_whitening_needs_features(images: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs mode=head"):
        train(load_recipe(images, [*QUICK, "head_start=whitening"]), tmp_path / "run")
    with pytest.raises(InputError, match="shrinkage must be above 0"):
        train(load_recipe(images, [*QUICK, "shrinkage=0"]), tmp_path / "run")
