"""Cached features: found again, never mistaken; a head that starts where they are; the chosen checkpoint."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forerank.data import Table, collate, open_table
from forerank.models import EmbeddingModel, Retriever, create_model, inference
from forerank.training import features, load_recipe, read_history, train
from forerank.training.assemble import build_model, open_inputs
from forerank.training.batches import FeatureRows
from forerank.training.features import features_key
from forerank.training.measure import Part, embed, image_part
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe
from forerank.training.whitening import principal_axes, start_from_principal_axes
from waiting import LIMIT

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


def test_networks_side_by_side_take_what_each_has_in_the_cache(
    images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "cache"))
    computed: list[str] = []
    real = features.feature_encoder

    def counted(model: EmbeddingModel, *rest: Any) -> Any:
        computed.append(model.spec["backbone"])
        return real(model, *rest)

    monkeypatch.setattr(features, "feature_encoder", counted)
    processes = Processes(0, 1, torch.device("cpu"))
    parts: dict[str, Part] = {}
    for backbone in ("glyphnet", "glyphnet+glyphnet@48px"):
        values = [*QUICK, "mode=head", f"backbone={backbone}", "embedding_dim=8"]
        recipe = complete_recipe(load_recipe(images, values), open_table(images), 1, "cpu")
        tables = open_parts(recipe)
        model = build_model(recipe)
        parts = open_inputs(recipe, tables, model, processes)
    assert computed == ["glyphnet"] * 3 + ["glyphnet@48px"] * 3
    # Together they are what the joint network gives.
    whole = image_part(tables["test"], model.preprocessing, recipe, "test", cache=False)
    joint = embed(model.features, whole, recipe, processes)
    data = parts["test"].data
    assert isinstance(data, FeatureRows)
    assert data.features.numpy() == pytest.approx(joint.vectors, abs=1e-5)


def features_of(images: Path, recipe: Recipe) -> tuple[torch.Tensor, Table]:
    """The features of a folder's images by the recipe's network, from the cache or computed."""
    table, model = open_table(images), build_model(recipe).eval()
    part = image_part(table, model.preprocessing, recipe, "some", cache=False)
    return features.part_features(model, part, recipe, Processes(0, 1, torch.device("cpu")))


@pytest.fixture
def own_images(images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of some pictures that a test may change, and an empty cache."""
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "cache"))
    for name in ("class_00", "class_01"):
        shutil.copytree(images / name, tmp_path / "own" / name)
    return tmp_path / "own"


@pytest.fixture
def recipe(own_images: Path) -> Recipe:
    return load_recipe(own_images, [*QUICK, "mode=head", "precision=fp32"])


def test_features_lie_under_the_name_of_the_engine_that_computed_them(
    own_images: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where openvino cannot run a network as torch does, torch computes, and an index of torch finds them."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(inference, "TOLERANCE", {"fp32": -1.0})
    computed, table = features_of(own_images, recipe)
    folders = [place.name.split("-", 1)[1] for place in (tmp_path / "cache" / "features").iterdir()]
    assert folders == ["torch-fp32"]
    model = build_model(recipe)
    by_torch = Retriever(model, device="cpu", engine="torch")
    ((positions, _),) = by_torch.known_vectors(table.files)
    assert sorted(positions) == list(range(16))
    monkeypatch.setattr(features, "feature_encoder", None)  # from here on nothing is computed
    assert torch.equal(features_of(own_images, recipe)[0], computed)
    shutil.rmtree(own_images / "class_01")
    assert torch.equal(features_of(own_images, recipe)[0], computed[:8])  # one by one
    monkeypatch.undo()
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "cache"))
    by_openvino = Retriever(model, device="cpu", engine="openvino")
    assert list(by_openvino.known_vectors(table.files)) == []


def test_an_image_that_is_replaced_while_features_are_computed_is_not_found_again(
    own_images: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(own_images)
    real = features.embed

    def embed_and_replace(*given: Any, **options: Any) -> Any:
        embedded = real(*given, **options)
        shutil.copy(table.files[5], tmp := table.files[3].with_suffix(".tmp"))
        tmp.rename(table.files[3])
        return embedded

    monkeypatch.setattr(features, "embed", embed_and_replace)
    old, _ = features_of(own_images, recipe)
    retriever = Retriever(build_model(recipe), device="cpu")
    ((positions, _),) = retriever.known_vectors(table.files)
    assert sorted(positions) == [0, 1, 2, *range(4, 16)]
    monkeypatch.setattr(features, "embed", real)
    new, _ = features_of(own_images, recipe)
    torch.testing.assert_close(new[3], new[5], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(old[3], new[3], atol=1e-2)


# Two processes; the second one has a cache of its own.
TWO_CACHES = """
import os, sys
from pathlib import Path
from forerank.data import open_table
from forerank.training import load_recipe
from forerank.training.assemble import build_model
from forerank.training.features import part_features
from forerank.training.measure import image_part
from forerank.training.processes import joined

images, answers, *values = sys.argv[1:]
rank = os.environ["RANK"]
os.environ["FORERANK_CACHE"] += rank
with joined("cpu") as processes:
    recipe = load_recipe(images, values)
    model = build_model(recipe).eval()
    part = image_part(open_table(images), model.preprocessing, recipe, "some", cache=False)
    features, table = part_features(model, part, recipe, processes)
    # a file for each process: lines that two processes print at once can be mixed
    Path(answers, rank).write_text(f"{(*features.shape, len(table))}")
"""


@pytest.mark.parametrize("holder", [pytest.param(0, marks=pytest.mark.long), 1])
def test_features_that_only_one_process_has_are_computed_by_all(
    holder: int, own_images: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the one that has them waits for the others at another place, and the run ends in an error."""
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / f"caches{holder}"))
    shape = features_of(own_images, recipe)[0].shape
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "caches"))
    (tmp_path / "two.py").write_text(TWO_CACHES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    (answers := tmp_path / "answers").mkdir()
    program = [str(tmp_path / "two.py"), str(own_images), str(answers)]
    command = [*launcher, *program, *QUICK, "mode=head", "precision=fp32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [(answers / rank).read_text() for rank in "01"] == [str((*shape, 16))] * 2


def test_a_batch_of_features_equals_its_rows_one_by_one() -> None:
    data = FeatureRows(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), list(range(9)))
    keys = [3, (5, 2), 0, (5, 7)]
    for quick, slow in zip(data.__getitems__(keys), collate([data[key] for key in keys]), strict=True):
        assert torch.equal(quick, slow)
        assert quick.dtype == slow.dtype


def test_pictures_in_memory_are_embedded_as_those_from_files(images: Path) -> None:
    recipe = complete_recipe(load_recipe(images, [*QUICK, "mode=full"]), open_table(images), 1, "cpu")
    table, model = open_parts(recipe)["test"], build_model(recipe).eval()
    processes = Processes(0, 1, torch.device("cpu"))
    parts = [image_part(table, model.preprocessing, recipe, "test", cache=cache) for cache in (True, False)]
    assert [part.data.gives_joined_batches for part in parts] == [True, False]  # type: ignore[attr-defined]
    in_memory, from_files = (embed(model, part, recipe, processes) for part in parts)
    np.testing.assert_array_equal(in_memory.vectors, from_files.vectors)
