"""Recipes: every value present and typed, typos refused by name, the paper's settings in the shipped ones."""

from pathlib import Path

import pytest
import yaml

from forerank.errors import InputError
from forerank.training.recipe import (
    Recipe,
    differences,
    flatten,
    load_recipe,
    override,
    recipe_from_dict,
    recipe_names,
    recipe_text,
)


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_and_variant_survives_its_own_text(name: str) -> None:
    import importlib.resources

    source = yaml.safe_load((importlib.resources.files("forerank.recipes") / f"{name}.yaml").read_text())
    for variant in [[], *[[f"variant={v}"] for v in source.get("variants", {})]]:
        recipe = load_recipe(name, variant)
        assert recipe_from_dict(yaml.safe_load(recipe_text(recipe)), "its text") == recipe


@pytest.mark.parametrize(("name", "batch"), [("sop", 384), ("vehicle_id", 384), ("inaturalist", 224)])
def test_the_papers_settings(name: str, batch: int) -> None:
    r = load_recipe(name)
    assert (r.model.backbone, r.model.embedding_dim, r.model.freeze_batch_norm) == ("resnet50", 512, True)
    assert (r.optimiser.algorithm, r.optimiser.lr, r.optimiser.weight_decay) == ("adam", 1e-5, 4e-4)
    assert (r.batch.batch_size, r.batch.images_per_class, r.seed) == (batch, 4, 0)
    assert (r.loss.name, r.data.crop, r.schedule.kind, r.evaluation.choose_on) == (
        "PNP-Dq", "paper", "constant", "validation",
    )  # fmt: skip
    authors = load_recipe(name, ["variant=authors"])
    assert authors.data.crop == "official"
    assert authors.schedule.kind == "steps"
    assert (authors.schedule.milestones, authors.schedule.gamma) == ((120, 220, 250, 280), 0.3)
    assert authors.loss.options == {"count_self": True}
    assert authors.evaluation.choose_on == "test"


def test_short_names_and_sections() -> None:
    r = override(Recipe(), ["batch_size=4096", "micro_batch=64", "mode=head", "loss=pml:FastAPLoss",
                            "lr=1e-4", "alpha=8", "loss.b=2", "data=./x", "ks=[1,5]", "ks=7",
                            "patience=null"])  # fmt: skip
    flat = flatten(r)
    assert flat["batch.batch_size"] == 4096
    assert flat["batch.micro_batch"] == 64
    assert flat["loss.name"] == "pml:FastAPLoss"
    assert flat["optimiser.lr"] == 1e-4
    assert flat["loss.options"] == {"alpha": 8, "b": 2}
    assert flat["data.source"] == "./x"
    assert flat["evaluation.ks"] == (7,)
    assert flat["evaluation.patience"] is None


@pytest.mark.parametrize(("values", "sentence"), [
    (["lr"], "give values as key=value"),
    (["lrr=1"], "unknown recipe key 'lrr': did you mean 'lr'"),
    (["optimizer.lr=1"], "did you mean 'optimiser.lr'"),
    (["lr=fast"], "optimiser.lr must be a number or null, not 'fast'"),
    (["batch_size=1.5"], "batch.batch_size must be a whole number or null, not 1.5"),
    (["nmi=maybe"], "evaluation.nmi must be true or false, not 'maybe'"),
    (["mode=heads"], "unknown value of mode 'heads': did you mean 'head'"),
    (["ks=[1,x]"], "evaluation.ks must be a whole number"),
    (["options=3"], "'options' could mean data.options or method.options or loss.options: write it"),
    (["loss.options=3"], "loss.options in 'loss.options=3' must be a mapping"),
    (["data.options=small"], "data.options in 'data.options=small' must be a mapping"),
    (["lr={"], "is not a YAML value"),
], ids=lambda v: v[0] if isinstance(v, list) else "")  # fmt: skip
def test_a_wrong_value_is_one_sentence(values: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        override(Recipe(), values)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "sentence"), [
    ("seed: [", "is not valid YAML at line"),
    ("- 1", "is not a recipe"),
    ("optimiser: {rate: 1}", "unknown recipe key 'optimiser.rate'"),
    ("optimiser: fast", "optimiser.algorithm"),
    ("seeds: 1", "did you mean 'seed'"),
])  # fmt: skip
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_recipe(file)
    assert sentence in str(caught.value)


def test_unknown_sources_and_variants() -> None:
    with pytest.raises(InputError, match="did you mean the recipe 'glyphs'"):
        load_recipe("glyph")
    with pytest.raises(InputError, match="did you mean 'authors'"):
        load_recipe("sop", ["variant=author"])


def test_what_does_not_change_the_numbers_is_no_difference() -> None:
    assert differences(Recipe(), override(Recipe(), ["workers=3", "device=cpu"])) == {}
    assert list(differences(Recipe(), override(Recipe(), ["lr=1"]))) == ["optimiser.lr"]


def test_numbers_of_a_loss_may_be_written_with_an_exponent() -> None:
    recipe = override(Recipe(), ["temperature=1e-2", "loss.margin=5e-1"])
    assert recipe.loss.options == {"temperature": 0.01, "margin": 0.5}
