"""Where the paper's recipes start: resolved weights, preprocessing, precision and head."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from forerank.data import Preprocessing
from forerank.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from forerank.errors import MissingExtraError
from forerank.models import timm_models
from forerank.models.torchvision_import import import_timm
from forerank.training import prepare
from forerank.training.assemble import build_model
from forerank.training.recipe import load_recipe, override, recipe_names

RECIPES = Path(prepare.__file__).parents[1] / "recipes"


def paper_recipes() -> list[tuple[str, str | None]]:
    """(recipe, variant) of everything that trains the paper's ResNet-50, later methods left out."""
    recipes = []
    for name in recipe_names():
        variants = yaml.safe_load((RECIPES / f"{name}.yaml").read_text()).get("variants", {})
        for variant in [None, *variants]:
            chosen = [] if variant is None else [f"variant={variant}"]
            recipe = load_recipe(name, chosen)
            if recipe.model.backbone.startswith("resnet50") and recipe.method.name is None:
                recipes.append((name, variant))
    return recipes


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tensors of a ResNet-50 as published, classifier included; their values are random."""
    try:
        network = import_timm().create_model("resnet50")
    except MissingExtraError:
        pytest.skip("timm is not installed")
    file = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file(network.state_dict(), file)
    return file


def test_every_data_set_of_the_paper_has_such_a_recipe() -> None:
    names = {name for name, _ in paper_recipes()}
    assert names >= {"sop", "vehicle_id", "inaturalist", "cars", "inshop", "cub"}
    assert ("cub", "paper") in paper_recipes()
    assert {(name, "authors") for name in names - {"cub"}} <= set(paper_recipes())


@pytest.fixture
def asked(weights: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The repositories that weights were asked of; every one of them gives the same file."""
    repositories: list[str] = []

    def hub_file(repo: str, names: tuple[str, ...], advice: str) -> Path:
        repositories.append(repo)
        return weights

    monkeypatch.setattr(timm_models, "hub_file", hub_file)
    return repositories


@pytest.mark.parametrize(("name", "variant"), paper_recipes())
@pytest.mark.parametrize("from_file", [False, True], ids=["hub", "file"])
def test_resolved_weights_preprocessing_precision_and_head(
    name: str, variant: str | None, from_file: bool, weights: Path, asked: list[str]
) -> None:
    recipe = load_recipe(name, [] if variant is None else [f"variant={variant}"])
    if from_file:
        recipe = override(recipe, [f"backbone=resnet50@{weights}"])
    model = build_model(recipe)
    assert asked == ([] if from_file else ["timm/resnet50.tv_in1k"])
    crop = "official" if variant == "authors" else "paper"
    assert model.preprocessing == Preprocessing(
        size=224,
        resize=256,
        squash=True,
        interpolation="bilinear",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop=crop,
        flip=0.5,
    )
    assert (recipe.mode, recipe.precision, model.spec["pooling"]) == ("full", "fp32", "average")
    # torch's own start of a linear layer: uniform within 1 / sqrt(2048), the bias too; not orthonormal rows.
    assert model.head is not None
    bound = 2048**-0.5
    assert 0.99 * bound < model.head.weight.abs().max() <= bound
    assert 0.9 * bound < model.head.bias.abs().max() <= bound
    assert model.head.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


@pytest.mark.parametrize(
    ("variant", "size", "resize", "pooling", "layer_norm"),
    [("roadmap", 256, 293, "average", False), ("recall_at_k", 224, 256, "gem", True)],
)
def test_recipes_of_later_methods_start_from_the_same_weights(
    variant: str, size: int, resize: int, pooling: str, layer_norm: bool, asked: list[str]
) -> None:
    recipe = load_recipe("sop", [f"variant={variant}"])
    model = build_model(recipe)
    assert asked == ["timm/resnet50.tv_in1k"]
    seen = model.preprocessing
    assert (seen.size, seen.resize, seen.squash, seen.crop) == (size, resize, True, "official")
    assert (model.spec["pooling"], model.layer_norm is not None) == (pooling, layer_norm)
    assert (recipe.precision, recipe.model.embedding_dim) == ("fp32", 512)


@pytest.mark.parametrize("name", ["sop", "vehicle_id", "inaturalist", "cars", "inshop"])
def test_the_authors_train_on_all_classes_and_choose_on_the_test_set(name: str) -> None:
    recipe = load_recipe(name, ["variant=authors"])
    assert (recipe.data.validation, recipe.evaluation.choose_on) == (0, "test")


def test_another_seed_gives_another_start_of_the_head(weights: Path) -> None:
    def start(seed: int) -> torch.Tensor:
        chosen = [f"backbone=resnet50@{weights}", f"seed={seed}"]
        head = build_model(load_recipe("sop", chosen)).head
        assert head is not None
        return head.weight

    assert torch.equal(start(3), start(3))
    assert not torch.equal(start(3), start(4))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_paper_recipe_stays_in_single_precision_on_a_gpu_too(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerank.data import Table

    monkeypatch.setattr(prepare, "_has_bf16", lambda kind: True)
    labels = [f"class {i // 4}" for i in range(4 * 100)]
    train = Table([f"{i}.jpg" for i in range(400)], labels, ["train"] * 400)
    settled = prepare.complete_recipe(load_recipe("sop"), train, 1, device)
    assert settled.precision == "fp32"
    asked = load_recipe("sop", ["precision=bf16"])
    assert prepare.complete_recipe(asked, train, 1, device).precision == "bf16"
