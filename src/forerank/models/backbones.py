"""Backbones by one string: the network, the weights that belong to it, and how they want their pictures."""

import fnmatch
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forerank.data.glyphs import PREPROCESSING as GLYPH_PREPROCESSING
from forerank.data.preprocessing import Preprocessing, SeveralViews, Views
from forerank.errors import InputError, command_for, unknown
from forerank.models.efficientnet_lite import (
    HEAD_CHANNELS,
    PIXEL_MEAN,
    PIXEL_STD,
    VARIANTS,
    efficientnet_lite,
)
from forerank.models.glyphnet import WIDTHS, GlyphNet
from forerank.models.hub import weight_file
from forerank.models.pooling import MAP_POOLINGS, SideBySide


@dataclass
class Backbone:
    """A network without head.

    Attributes:
        network: images (N, 3 or 1, H, W) to a feature map (N, C, h, w), or to features (N, C) where the
            network pools by itself.
        channels: C.
        preprocessing: how the weights want their pictures.
        pooling: "average", "gem" or "max", whichever it got; joined by "+" for several networks side by side.
        pool: what follows the network, for pooling "gem" or "max".
        architecture: what is needed, beside the name, to build the same network again without any download.
    """

    network: nn.Module
    channels: int
    preprocessing: Views
    architecture: dict[str, Any] = field(default_factory=dict)
    pooling: str = "average"
    pool: nn.Module | None = None


def _glyphnet(name: str, pretrained: bool, pooling: str) -> Backbone:
    # Nothing to download: it is trained from nothing, so `pretrained` has no meaning here.
    # By itself it keeps a grid of places.
    network = GlyphNet(keep_map=pooling in MAP_POOLINGS, width=WIDTHS[name])
    chosen = "average" if pooling == "auto" else pooling
    return Backbone(network, network.channels, GLYPH_PREPROCESSING, pooling=chosen)


def _efficientnet_lite(name: str, pretrained: bool, pooling: str) -> Backbone:
    variant = VARIANTS[name]
    pictures = Preprocessing(
        size=variant.size,
        resize=variant.size + 32,  # as the weights were evaluated
        mean=(PIXEL_MEAN,) * 3,
        std=(PIXEL_STD,) * 3,
        squash=False,
        interpolation="bicubic",
    )
    pictures = pictures.at_size(variant.retrieval_size)
    network = efficientnet_lite(name, pretrained)
    return Backbone(network, HEAD_CHANNELS, pictures, pooling="gem" if pooling == "auto" else pooling)


# Name -> builder(name, pretrained, pooling). `timm:` and `hf:` names are open-ended: see their files.
BUILT_IN: dict[str, Callable[[str, bool, str], Backbone]] = {
    **dict.fromkeys(WIDTHS, _glyphnet),
    **dict.fromkeys(VARIANTS, _efficientnet_lite),
}
# The paper's backbone: the original ImageNet weights, not timm's later training of the same network.
ALIASES = {"resnet50": "timm:resnet50.tv_in1k"}
# The paper resizes to 256 x 256 without keeping the aspect, where timm keeps it for the same weights.
ALIAS_PREPROCESSING = {"resnet50": Preprocessing(size=224, resize=256, squash=True, interpolation="bilinear")}


# Behind a name: the side of the images that the network sees, as in efficientnet-lite0@320px.
_SIZE = re.compile(r"@(\d+)px$")


def split_names(backbone: str) -> list[str]:
    """The backbones that stand side by side in one string, or the string itself.

    >>> split_names("efficientnet-lite0@320px+efficientnet-lite2"), split_names("runs/a+b")
    (['efficientnet-lite0@320px', 'efficientnet-lite2'], ['runs/a+b'])
    """
    names = backbone.split("+")
    return names if all(_is_one_name(name) for name in names) else [backbone]


def has_weights(backbone: str) -> bool:
    """Whether there are published weights to start from; GlyphNet is always trained from nothing.

    >>> has_weights("efficientnet-lite0"), has_weights("glyphnet-small@48px")
    (True, False)
    """
    return _SIZE.sub("", backbone) not in WIDTHS


def _is_one_name(backbone: str) -> bool:
    plain, _, _ = _SIZE.sub("", backbone).partition("@")
    return plain in BUILT_IN or plain in ALIASES or backbone.startswith(("timm:", "hf:"))


def is_name(backbone: str) -> bool:
    """Whether a string names a backbone (with its file or size) or several, rather than perhaps a folder.

    >>> is_name("glyphnet"), is_name("timm:resnet18@18.pth"), is_name("runs/glyphs")
    (True, True, False)
    """
    return all(_is_one_name(name) for name in split_names(backbone))


def with_absolute_file(backbone: str, absolute: Callable[[str], str]) -> str:
    """One backbone's string with the folder or file in it, if there is one, passed through `absolute`.

    >>> with_absolute_file("timm:resnet18@18.pth@256px", lambda path: f"/weights/{path}")
    'timm:resnet18@/weights/18.pth@256px'
    """
    plain = _SIZE.sub("", backbone)
    size = backbone.removeprefix(plain)
    if not _is_one_name(backbone):
        return absolute(backbone)
    if plain.startswith("hf:"):
        return f"hf:{absolute(plain.removeprefix('hf:'))}{size}"
    name, at, file = plain.partition("@")
    return f"{name}@{absolute(file)}{size}" if at else backbone


def build_backbone(
    name: str,
    *,
    pretrained: bool = True,
    pooling: str = "auto",
    architecture: Mapping[str, Any] | None = None,
    checked: bool = True,
) -> Backbone:
    """The network that a string names.

    Args:
        name: `glyphnet` (`-small`), `efficientnet-lite0` (1, 2), `resnet50`, `timm:NAME`, `hf:NAME` or
            `hf:FOLDER`; with `@FILE` behind it (not for `hf:`) the weights come from that file; with `@320px`
            behind it the network sees images of 320 x 320. Several joined by `+` stand side by side.
        pretrained: False gives random weights and needs no file.
        pooling: "gem"; "max"; "average", or what belongs to the network; "auto": which of them suits it
            better. Of several side by side: one for each, joined by `+`, or one for all.
        architecture: of a saved model, so that it is built again without asking the hub.
        checked: run the network once to see whether it gives the map that the pooling needs.

    >>> build_backbone("glyphnet").channels
    3072
    """
    names = split_names(name)
    poolings = pooling.split("+") if "+" in pooling else [pooling] * len(names)
    if len(names) == 1:
        return _build_one(name, pretrained, pooling, architecture, checked)
    architectures = (architecture or {}).get("parts", [None] * len(names))
    parts = [
        _build_one(part, pretrained, chosen, described or None, checked)
        for part, chosen, described in zip(names, poolings, architectures, strict=True)
    ]
    views = tuple(part.preprocessing for part in parts if isinstance(part.preprocessing, Preprocessing))
    return Backbone(
        SideBySide([p.network for p in parts], [p.pool for p in parts], [p.channels for p in parts]),
        sum(part.channels for part in parts),
        SeveralViews(views),
        {"parts": [part.architecture for part in parts]},
        pooling="+".join(part.pooling for part in parts),
    )


def _build_one(
    name: str, pretrained: bool, pooling: str, architecture: Mapping[str, Any] | None, checked: bool
) -> Backbone:
    """One network, the pooling that was asked for behind it, at the size that was asked for."""
    plain, size = _SIZE.sub("", name), _SIZE.search(name)
    backbone = _build_network(plain, pretrained, pooling, architecture)
    if checked and pooling in MAP_POOLINGS and not gives_map(backbone):
        raise InputError(
            f"{plain} gives no feature map (N, C, h, w), which pooling {pooling!r} needs: use 'average'"
        )
    if backbone.pooling in MAP_POOLINGS:
        backbone.pool = MAP_POOLINGS[backbone.pooling]()
    if size is not None:
        backbone.preprocessing = backbone.preprocessing.at_size(int(size[1]))
    return backbone


def _build_network(
    name: str, pretrained: bool, pooling: str, architecture: Mapping[str, Any] | None
) -> Backbone:
    kind, _, rest = name.partition(":")
    if kind == "hf" and rest:
        from forerank.models.transformers_models import hf_backbone

        return hf_backbone(rest, pretrained, pooling, architecture)
    asked, _, file = name.partition("@")
    plain = ALIASES.get(asked, asked)
    weights = weight_file(file) if file and pretrained else None
    if plain.startswith("timm:"):
        from forerank.models.timm_models import timm_backbone

        backbone = timm_backbone(plain.removeprefix("timm:"), pretrained, pooling, weights, asked)
        backbone.preprocessing = ALIAS_PREPROCESSING.get(asked, backbone.preprocessing)
        return backbone
    if plain not in BUILT_IN:
        raise _unknown_backbone(name)
    if weights is None:
        return BUILT_IN[plain](plain, pretrained, pooling)
    backbone = BUILT_IN[plain](plain, False, pooling)
    load_weights(backbone.network, read_weights(weights), str(weights))
    return backbone


def _unknown_backbone(name: str) -> InputError:
    """The error for a string that names neither a backbone nor a saved model."""
    wrong = [part for part in name.split("+") if not _is_one_name(part)]
    if len(wrong) < len(name.split("+")):  # several side by side, and some of them are known
        return unknown("backbone", wrong[0], [*BUILT_IN, *ALIASES, "timm:NAME", "hf:NAME"])
    if Path(name).expanduser().exists():
        return InputError(
            f"{name} is not a saved model folder (no model.safetensors there): for a bare weights file "
            "name its architecture too, as in timm:resnet50@weights.safetensors"
        )
    plain, _, _ = name.partition("@")
    if "/" in plain or plain.startswith("."):
        return InputError(f"no model folder {name}")
    return unknown("backbone", name, [*BUILT_IN, *ALIASES, "timm:NAME", "hf:NAME"])


def gives_map(backbone: Backbone, *, without_negatives: bool = False) -> bool:
    """Whether a network gives a feature map (N, C, h, w), found by running it once on noise.

    Args:
        without_negatives: the map must have no values below zero. GeM takes powers and reads those as zero:
            it suits maps that end in a ReLU and cuts off half of what other maps say.
    """
    noise = torch.randn((1, *backbone.preprocessing.shape), generator=torch.Generator().manual_seed(0))
    training = backbone.network.training
    with torch.no_grad():
        features = backbone.network.eval()(noise)
    backbone.network.train(training)
    is_map = features.dim() == 4 and features.shape[1] == backbone.channels
    return is_map and not (without_negatives and bool((features < 0).any()))


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
        {"name": name, "size": 32, "weights": "none needed: trained from nothing"} for name in WIDTHS
    ]
    for name, variant in VARIANTS.items():
        package = variant.package.replace("_", "-")
        here = importlib.util.find_spec(variant.package) is not None
        weights = f"installed {package}" if here else command_for(variant.package)
        rows.append({"name": name, "size": variant.retrieval_size, "weights": weights})
    if importlib.util.find_spec("timm") is not None:
        from forerank.models.timm_models import list_timm

        rows += [
            {"name": "resnet50", "size": 224, "weights": "timm:resnet50.tv_in1k, the paper's backbone"},
            *list_timm(),
        ]
    return [row for row in rows if fnmatch.fnmatchcase(str(row["name"]).casefold(), pattern.casefold())]
