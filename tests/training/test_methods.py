"""All methods through the loop: trained, resumed, on several processes; their recipe values."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from forerank.cli import run as command
from forerank.data import open_table
from forerank.errors import InputError
from forerank.training import load_recipe, read_history, train
from forerank.training.methods import METHODS
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.recipe import nested, recipe_from_dict
from waiting import LIMIT

from .conftest import CALM, QUICK, Start
from .test_resume import steps_done, tensors

# Options that fit the few images of the tests.
SMALL = {
    "divide-and-conquer": ["method.clusters=4", "method.renew_epochs=1"],
    "mic": ["method.clusters=10", "method.renew_epochs=1"],
}


def named(key: str) -> list[str]:
    return [f"method={key}", *SMALL.get(key, [])]


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen characters of each part of the glyphs, as a table of its own."""
    table = open_table("glyphs")
    some = [np.unique(table.label[table.split == part])[:16] for part in ("train", "test")]
    file = tmp_path_factory.mktemp("glyphs") / "table.csv"
    table.where(np.isin(table.label, np.concatenate(some))).write_csv(file)
    return file


@pytest.mark.parametrize("mode", ["full", "head"])
@pytest.mark.parametrize("key", METHODS)
def test_every_method_trains_on_glyphs(glyphs: Path, tmp_path: Path, key: str, mode: str) -> None:
    root = f"data.root={open_table('glyphs').root}"
    values = [*QUICK, root, *named(key), f"mode={mode}", "steps=4", "every=2", "report=false", "check=false"]
    run = tmp_path / "run"
    outcome = train(load_recipe(glyphs, values), run)
    losses = [row["loss"] for row in read_history(run) if "loss" in row]
    assert len(losses) == 4
    assert np.isfinite(losses).all()
    assert not outcome.results["broken"]
    moments = {
        k: v for k, v in load_file(run / "last" / "state.safetensors").items() if k.endswith("exp_avg")
    }
    assert sum(bool(v.abs().max() > 0) for v in moments.values()) >= 2  # a gradient came to the weights


@pytest.mark.parametrize("key", ["divide-and-conquer", "mic", "rankmi", "contrastive-with-memory"])
def test_a_method_is_resumed_bit_for_bit(images: Path, tmp_path: Path, start: Start, key: str) -> None:
    """Clusters, banks and the moments of an inner optimiser are state."""
    values = [*QUICK, *named(key), "report=false", "steps=24", "every=8", "save_every=1"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    train(load_recipe(images, values), whole)
    process = start(["train", images, *values, "--run", run], moment=("killed after step", 9))
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL, talk
    assert steps_done(run) == 9
    train(load_recipe(run / "recipe.yaml"), run)
    expected, resumed = tensors(whole), tensors(run)
    assert expected.keys() == resumed.keys()
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []


@pytest.mark.parametrize("key", [
    pytest.param("divide-and-conquer", marks=pytest.mark.long), "mic",
    pytest.param("dcml-mdw", marks=pytest.mark.long), "rankmi",
])  # fmt: skip
def test_two_processes_equal_one(images: Path, tmp_path: Path, start: Start, key: str) -> None:
    calm = [v for v in CALM if not v.startswith("temperature")]
    values = [*calm, *named(key), "steps=8", "every=8", "report=false"]
    curves = []
    for count in (1, 2):
        run = tmp_path / str(count)
        process = start(["train", images, *values, f"run={run}"], processes=count)
        _, talk = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, talk
        curves.append([row["loss"] for row in read_history(run) if "loss" in row])
    assert len(curves[0]) == 8
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


@pytest.mark.parametrize("key", ["divide-and-conquer", "mic", "dcml-mdw"])
def test_micro_batches_give_the_run_of_the_whole_batch(images: Path, tmp_path: Path, key: str) -> None:
    calm = [v for v in CALM if not v.startswith("temperature")]
    curves = []
    for micro in ([], ["micro_batch=5"]):
        run = tmp_path / str(len(micro))
        values = [*calm, *named(key), "steps=6", "every=6", "report=false", *micro]
        train(load_recipe(images, values), run)
        curves.append([row["loss"] for row in read_history(run) if "loss" in row])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


def test_a_method_brings_its_values_and_those_given_go_over_them() -> None:
    recipe = load_recipe("glyphs", ["lr=0.01", "method=proxynca++"])
    assert (recipe.model.pooling, recipe.model.layer_norm, recipe.model.freeze_batch_norm) == (
        "max",
        True,
        False,
    )
    o = recipe.optimiser
    assert (o.lr, o.eps, o.loss_lr, o.clip_value, o.weight_decay) == (0.01, 1.0, 240.0, 10.0, 0.0)
    assert recipe.loss.name == "method"
    published = load_recipe("sop", ["method=mic", "method.settings=published", "epochs=2"])
    assert (published.model.embedding_dim, published.schedule.milestones) == (128, (20, 35))
    assert published.schedule.epochs == 2
    # In a file the values of the file go over those of the method.
    assert recipe_from_dict({"method": "proxynca++", "optimiser": {"lr": 1}}, "it").optimiser.lr == 1
    assert recipe_from_dict(nested(recipe), "it") == recipe


def test_fastap_takes_super_categories_where_the_data_has_them() -> None:
    recipe = load_recipe("glyphs", ["method=fastap"])
    train = open_parts(recipe)["train"]
    assert complete_recipe(recipe, train, 1, "cpu").batch.super_categories == 2
    alike = train.with_columns(category=np.full(len(train), "one"))
    assert complete_recipe(recipe, alike, 1, "cpu").batch.super_categories is None
    asked = load_recipe("glyphs", ["super_categories=9000"])
    with pytest.raises(InputError, match=r"super_categories=9000 needs .* has \d+"):
        complete_recipe(asked, train, 1, "cpu")


def test_the_list_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{key} " in out for key in METHODS)
    assert command(["methods", "rankmi"]) == 0
    out = capsys.readouterr().out
    assert "deviations:  a reconstruction" in out
    assert "inner_steps=5" in out
    assert command(["methods", "rank"]) == 2
