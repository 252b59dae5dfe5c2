"""What cannot work is said in one sentence, before any work."""

import shutil
from pathlib import Path

import pytest

from forerank.cli import run as command
from forerank.errors import InputError
from forerank.training import load_recipe, train
from forerank.training.assemble import build_model
from forerank.training.prepare import open_parts
from forerank.training.recipe import Recipe, override

from .conftest import QUICK


@pytest.mark.parametrize(("values", "sentence"), [
    (["batch_size=18"], "batch_size 18 is not divisible by images_per_class 4: the nearest that is: 16"),
    (["batch_size=4"], "is one class: no negatives"),
    (["batch_size=400"], "a batch of 100 classes needs as many training classes of two images or more"),
    (["micro_batch=17"], "micro_batch 17 is larger than the batch of 16"),
    (["micro_batch=8", "freeze_batch_norm=false"], "micro_batch needs freeze_batch_norm=true"),
    (["images_per_class=1"], "an image needs a positive"),
    (["lr=0"], "optimiser.lr must be above 0"),
    (["ema=1.5"], "optimiser.ema must lie between 0 and 1"),
    (["blend=0"], "optimiser.blend must be above 0 and at most 1"),
    (["blend=0.5", "freeze_batch_norm=false"], "optimiser.blend mixes with pretrained weights"),
    (["frozen=1"], "model.frozen must be 0 or more and below 1"),
    (["steps=0"], "schedule.steps must be at least 1"),
    (["seed=-1"], "seed must be 0 or more"),
    (["image_size=0"], "model.image_size must be at least 1"),
    (["train_size=0"], "data.train_size must be at least 1"),
    (["validation=1.0"], "data.validation must be at least 0 and below 1"),
    (["test=0"], "no test part and data.test is 0"),
    (["device=gpu"], "unknown device 'gpu'"),
    (["precision=fp16"], "precision fp16 needs a GPU"),
    (["loss=PNP-Dx"], "unknown loss 'PNP-Dx': did you mean 'PNP-D"),
    (["loss=pml:FastAP"], "did you mean 'FastAPLoss'"),
    (["loss=pml:FastAPLoss", "loss.bins=3"], "unknown argument of pml:FastAPLoss 'bins'"),
    (["alpha=0.5"], "alpha"),
    (["memory=-1"], "loss.memory must be 0"),
    (["workers=-1"], "data.workers must be at least 0"),
    (["hold_mb=-1"], "batch.hold_mb must be at least 0"),
    (["lr=.inf"], "optimiser.lr must be above 0 and finite"),
    (["weight_decay=.inf"], "optimiser.weight_decay must be 0 or more and finite"),
    (["gamma=-1"], "schedule.gamma must be above 0"),
    (["milestones=[-3]"], "schedule.milestones must be 0 or more"),
    (["super_categories=2"], "batch.super_categories=2 needs data with as many super categories, and "
                             "stripes has none"),
    (["super_categories=0"], "batch.super_categories must be at least 1"),
    (["loss=pml:FastAPLoss", "memory=32"], "pml:FastAPLoss cannot use a memory bank"),
    (["mode=head", "embedding_dim=null"], "mode=head needs model.embedding_dim"),
    (["method=divide-and-conquer"], "with 8 clusters needs at least 16 training classes of two images or "
                                    "more, and stripes has 11 (88 images): give method.clusters=5 or fewer"),
    (["method=divide-and-conquer", "method.clusters=5"], "embedding_dim 16 is not divisible by 5"),
    (["method=mic"], "needs at least 2 clusters and 100 training images, and stripes has 88"),
    (["method=dcml-mdw", "method.parts=3"], "model.embedding_dim 16 is not divisible by 3"),
    (["method=softtriple", "method.centres=1"], "softtriple needs at least 2 centres"),
    (["method=divide"], "unknown method 'divide': did you mean 'divide-and-conquer'"),
    (["method=mic", "method.cluster=3"], "option of the method mic 'cluster': did you mean 'clusters'"),
    (["method=mic", "method.clusters=many"], "method.clusters must be a whole number, not 'many'"),
    (["method=mic", "loss=PNP-Ds"], "the method mic brings its own loss"),
    (["loss=method"], "the recipe names no method"),
    (["method=proxynca++", "micro_batch=4"], "micro_batch needs freeze_batch_norm=true"),
    (["method=fastap", "super_categories=2"], "batch.super_categories=2 needs data with as many"),
], ids=lambda v: ",".join(v) if isinstance(v, list) else "")  # fmt: skip
def test_one_sentence(
    images: Path, tmp_path: Path, values: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert command(["train", str(images), *QUICK, *values, "--run", str(run)]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert said.startswith("forerank: ")
    assert "\n" not in said
    assert not run.exists()


def test_folders_that_are_none(tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert command(["train", str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    assert command(["train", str(images), *QUICK, "--run", str(tmp_path / "taken")]) == 2
    assert "not empty and not a run folder" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["thesis.txt"]


def test_too_few_classes_are_told_how_many_are_needed(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for classes, has in ((1, "one has 1 class to train with"), (5, "one has 5 classes to train with")):
        for number in range(classes):
            shutil.copytree(
                images / f"class_{number:02d}", tmp_path / "one" / str(number), dirs_exist_ok=True
            )
        assert command(["train", str(tmp_path / "one"), "--run", str(tmp_path / "run")]) == 2
        needed = "and at least 6 are needed (2 to learn from, 2 for validation, 2 for test): add classes"
        assert f"{has}, {needed}" in capsys.readouterr().err
    shutil.copytree(images / "class_05", tmp_path / "one" / "5")
    assert {len(table.classes) for table in open_parts(load_recipe(tmp_path / "one")).values()} == {2}


def test_only_a_recipe_with_a_similar_name_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", "nope"]) == 2
    assert "did you mean" not in capsys.readouterr().err
    assert command(["train", "in-shop"]) == 2
    assert "did you mean the recipe 'inshop'?" in capsys.readouterr().err


def test_a_run_folder_of_another_recipe(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(load_recipe(images, [*QUICK, "steps=2", "report=false"]), run)
    assert (
        command(["train", str(images), *QUICK, "steps=2", "report=false", "lr=1e-2", "--run", str(run)]) == 2
    )
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "is a run of another recipe (optimiser.lr is 0.001 there, 0.01 here): give another --run" in said


def test_a_size_the_network_was_not_built_for() -> None:
    recipe = override(Recipe(), ["backbone=timm:vit_tiny_patch16_224", "pretrained=false", "image_size=96"])
    with pytest.raises(InputError, match=r"model\.image_size=96 does not suit timm:vit_tiny_patch16_224"):
        build_model(recipe)
    assert build_model(override(recipe, ["image_size=224"])).preprocessing.size == 224


def test_weights_that_are_not_there_leave_no_folder(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    values = [f"backbone=glyphnet@{tmp_path / 'none.pth'}", "pretrained=true"]
    assert command(["train", str(images), *QUICK, *values, "--run", str(run)]) == 2
    assert capsys.readouterr().err == f"forerank: no weights file {tmp_path / 'none.pth'}\n"
    assert not run.exists()


@pytest.mark.parametrize(("file", "text", "sentence"), [
    ("results.json", "{", "results.json is damaged ("),
    ("results.json", "{}", "results.json is damaged (its content does not fit its checksum)"),
    ("before.json", "\xff", "before.json is damaged ("),
    ("before.json", '{"choice": 1, "test": {"untrained": {}}}', "before.json is damaged"),
    ("last/state.json", "[]", "state.json is damaged (its content does not fit its checksum)"),
    ("last/state.json", "{}", "state.json is damaged (its content does not fit its checksum)"),
    ("last/state.safetensors", "", "last cannot be read"),
    ("recipe.yaml", "seed: \xff", "recipe.yaml is not as the run wrote it (its checksum does not fit)"),
])  # fmt: skip
def test_damaged_files_of_a_run(
    begun: Path, tmp_path: Path, file: str, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(begun, run, symlinks=True)
    if file != "results.json":
        (run / "results.json").unlink()
    (run / file).write_bytes(text.encode("latin-1"))
    assert command(["train", str(run)]) in (1, 2)
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said


@pytest.fixture(scope="module")
def begun(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that has ended."""
    run = tmp_path_factory.mktemp("begun") / "run"
    train(load_recipe(images, [*QUICK, "steps=2", "report=false", "choose_on=test"]), run)
    return run
