"""EfficientNet-lite against timm's implementation of the same network; its weights and its pictures."""

import pytest
import torch

from forerank.errors import MissingExtraError
from forerank.models import create_model
from forerank.models.efficientnet_lite import VARIANTS, efficientnet_lite, packaged_weights
from forerank.models.torchvision_import import import_timm


def timm_names(key: str) -> str:
    """Our name of a parameter -> timm's, for a network whose stages are flattened in our version."""
    return (
        key.replace("stem.conv", "conv_stem")
        .replace("stem.norm", "bn1")
        .replace("head.conv", "conv_head")
        .replace("head.norm", "bn2")
    )


@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite2"])
def test_the_same_weights_give_the_same_features_in_timms_network(name: str) -> None:
    pytest.importorskip(VARIANTS[name].package)
    try:
        timm = import_timm()
    except MissingExtraError:
        pytest.skip("timm is not installed")
    theirs = timm.create_model(f"tf_{name.replace('-', '_')}", pretrained=False, num_classes=0).eval()
    ours = efficientnet_lite(name, pretrained=True).eval()
    state = {timm_names(k): v for k, v in ours.state_dict().items() if not k.startswith("blocks.")}
    flat = [block for stage in theirs.blocks for block in stage]
    assert len(flat) == len(ours.blocks)
    for mine, block in zip(ours.blocks, flat, strict=True):
        parts = {"conv_pw": "expand", "conv_dw": "depthwise", "conv_pwl": "project"}
        norms = {"bn1": "expand", "bn2": "depthwise", "bn3": "project"}
        if not hasattr(block, "conv_pwl"):  # the first block does not expand
            parts, norms = (
                {"conv_dw": "depthwise", "conv_pw": "project"},
                {"bn1": "depthwise", "bn2": "project"},
            )
        weights = {f"{k}.weight": getattr(mine, v).conv.weight for k, v in parts.items()}
        for theirs_name, part in norms.items():
            for key, value in getattr(mine, part).norm.state_dict().items():
                weights[f"{theirs_name}.{key}"] = value
        block.load_state_dict(weights)
    theirs.load_state_dict(state, strict=False)
    size = VARIANTS[name].size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, actual = theirs(images), ours(images).mean((2, 3))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_odd_sizes_pad_on_both_sides_like_tensorflow() -> None:
    network = efficientnet_lite("efficientnet-lite0", pretrained=False).eval()
    with torch.inference_mode():
        assert network(torch.zeros(1, 3, 65, 97)).shape == (1, 1280, 3, 4)  # each stride rounds up


def test_no_weight_of_the_package_is_lost() -> None:
    weights = packaged_weights("efficientnet-lite0")
    assert set(weights) == set(efficientnet_lite("efficientnet-lite0", pretrained=False).state_dict())


def test_pixels_enter_as_the_weights_want_them() -> None:
    p = create_model("efficientnet-lite0", pretrained=False).preprocessing
    for pixel in (0, 127, 255):
        value = (pixel / 255 - p.mean[0]) / p.std[0]
        assert value == pytest.approx((pixel - 127) / 128)
    assert (p.size, p.resize) == (256, 293)
