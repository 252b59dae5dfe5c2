"""timm, transformers, weights that are not here, and torchvision beside CPU torch."""

import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import save_file

from forerank.errors import InputError, MissingExtraError
from forerank.models import create_model, list_backbones, load_model, save_model
from forerank.models.torchvision_import import import_timm, import_torchvision
from waiting import LIMIT

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module", autouse=True)
def _timm() -> None:
    try:
        import_timm()
    except MissingExtraError:
        pytest.skip("timm is not installed")


def test_torchvision_imports_beside_this_torch_and_its_transforms_work() -> None:
    code = (
        "from forerank.models.torchvision_import import import_torchvision as go\n"
        "assert go() is go()\n"
        "import torch, torchvision.transforms.v2 as T, torchvision.models as M\n"
        "assert T.Resize(8)(torch.zeros(3, 16, 16)).shape == (3, 8, 8)\n"
        "assert M.resnet18(weights=None)(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)
    assert import_torchvision().__name__ == "torchvision"


def test_timm_with_average_and_gem_pooling(tmp_path: Path) -> None:
    images = torch.rand(2, 3, 64, 64)
    average = create_model("timm:resnet18", pretrained=False, embedding_dim=32, pooling="average").eval()
    assert average.features(images).shape == (2, 512)
    network = average.backbone.network
    torch.testing.assert_close(average.features(images), network.forward_features(images).mean((2, 3)))
    gem = create_model("timm:resnet18", pretrained=False, embedding_dim=32, pooling="gem").eval()
    assert gem(images).shape == (2, 32)
    save_model(gem, tmp_path)
    loaded = load_model(tmp_path)
    assert torch.equal(loaded(images), gem(images))
    with pytest.raises(InputError, match="gives no feature map"):
        create_model("timm:vit_tiny_patch16_224", pretrained=False, pooling="gem")


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("timm:resnet18", "gem"),  # its map ends in a ReLU
        ("timm:convnext_atto", "average"),  # its map has negative values, which GeM would cut off
        ("timm:swin_tiny_patch4_window7_224", "average"),  # its map has the channels last
        ("timm:vit_tiny_patch16_224", "average"),  # no map
    ],
)
def test_automatic_pooling_is_gem_where_the_map_has_no_negatives(name: str, pooling: str) -> None:
    auto = create_model(name, pretrained=False, embedding_dim=None)
    assert auto.spec["pooling"] == pooling
    chosen = create_model(name, pretrained=False, embedding_dim=None, pooling=pooling)
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(auto.eval()(images), chosen.eval()(images))


def test_timm_weights_from_a_file_and_input_follows_the_weights(tmp_path: Path) -> None:
    source = create_model("timm:resnet18", pretrained=False, embedding_dim=None, seed=8)
    save_file(dict(source.backbone.network.state_dict()), tmp_path / "resnet18.safetensors")
    model = create_model(f"timm:resnet18@{tmp_path / 'resnet18.safetensors'}")
    for a, b in zip(model.backbone.parameters(), source.backbone.parameters(), strict=True):
        assert torch.equal(a, b)
    config = import_timm().get_pretrained_cfg("resnet18")
    assert model.preprocessing.mean == pytest.approx(config.mean)
    assert model.preprocessing.size == config.input_size[-1]


def test_timm_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    """timm itself would fill what the file lacks with random numbers, and leave out what is too much."""
    whole = import_timm().create_model("resnet18", num_classes=7).state_dict()
    deeper = import_timm().create_model("resnet34", num_classes=7).state_dict()
    renamed = {f"backbone.{key}": value for key, value in whole.items()}
    files = {
        "whole": whole,
        "deeper": deeper,
        "part": {key: value for key, value in whole.items() if not key.startswith("layer4")},
        "renamed": renamed,
        "wider": {**whole, "layer1.0.conv1.weight": torch.zeros(128, 64, 3, 3)},
    }
    for name, tensors in files.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    create_model(f"timm:resnet18@{tmp_path / 'whole.safetensors'}")  # a classifier is left aside
    sentences = {
        "deeper": "deeper.safetensors does not fit timm:resnet18: it has an unexpected layer1.2.bn1.bias and",
        "part": "part.safetensors does not fit timm:resnet18: it lacks layer4.0.bn1.bias and",
        "renamed": "renamed.safetensors does not fit timm:resnet18: it lacks bn1.bias and",
        "wider": "size mismatch for layer1.0.conv1.weight",
    }
    for name, sentence in sentences.items():
        with pytest.raises(InputError) as refusal:
            create_model(f"timm:resnet18@{tmp_path / f'{name}.safetensors'}")
        assert sentence in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("layers", "what"), [(3, "lack"), (1, "have an unexpected")])
def test_transformers_weights_of_another_depth_are_refused(tmp_path: Path, layers: int, what: str) -> None:
    shape = {**TINY["vit"], "num_hidden_layers": 2, "image_size": 32}
    config = transformers.AutoConfig.for_model("vit", **shape)
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    create_model(f"hf:{tmp_path}")  # a classifier is left aside
    config.num_hidden_layers = layers
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"do not fit its config\.json: they {what} .*layers?\.[12]\."):
        create_model(f"hf:{tmp_path}")


def test_models_that_read_more_than_pictures_of_one_size_are_refused(tmp_path: Path) -> None:
    try:
        config = transformers.AutoConfig.for_model("siglip2", **TINY["siglip"])
    except ValueError:
        pytest.skip("this transformers does not know siglip2")
    config.save_pretrained(tmp_path / "siglip2")
    with pytest.raises(InputError, match="spatial_shapes beside the pixels"):
        create_model(f"hf:{tmp_path / 'siglip2'}", pretrained=False)
    shape = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.AutoConfig.for_model("bert", **shape).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match="is not an image model: it reads input_ids"):
        create_model(f"hf:{tmp_path / 'bert'}", pretrained=False)


TINY = {
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "convnext": {"hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1]},
    "vit": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "dinov2": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 16},
    "dinov3_vit": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2},
    "siglip": {
        "vision_config": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                          "intermediate_size": 32, "image_size": 64, "patch_size": 16},
        "text_config": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                        "intermediate_size": 32, "vocab_size": 50},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", TINY)
def test_transformers_models_from_a_folder(kind: str, tmp_path: Path) -> None:
    try:
        config = transformers.AutoConfig.for_model(kind, **TINY[kind])
    except ValueError:
        pytest.skip(f"this transformers does not know {kind}")
    if kind in ("vit", "dinov2", "dinov3_vit"):
        config.image_size = 64
    torch.manual_seed(0)
    theirs = transformers.AutoModel.from_config(config).eval()
    folder = tmp_path / "hub"
    theirs.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        '{"size": {"height": 64, "width": 64}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    model = create_model(f"hf:{folder}", embedding_dim=None, pooling="average").eval()
    p = model.preprocessing
    assert (p.size, p.resize, p.mean, p.squash) == (64, 64, (0.5, 0.5, 0.5), True)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        output = getattr(theirs, "vision_model", theirs)(pixel_values=images)
        expected = output.last_hidden_state[:, 0] if kind == "vit" else output.pooler_output.flatten(1)
        torch.testing.assert_close(model.features(images), expected)
        save_model(model, tmp_path / "saved")
        for file in folder.iterdir():  # the saved model needs nothing of where it came from
            file.unlink()
        assert torch.equal(load_model(tmp_path / "saved")(images), model(images))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("timm:resnet50", ["timm/resnet50", "model.safetensors", "timm:resnet50@PATH"]),
        ("resnet50", ["timm/resnet50.tv_in1k", "model.safetensors", "backbone resnet50@PATH"]),
        ("hf:facebook/dinov2-small", ["facebook/dinov2-small", "config.json", "hf:FOLDER"]),
    ],
)
def test_missing_weights_name_the_file_and_the_place_at_once(
    name: str, parts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_port: int
) -> None:
    """After one request: the hub's own client, which tries again and again, is not even started."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    nowhere = f"http://127.0.0.1:{closed_port}"  # stands for a machine without network
    monkeypatch.setattr(hub.constants, "ENDPOINT", nowhere)
    monkeypatch.setattr(hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere + "/{repo_id}/{filename}")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda repo, file: None)
    monkeypatch.setattr(hub, "hf_hub_url", lambda repo, file: f"{nowhere}/{repo}/{file}")
    asked = []

    def ask(request: urllib.request.Request, real: Any = urllib.request.urlopen, **options: Any) -> Any:
        asked.append(request.full_url)
        return real(request, **options)

    def start_client(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("the hub's own client was started")

    monkeypatch.setattr(urllib.request, "urlopen", ask)
    for client in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(hub, client, start_client)
    with pytest.raises(InputError) as refusal:
        create_model(name)
    assert len(asked) == 1, asked
    for part in [*parts, "cannot be downloaded", str(tmp_path)]:
        assert part in str(refusal.value)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean timm:resnet18"):
        create_model("timm:resnet-18")
    assert any(row["name"] == "timm:convnext_tiny" for row in list_backbones("convnext_tiny"))
