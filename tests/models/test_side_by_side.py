"""Several backbones as one: features by hand, names, saving and loading, training a head, ONNX, index."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fastapi.testclient import TestClient
from PIL import Image

from forerank.cli import run
from forerank.data import Preprocessing, evaluation_view, training_view
from forerank.data.preprocessing import SeveralViews
from forerank.errors import InputError
from forerank.models import Retriever, create_model, export_onnx, load_model, save_model
from forerank.models.backbones import is_name, split_names
from forerank.search import Index
from forerank.web.app import create_app

BOTH = "efficientnet-lite0@64px+efficientnet-lite2@96px"


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8)) for _ in range(3)]


def test_vectors_are_the_unit_features_of_each_one_behind_the_other(pictures: list[Image.Image]) -> None:
    parts = []
    for name in BOTH.split("+"):
        retriever = Retriever(create_model(name, embedding_dim=None), device="cpu")
        parts.append(torch.from_numpy(retriever.embed(pictures)))
    expected = torch.cat(parts, dim=1) / 2**0.5
    both = Retriever(create_model(BOTH, embedding_dim=None), device="cpu")
    assert both.dim == 2 * 1280
    np.testing.assert_allclose(both.embed(pictures), expected.numpy(), atol=1e-5)


def test_each_part_sees_its_own_view(pictures: list[Image.Image]) -> None:
    model = create_model(BOTH, embedding_dim=8, pretrained=False)
    views = model.preprocessing
    assert isinstance(views, SeveralViews)
    assert [part.size for part in views.parts] == [64, 96]
    row = evaluation_view(pictures[0], views)
    assert row.shape == views.shape == (3 * 64 * 64 + 3 * 96 * 96,)
    for part, view in zip(views.parts, views.split(row[None]), strict=True):
        torch.testing.assert_close(view[0], evaluation_view(pictures[0], part))
    from random import Random

    assert training_view(pictures[0], views, Random(0)).shape == views.shape
    assert model.train()(row[None]).shape == (1, 8)


def test_grey_and_colour_cannot_stand_side_by_side() -> None:
    with pytest.raises(InputError, match="all take colour images or all grey"):
        create_model("glyphnet+efficientnet-lite0", pretrained=False)


def test_names_of_several_and_of_folders() -> None:
    assert split_names("resnet50@w.pth@256px+timm:resnet18") == ["resnet50@w.pth@256px", "timm:resnet18"]
    assert split_names("timm:resnet18@a+b.pth") == ["timm:resnet18@a+b.pth"]
    assert is_name("timm:resnet18@a+b.pth")
    assert not is_name("runs/a+b")
    assert create_model("glyphnet@48px", embedding_dim=4).preprocessing.shape == (1, 48, 48)
    with pytest.raises(InputError, match=r"unknown backbone 'efficientnet-lit2': did you mean"):
        create_model("efficientnet-lite0+efficientnet-lit2")


def test_saved_and_loaded_and_trained_on_with_another_head(tmp_path: Path) -> None:
    model = create_model(BOTH, embedding_dim=16, pretrained=False).eval()
    assert model.spec["pooling"] == "gem+gem"
    with torch.no_grad():
        model.backbone.pools[1].exponent.fill_(2.0)
    images = torch.randn(2, *model.preprocessing.shape, generator=torch.Generator().manual_seed(0))
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.preprocessing == model.preprocessing
    assert torch.equal(loaded(images), model(images))
    other = create_model(str(tmp_path / "m"), embedding_dim=4).eval()
    torch.testing.assert_close(other.features(images), model.features(images))
    with pytest.raises(InputError, match=r"trained with pooling=gem\+gem"):
        create_model(str(tmp_path / "m"), pooling="average")


def test_onnx_takes_one_input_for_each(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create_model("glyphnet@32px+glyphnet@40px", embedding_dim=8).eval()
    assert export_onnx(model, tmp_path / "m.onnx") < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    shapes = {value.name: value.shape[1:] for value in session.get_inputs()}
    assert shapes == {"images_1": [1, 32, 32], "images_2": [1, 40, 40]}
    images = torch.randn(5, *model.preprocessing.shape, generator=torch.Generator().manual_seed(0))
    assert isinstance(model.preprocessing, SeveralViews)
    one, two = model.preprocessing.split(images)
    (vectors,) = session.run(None, {"images_1": one.numpy(), "images_2": two.numpy()})
    np.testing.assert_allclose(vectors, model(images).detach().numpy(), atol=1e-5)


def test_a_head_is_trained_evaluated_embedded_indexed_searched_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for label in range(8):
        colour = rng.integers(60, 200, 3)
        for i in range(4):
            pixels = np.clip(colour + rng.normal(0, 40, (40, 50, 3)), 0, 255).astype(np.uint8)
            file = tmp_path / "images" / f"class{label}" / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    values = ["steps=4", "every=2", "batch_size=8", "mode=head", "nmi=false", "report=false"]
    command = ["train", "images", "--run", "run", "backbone=efficientnet-lite0@32px+efficientnet-lite2@64px"]
    assert run([*command, *values]) == 0
    assert run(["evaluate", "run"]) == 0
    assert run(["index", "run", "images", "-o", "i.index"]) == 0
    capsys.readouterr()
    assert run(["search", "i.index", "images/class3/1.png", "-k", "1"]) == 0
    assert "class3/1.png" in capsys.readouterr().out
    assert run(["embed", "run", "images", "-o", "vectors.npy"]) == 0
    vectors = dict(zip(Path("vectors.txt").read_text().split(), np.load("vectors.npy"), strict=True))
    index = Index.open("i.index")
    for row in index.engine.all_rows():
        (embedded,) = (v for path, v in vectors.items() if path.endswith(row.path))
        np.testing.assert_allclose(embedded, index.engine.vectors([row.id])[0], atol=1e-5)
    with TestClient(create_app(index), base_url="http://127.0.0.1") as client:
        found = client.post("/api/search?k=1", content=Path("images/class3/1.png").read_bytes()).json()
    assert [hit["path"] for hit in found["hits"]] == ["class3/1.png"]
    assert found["hits"][0]["similarity"] > 0.9999
    model = load_model("run")
    assert model.feature_dim == 2560
    image = evaluation_view(Image.open("images/class3/1.png"), model.preprocessing)
    features = model.features(image[None])
    torch.testing.assert_close(F.normalize(features[:, :1280]), features[:, :1280])


def test_smaller_training_views_need_one_backbone() -> None:
    from forerank.training.assemble import build_model
    from forerank.training.recipe import load_recipe

    recipe = load_recipe("cub", [f"backbone={BOTH}", "pretrained=false", "blend=null"])
    with pytest.raises(InputError, match="needs a single backbone"):
        build_model(recipe)


def test_a_variant_of_the_recipe_for_folders_takes_two_backbones(tmp_path: Path) -> None:
    from forerank.training.recipe import load_recipe

    name = load_recipe(tmp_path, ["variant=best"]).model.backbone
    parts = create_model(name, pretrained=False, embedding_dim=None).preprocessing
    assert isinstance(parts, SeveralViews)
    assert [part.size for part in parts.parts] == [320, 288]


def test_several_views_as_plain_values() -> None:
    from forerank.data.preprocessing import views_from_dict

    views = SeveralViews((Preprocessing(size=8, resize=9), Preprocessing(size=4, resize=4, crop="paper")))
    assert views_from_dict(views.to_dict()) == views
    assert views.at_size(16).shape == (2 * 3 * 16 * 16,)
    assert views.with_training_view("official").crop == "official"
