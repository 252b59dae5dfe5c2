"""Whole runs, in this process: from pictures to a run folder."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from forerank.errors import InputError
from forerank.models import load_model
from forerank.models.storage import saved_spec
from forerank.training import evaluate_run, load_recipe, read_history, train
from waiting import LIMIT

from .conftest import QUICK, Start, draw_images


def weights(run: Path, link: str = "last") -> dict[str, torch.Tensor]:
    return load_file(run / link / "model.safetensors")


def everything(run: Path) -> dict[str, torch.Tensor]:
    """Weights, moments, bank and running mean of the last checkpoint."""
    return weights(run) | load_file(run / "last" / "state.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_folder_of_images_becomes_a_whole_run(images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = train(load_recipe(images, [*QUICK, "steps=60", "every=20"]), run)
    test = outcome.results["test"]
    assert list(test) == ["untrained", "pixels", "trained"]
    assert test["trained"]["recall@1"] >= test["untrained"]["recall@1"]
    history = read_history(run)
    assert [row["step"] for row in history if "loss" in row] == list(range(1, 61))
    assert [row["step"] for row in history if "validation" in row] == [20, 40, 60]
    assert any((run / "tensorboard").iterdir())
    page = (run / "report.html").read_text(encoding="utf-8")
    before, after = re.findall(r'class="number (?:before|after)"><b>([\d.]+)', page)
    assert (before, after) == tuple(
        f"{100 * test[name]['recall@1']:.1f}" for name in ("untrained", "trained")
    )
    assert ">pixels<" in page  # a further row
    assert 'src="http' not in page
    assert "PNP-Dq" in (run / "recipe.yaml").read_text(encoding="utf-8")
    assert "trained" in str(outcome)
    # The run measured again gives the same figures.
    again = evaluate_run(run)
    assert again["recall@1"] == test["trained"]["recall@1"]
    assert again["map@r"] == pytest.approx(test["trained"]["map@r"])
    assert load_model(run).output_dim == 16


def test_the_recipe_of_a_run_gives_the_same_run(images: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train(load_recipe(images, QUICK), first)
    train(load_recipe(first / "recipe.yaml"), second)
    assert same(weights(first), weights(second))
    one, two = (json.loads((run / "results.json").read_text()) for run in (first, second))
    assert one["test"] == two["test"]


def test_another_seed_gives_another_run(images: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        train(load_recipe(images, [*QUICK, f"seed={seed}"]), tmp_path / str(seed))
    assert not same(weights(tmp_path / "0"), weights(tmp_path / "1"))


def test_never_worse_than_before(tmp_path: Path) -> None:
    """Pictures so clear that nothing can be gained: the model from before is kept and the run says so."""
    clear = draw_images(tmp_path / "clear", classes=12, noise=5)
    outcome = train(load_recipe(clear, [*QUICK, "lr=1e-2", "choose_by=recall@1"]), tmp_path / "run")
    assert outcome.results["validation"]["before"] == 1.0
    test = outcome.results["test"]
    assert outcome.results["best_step"] == 0
    assert test["trained"] == test["untrained"]
    assert "on the validation classes, is kept" in outcome.results["notes"][-1]
    assert outcome.results["kept"] == "untrained"
    assert str(outcome).splitlines()[-1].startswith("kept: untrained")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<th scope="col">kept: untrained</th>' in page
    assert '<th scope="col">trained</th>' not in page
    assert "kept: step 0, 100.0" in page
    assert load_model(tmp_path / "run").head is None


def test_early_stopping(images: Path, tmp_path: Path) -> None:
    values = [*QUICK, "lr=1e-12", "steps=100", "every=2", "patience=3"]
    outcome = train(load_recipe(images, values), tmp_path / "run")
    assert outcome.results["steps"] < 100


def test_a_loss_that_breaks_ends_the_run_with_what_was_learned(images: Path, tmp_path: Path) -> None:
    outcome = train(load_recipe(images, [*QUICK, "lr=1e30"]), tmp_path / "run")
    assert outcome.results["steps"] < 20
    assert any("no longer a number" in note for note in outcome.results["notes"])
    assert np.isfinite(outcome.results["test"]["trained"]["recall@1"])


def test_without_validation_the_last_checkpoint_is_the_model(images: Path, tmp_path: Path) -> None:
    outcome = train(load_recipe(images, [*QUICK, "validation=0"]), tmp_path / "run")
    assert outcome.results["best_step"] == 20
    assert same(weights(tmp_path / "run", "best"), weights(tmp_path / "run", "last"))


def test_chosen_on_test_says_so(images: Path, tmp_path: Path) -> None:
    outcome = train(load_recipe(images, [*QUICK, "choose_on=test"]), tmp_path / "run")
    assert any("optimistic" in note for note in outcome.results["notes"])


SHORT = [*QUICK, "steps=6", "every=3", "batch_size=8", "report=false"]


@pytest.fixture(scope="module")
def usual(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run without any switch."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("usual") / "run"
    train(load_recipe(images, SHORT), run)
    return run


@pytest.mark.parametrize("values", [
    ["ema=0.9"], ["clip=0.1", "schedule.kind=cosine", "warmup_steps=5"], ["algorithm=sgd"],
    ["algorithm=adamw"], ["head_warmup=10"], ["precision=bf16"], ["memory=64"], ["loss=Smooth-AP"],
    ["crop=official", "sampling=official"], ["train_size=24"], ["image_size=64"],
    ["pooling=gem", "layer_norm=true"], ["merge_classes=2"], ["noisy_labels=0.2"],
], ids=lambda values: ",".join(values))  # fmt: skip
def test_every_switch_runs_and_changes_the_run(
    images: Path, usual: Path, tmp_path: Path, values: list[str]
) -> None:
    outcome = train(load_recipe(images, [*SHORT, *values]), tmp_path / "run")
    assert not same(everything(usual), everything(tmp_path / "run"))
    assert np.isfinite(outcome.results["test"]["trained"]["recall@1"])


def test_the_warm_up_of_the_head_leaves_the_backbone_alone(images: Path, tmp_path: Path) -> None:
    train(load_recipe(images, [*QUICK, "head_warmup=20"]), tmp_path / "warm")
    train(load_recipe(images, [*QUICK, "head_warmup=20", "steps=1"]), tmp_path / "one")
    long, short = weights(tmp_path / "warm"), weights(tmp_path / "one")
    assert all(torch.equal(long[key], short[key]) for key in long if key.startswith("backbone"))
    assert not torch.equal(long["head.weight"], short["head.weight"])


def test_frozen_layers_stay_and_the_others_learn(images: Path, tmp_path: Path) -> None:
    for steps in (1, 12):
        train(load_recipe(images, [*QUICK, "frozen=0.5", f"steps={steps}"]), tmp_path / str(steps))
    short, long = weights(tmp_path / "1"), weights(tmp_path / "12")
    layers = [key for key in short if key.startswith("backbone") and short[key].dim() > 1]
    stayed = [torch.equal(short[key], long[key]) for key in layers]
    assert stayed == [i < len(layers) // 2 for i in range(len(layers))]


def test_head_mode_trains_on_features_that_are_computed_once(images: Path, tmp_path: Path) -> None:
    values = [*QUICK, "mode=head"]
    outcome = train(load_recipe(images, values), tmp_path / "one")
    cached = sorted((Path(__import__("os").environ["FORERANK_CACHE"]) / "features").rglob("*.safetensors"))
    assert len(cached) >= 3
    stamps = [file.stat().st_mtime_ns for file in cached]
    train(load_recipe(images, [*values, "lr=1e-2"]), tmp_path / "two")
    assert [file.stat().st_mtime_ns for file in cached] == stamps
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.equal(one[key], two[key]) for key in one if key.startswith("backbone"))
    assert not torch.equal(one["head.weight"], two["head.weight"])
    # What was trained on features is a whole model: on the pictures themselves it measures the same.
    again = evaluate_run(tmp_path / "one")
    assert again["recall@1"] == outcome.results["test"]["trained"]["recall@1"]


def test_a_finished_run_is_not_done_again(images: Path, tmp_path: Path) -> None:
    recipe = load_recipe(images, QUICK)
    first = train(recipe, tmp_path / "run")
    stamp = (tmp_path / "run" / "results.json").stat().st_mtime_ns
    assert train(recipe, tmp_path / "run").results == first.results
    assert (tmp_path / "run" / "results.json").stat().st_mtime_ns == stamp


def test_unreadable_images(images: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(images, broken)
    (broken / "class_03" / "0.png").write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"0\.png"):
        train(load_recipe(broken, QUICK), tmp_path / "refused")
    for mode in ("full", "head"):
        outcome = train(load_recipe(broken, [*QUICK, "on_bad=skip", f"mode={mode}"]), tmp_path / mode)
        told = "1 of 160 images cannot be read and are left out (the first is class_03/0.png)"
        assert told in outcome.results["notes"]
        assert np.isfinite(outcome.results["test"]["trained"]["recall@1"])


def test_skipped_images_are_the_same_for_micro_batches(images: Path, tmp_path: Path) -> None:
    """The first row, a whole class, and a file whose header is fine: none of them is ever in a batch."""
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(images, broken)
    for file in [broken / "class_00" / "0.png", *(broken / "class_02").iterdir()]:
        file.write_bytes(b"not a picture")
    whole = (broken / "class_05" / "3.png").read_bytes()
    (broken / "class_05" / "3.png").write_bytes(whole[: len(whole) // 2])
    values = [*SHORT, "on_bad=skip", "test=0.2", "validation=0.1", "lr=1e-5", "temperature=0.1"]
    histories = []
    for chunk in ("null", "1"):
        run = tmp_path / chunk
        outcome = train(load_recipe(broken, [*values, f"micro_batch={chunk}"]), run)
        assert any(note.startswith("10 of 160 images cannot") for note in outcome.results["notes"])
        histories.append([row["loss"] for row in read_history(run) if "loss" in row])
    assert len(histories[0]) == 6
    assert histories[0] == pytest.approx(histories[1], abs=1e-5)


def test_images_are_looked_at_once_for_many_runs(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from forerank.training import image_check

    own, counted = tmp_path / "own", []
    shutil.copytree(images, own)
    whole = image_check.check_table
    monkeypatch.setattr(image_check, "check_table", lambda *a, **k: (counted.append(a), whole(*a, **k))[1])
    for run in ("one", "two"):
        train(load_recipe(own, [*SHORT, "steps=1"]), tmp_path / run)
        assert (tmp_path / run / "data.json").exists()
    assert len(counted) == 1


def test_images_that_changed_are_looked_at_again(images: Path, tmp_path: Path) -> None:
    import shutil

    own, run = tmp_path / "own", tmp_path / "run"
    shutil.copytree(images, own)
    recipe = load_recipe(own, [*SHORT, "save_every=2"])
    train(recipe, run)
    (run / "results.json").unlink()
    (own / "class_01" / "0.png").write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"1 of 160 images cannot be used, first class_01/0\.png"):
        train(recipe, run)
    shutil.copy(images / "class_01" / "0.png", own / "class_01" / "0.png")
    (run / "data.json").write_text("{")  # damaged: looked at again
    assert train(recipe, run).results["steps"] == 6
    assert json.loads((run / "data.json").read_text())["bad"] == []


@pytest.mark.parametrize("mode", ["full", "head"])
def test_a_run_as_backbone_is_measured_as_it_is_with_its_head(
    images: Path, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = train(load_recipe(images, [*QUICK, "steps=30", "validation=0"]), Path("first"))
    values = [v for v in QUICK if not v.startswith(("backbone", "pretrained", "pooling"))]
    values += ["backbone=first", "steps=2", f"mode={mode}", "lr=1e-12", "validation=0"]
    outcome = train(load_recipe(images, values), Path("second"))
    assert outcome.results["test"]["given"] == pytest.approx(first.results["test"]["trained"], abs=1e-6)
    assert "given" in str(outcome)
    # The head is taken over too, not begun anew, and so is the exponent of the pooling.
    one, two = weights(Path("first")), weights(Path("second"))
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[key].float(), two[key].float(), atol=1e-6) for key in one)
    # The recipe of the run works from any folder.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    recipe = load_recipe(tmp_path / "second" / "recipe.yaml")
    assert recipe.model.backbone == str(tmp_path / "first")
    assert saved_spec(tmp_path / "second")["pooling"] == "gem"
    assert train(recipe, Path("third")).results["test"] == outcome.results["test"]


def test_paths_of_the_data_are_written_in_full(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerank.data import open_table
    from forerank.training.prepare import complete_recipe, open_parts

    table = open_table(images)
    table.write_csv(tmp_path / "table.csv")
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("folder", [*QUICK, "data.source=table.csv", f"data.root={images.name}"])
    (tmp_path / images.name).symlink_to(images)
    complete = complete_recipe(recipe, open_parts(recipe)["train"], 1, "cpu")
    assert complete.data.source == str(tmp_path / "table.csv")
    assert complete.data.root == str(images)
    glyphs = load_recipe("glyphs", QUICK)
    (tmp_path / "glyphs").mkdir()  # a folder that happens to have the name of a data set
    assert complete_recipe(glyphs, open_parts(recipe)["train"], 1, "cpu").data.source == "glyphs"


def test_a_pipe_among_the_images_is_refused_at_once(images: Path, tmp_path: Path, start: Start) -> None:
    import os
    import shutil

    own = tmp_path / "own"
    shutil.copytree(images, own)
    (own / "class_00" / "0.png").unlink()
    os.mkfifo(own / "class_00" / "0.png")
    process = start(["train", own, *QUICK, "--run", tmp_path / "run"])
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert "first class_00/0.png (cannot be opened (not a file))" in talk
    process = start(["data", "check", own])
    out, talk = process.communicate(timeout=LIMIT)
    assert "class_00/0.png: cannot be opened (not a file)" in out + talk
    outcome = train(load_recipe(own, [*SHORT, "on_bad=skip"]), tmp_path / "skipped")
    assert any(note.startswith("1 of 160 images cannot") for note in outcome.results["notes"])


def test_a_picture_in_train_and_test_is_told(images: Path, tmp_path: Path) -> None:
    import shutil

    leaky = tmp_path / "leaky"
    shutil.copytree(images, leaky)
    for c in range(1, 20):
        shutil.copy(leaky / "class_00" / "0.png", leaky / f"class_{c:02d}" / "0.png")
    outcome = train(load_recipe(leaky, [*QUICK, "steps=2", "report=false"]), tmp_path / "run")
    assert any("these numbers are optimistic" in note for note in outcome.results["notes"])
    assert any("under two labels" in note for note in outcome.results["notes"])


def test_a_blend_is_kept_and_training_does_not_feel_it(images: Path, usual: Path, tmp_path: Path) -> None:
    """`best` lies half way between the weights it began with and the trained ones; `last` is not touched."""
    values = [*SHORT, f"backbone={usual / 'last'}", "pretrained=true", "validation=0"]
    train(load_recipe(images, values), tmp_path / "plain")
    train(load_recipe(images, [*values, "blend=0.5"]), tmp_path / "blended")
    assert same(everything(tmp_path / "plain"), everything(tmp_path / "blended"))
    start, trained = weights(usual), weights(tmp_path / "plain")
    kept = weights(tmp_path / "blended", "best")
    moved = [key for key in kept if not torch.equal(start[key], trained[key])]
    assert len(moved) > 4
    for key in moved:
        torch.testing.assert_close(kept[key], (start[key] + trained[key]) / 2)
