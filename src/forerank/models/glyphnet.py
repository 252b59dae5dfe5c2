"""GlyphNet: a small convolutional network for small grey pictures, trained from nothing.

It has no batch statistics (group norm, not batch norm), so an image's vector does not depend on the images
beside it: large batches in chunks, several processes and resumed runs give the same numbers. And it does not
average over places: where a stroke stands tells letters apart, so its features are a grid of 4 x 4 places.
"""

import torch.nn.functional as F
from torch import Tensor, nn

GRID = 4  # places a side that the features keep apart
# Name of a backbone -> channels of its first layer. Half the channels need a quarter of the multiplications.
WIDTHS = {"glyphnet": 48, "glyphnet-small": 24}


def _stage(channels: int, out: int, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False),
        nn.GroupNorm(8, out),
        nn.ReLU(inplace=True),
    )


class GlyphNet(nn.Module):
    """Grey images (N, 1, H, W), about 32 to 48 pixels, to features (N, 3072): 192 channels at 4 x 4 places.

    Args:
        keep_map: give the feature map (N, 192, H/8, W/8) instead, for a pooling over all places.
        width: channels of the first layer; the last one has four times as many.

    >>> import torch
    >>> GlyphNet()(torch.zeros(2, 1, 32, 32)).shape, GlyphNet(keep_map=True)(torch.zeros(2, 1, 48, 48)).shape
    (torch.Size([2, 3072]), torch.Size([2, 192, 6, 6]))
    """

    def __init__(self, keep_map: bool = False, width: int = 48) -> None:
        super().__init__()
        self.keep_map = keep_map
        self.channels = 4 * width if keep_map else 4 * width * GRID * GRID
        self.layers = nn.Sequential(
            _stage(1, width, 5, 2),
            _stage(width, 2 * width, 3, 2),
            _stage(2 * width, 2 * width, 3, 1),
            _stage(2 * width, 4 * width, 3, 2),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        if self.keep_map:
            return features
        if features.shape[-2:] != (GRID, GRID):  # at 32 pixels it is that grid: pooling would only cost time
            features = F.adaptive_avg_pool2d(features, GRID)
        return features.flatten(1)
