"""Cached features: found again, never mistaken; a head that starts where they are; the chosen checkpoint."""

import os
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from forerank.data import open_table
from forerank.models import create_model
from forerank.training import load_recipe, read_history, train
from forerank.training.features import features_key
from forerank.training.whitening import principal_axes, start_from_principal_axes

from .conftest import QUICK


def test_the_key_changes_with_whatever_the_features_depend_on(images: Path) -> None:
    table = open_table(images)
    one = create_model("glyphnet", embedding_dim=8)
    key = features_key(one, "fp32", table)
    assert (
        features_key(create_model("glyphnet", embedding_dim=16), "fp32", table) == key
    )  # only the head differs
    assert features_key(create_model("glyphnet", embedding_dim=8, seed=1), "fp32", table) != key
    assert features_key(one, "bf16", table) != key
    assert features_key(one, "fp32", table.where(list(range(10)))) != key
    file = table.files[0]
    stamp = file.stat()
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert features_key(one, "fp32", table) != key
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert features_key(one, "fp32", table) == key


def test_equal_names_sizes_and_times_in_another_folder_are_other_images(images: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(images, tmp_path / "copy")  # keeps the times
    model = create_model("glyphnet", embedding_dim=8)
    assert features_key(model, "fp32", open_table(copy)) != features_key(model, "fp32", open_table(images))


def test_principal_axes_keep_the_cosines_that_a_random_projection_loses() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 6, generator=generator) @ torch.randn(6, 40, generator=generator)
    cosines = F.normalize(features) @ F.normalize(features).T

    def error(head: nn.Linear) -> float:
        with torch.no_grad():
            embedded = F.normalize(head(features))
        return float((embedded @ embedded.T - cosines).abs().max())

    head = nn.Linear(40, 6)
    nn.init.orthogonal_(head.weight)
    nn.init.zeros_(head.bias)
    assert error(head) > 0.3
    start_from_principal_axes(head, principal_axes(features))
    assert error(head) < 1e-5


def test_a_head_as_wide_as_the_features_begins_as_the_pretrained_model(images: Path, tmp_path: Path) -> None:
    values = [*QUICK, "mode=head", "embedding_dim=0", "lr=1e-12", "steps=1", "every=1", "choose_by=map@r"]
    outcome = train(load_recipe(images, values), tmp_path / "run")
    row = next(row for row in read_history(tmp_path / "run") if "validation" in row)
    assert abs(row["validation"]["map@r"] - outcome.results["validation"]["before"]) < 1e-6
    assert outcome.results["validation"]["figure"] == "map@r"


def test_the_checkpoint_is_chosen_by_the_figure_that_the_recipe_names(images: Path, tmp_path: Path) -> None:
    for figure in ("recall@1", "map@r"):
        run = tmp_path / figure
        outcome = train(load_recipe(images, [*QUICK, "every=4", f"choose_by={figure}", "report=false"]), run)
        seen = {row["step"]: row["validation"][figure] for row in read_history(run) if "validation" in row}
        seen[0] = outcome.results["validation"]["before"]
        best = max(seen.values())
        assert outcome.results["validation"]["best"] == best
        assert outcome.results["best_step"] == min(step for step, value in seen.items() if value == best)
