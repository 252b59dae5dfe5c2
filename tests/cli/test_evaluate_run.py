"""`forerank evaluate RUN`: options are heard, and a recipe's ks fit whatever gallery there is."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import forerank.training
from forerank.cli import run
from forerank.data import Table
from forerank.metrics import RerankChoice, choose_reranking, evaluate
from forerank.models import save_model
from forerank.training import embed_run, load_recipe
from forerank.training.assemble import build_model
from forerank.training.measure import Embedded, measure
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe, override, recipe_text


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Noise in 10 classes of 4: nothing to learn, but something to rank."""
    folder, generator = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    for i in range(40):
        (folder / f"class_{i // 4}").mkdir(exist_ok=True)
        pixels = generator.integers(256, size=(32, 32), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"class_{i // 4}" / f"{i}.png")
    options = ["backbone=glyphnet", "pretrained=false", "mode=full", "embedding_dim=8", "ks=[1,10,100]"]
    return load_recipe(folder, options)


@pytest.fixture(scope="module")
def folder(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended before its first step."""
    folder = tmp_path_factory.mktemp("runs") / "noise"
    save_model(build_model(recipe), folder / "best")
    (folder / "recipe.yaml").write_text(recipe_text(recipe), encoding="utf-8")
    return folder


def test_options_are_heard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ks", "3", "--no-nmi", "--ties", "optimistic", "--seed", "4", "--precision", "float64"]
    assert run(["evaluate", str(folder), "--split", "train", "--json", *options]) == 0
    results = json.loads(capsys.readouterr().out)
    embedded, _ = embed_run(folder, "train")
    expected = evaluate(
        embedded.vectors, embedded.table.label_ids, ks=(3,), nmi=False, ties="optimistic", seed=4
    ).to_dict()
    assert results["metrics"] == expected["metrics"]
    assert results["intervals"] == expected["intervals"]
    assert results["settings"] == {**expected["settings"], "precision": "float64"}


def test_without_options_as_the_recipe_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(folder), "--split", "train", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["settings"]["ks"] == [1, 10]  # 100 is more than there is to rank
    assert "nmi" in results["metrics"]
    assert run(["evaluate", str(folder), "--split", "train", "--ks", "100"]) == 2
    assert "recall@100 cannot be measured here" in capsys.readouterr().err


def test_ks_of_a_recipe_are_cut_to_the_gallery(recipe: Recipe) -> None:
    """150 rows, but only 30 of them to rank."""
    is_gallery = np.arange(150) % 5 == 0
    table = Table(
        path=[str(i) for i in range(150)],
        label=[str(i // 5) for i in range(150)],
        split=["test"] * 150,
        is_query=~is_gallery,
        is_gallery=is_gallery,
    )
    vectors = np.random.default_rng(0).normal(size=(150, 8)).astype(np.float32)
    metrics = measure(Embedded(vectors, table), recipe, Processes(0, 1, torch.device("cpu")), full=True)
    assert metrics.settings["ks"] == [1, 10]
    assert metrics.counts["gallery"] == 30


def test_smaller_training_views_are_for_training_only(recipe: Recipe, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "small"
    save_model(build_model(recipe), run / "best")
    (run / "recipe.yaml").write_text(recipe_text(override(recipe, ["train_size=16"])), encoding="utf-8")
    assert np.array_equal(embed_run(run, "train")[0].vectors, embed_run(folder, "train")[0].vectors)


def test_a_part_that_is_not_there(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(build_model(recipe), tmp_path / "best")
    (tmp_path / "recipe.yaml").write_text(recipe_text(override(recipe, ["validation=0"])), encoding="utf-8")
    assert run(["evaluate", str(tmp_path), "--split", "validation"]) == 2
    assert "has no validation part" in capsys.readouterr().err


def test_a_re_ranking_is_chosen_on_the_validation_classes(
    folder: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evaluate", str(folder), "--rerank", "auto", "--no-nmi", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    embedded, _ = embed_run(folder, "validation")
    expected = choose_reranking(
        embedded.vectors, embedded.table.label_ids, metric=recipe.evaluation.choose_by
    )
    assert results["rerank_choice"] == json.loads(json.dumps(expected.to_dict()))
    assert results["settings"].get("rerank", "none") == expected.chosen

    assert run(["evaluate", str(folder), "--rerank", "auto", "--no-nmi"]) == 0
    assert f"chosen: {expected.chosen}" in capsys.readouterr().out
    assert run(["evaluate", str(folder), "--rerank", "auto", "--split", "validation"]) == 2
    assert "evaluate another split" in capsys.readouterr().err


def test_the_command_for_a_search_with_the_chosen_re_ranking_works_as_it_stands(
    folder: Path,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "my runs" / "noise"
    shutil.copytree(folder, place)
    real = forerank.training.choose_run_reranking

    def helped(*given: Any, **options: Any) -> RerankChoice:  # noise has nothing that could help
        return replace(real(*given, **options), chosen="averaging:neighbours=2")

    monkeypatch.setattr(forerank.training, "choose_run_reranking", helped)
    assert run(["evaluate", str(place), "--rerank", "auto", "--no-nmi"]) == 0
    told = capsys.readouterr().err.strip().splitlines()[-1]
    command, _, serve = told.removeprefix("search the same way: ").partition(" && ")
    assert shlex.split(serve) == ["forerank", "serve", str(place / "index")]
    assert shlex.split(command)[3] == recipe.data.source
    assert run(shlex.split(command)[1:]) == 0
    assert (place / "index" / "CURRENT").exists()


def test_a_run_is_evaluated_with_the_re_ranking_that_was_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evaluate", str(folder), "--rerank", "averaging:neighbours=2", "--no-nmi", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    embedded, _ = embed_run(folder)
    options = {"ks": (1, 10), "nmi": False, "rerank": "averaging:neighbours=2"}
    expected = evaluate(embedded.vectors, embedded.table.label_ids, **options).to_dict()
    assert results["metrics"] == expected["metrics"]
    assert results["settings"]["rerank"] == "averaging:neighbours=2,alpha=3.0"
